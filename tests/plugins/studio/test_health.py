"""The page of health: each section, and each source that fails."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from iteration_project import iterate, project, scores
from studio_server import serving_studio
from terminal import Terminal, reply

from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.project import Schedule
from perstack.errors import DispatcherError
from perstack.iterations.state import Iteration, SeriesState
from perstack.schedules.schedule import Occurrence
from perstack.schedules.schedules import ScheduleStatus
from perstack_studio.studio import Studio
from perstack_studio.views.health import listed_schedule, read_section, score_plot

SCHEDULE = """
[experts.lead]
instruction = "You lead."
[schedules.nightly]
cron = "0 3 * * *"
expert = "lead"
query = "Report"
"""


def test_a_project_without_anything_says_so_in_each_section(terminal: Terminal) -> None:
    with serving_studio(terminal.project(SCHEDULE, lead=[reply("Done.")])) as server:
        page = server.visitor().get("/health")

    assert "nightly" in page
    assert "There are no tasks" in page
    assert "There are no iterations" in page
    assert "There is no dispatcher" in page
    assert "the state is your own" in page
    assert str(terminal.workspace) in page
    assert "cannot be read" not in page


def test_tries_of_iterations_are_plotted_with_the_best_marked(terminal: Terminal) -> None:
    project(terminal, scores(0.2, 0.9, 0.5), "maxIterations = 3")
    assert iterate(terminal).code == 0
    hostile = "<i>name\u202e"
    assert terminal.run("task", "create", "parts", "--name", hostile, "--agent-id", "<b>").code == 0
    with serving_studio(terminal) as server:
        page = server.visitor().get("/health")

    assert "3 of 3 tries measured, the best is try 2 with 0.9" in page
    assert "try 2: 0.9, the best" in page
    assert 'href="/jobs/it-i2"' in page
    assert "&lt;i&gt;name" in page
    assert "<i>" not in page
    assert "<b>" not in page
    assert "\u202e" not in page


def test_a_damaged_task_does_not_hide_the_other_sections(terminal: Terminal) -> None:
    terminal.project(SCHEDULE)
    assert terminal.run("task", "create", "parts", "--name", "parts").code == 0
    for log in terminal.workspace.glob("perstack/**/events.jsonl"):
        log.write_text("not a log\n")
    with serving_studio(terminal) as server:
        page = server.visitor().get("/health")

    assert "nightly" in page
    assert "the state is your own" in page


def test_a_storage_that_is_gone_is_said_in_each_section_in_one_line(terminal: Terminal) -> None:
    terminal.project(SCHEDULE, lead=[reply("Done.")])
    assert terminal.run("run", "lead", "Go", "--provider", "scripted").code == 0
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        state = terminal.workspace / "perstack"
        state.rename(terminal.workspace / "gone")
        state.write_text("")
        page = visitor.get("/health")
        costs = visitor.get("/costs", 503)
        experts = visitor.get("/experts")
        state.unlink()
        (terminal.workspace / "gone").rename(state)
        again = visitor.get("/health")

    assert page.count("in place of a directory of this storage") >= 4
    assert "You have agreed to all" in page
    assert "in place of a directory" in costs
    assert "Traceback" not in page + costs
    assert 'href="/experts/lead"' in experts
    assert "cannot be read" not in again


def test_a_queue_and_its_missing_workers_are_shown(terminal: Terminal) -> None:
    terminal.project(f'{SCHEDULE}[workers]\ndispatcher = "memory:jobs"\n', lead=[reply("Done.")])
    terminal.env["PERSTACK_PLUGINS"] += ",memory_workers"
    terminal.env["PYTHONPATH"] = str(Path(__file__).parents[2] / "support")
    (terminal.workspace / "notes.txt").write_text("read me")
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        form = visitor.get("/experts/lead/start")
        visitor.send(form, "/jobs", query="Later", expert="lead", attachments="notes.txt\n")
        page = visitor.get("/health")

    assert "memory:jobs" in page
    assert "<span>Queued</span>1" in page
    assert "No worker is running" in page


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DispatcherError("the queue\nis gone"), "the queue is gone"),
        (OSError("disk"), "OSError: disk"),
        (ExceptionGroup("many", [ValueError("first"), KeyError()]), "ValueError: first"),
    ],
)
def test_a_source_that_fails_is_one_line(error: Exception, text: str) -> None:
    async def fail(studio: Studio) -> None:
        raise error

    found = asyncio.run(read_section(fail, cast("Studio", SimpleNamespace())))

    assert found.failure == text
    assert found.value is None


def test_a_source_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack_studio.views.health._SECTION_TIMEOUT_S", 0.01)

    async def hang(studio: Studio) -> None:
        await asyncio.Event().wait()

    assert "no answer" in asyncio.run(read_section(hang, cast("Studio", SimpleNamespace()))).failure


def test_a_schedule_shows_its_times_in_its_zone_and_what_was_missed() -> None:
    schedule = Schedule(name="s", cron="0 3 * * *", timezone="Asia/Tokyo", expert="lead", query="q")
    last = Occurrence(at=0, job_id="j", decided_at=0)
    status = ScheduleStatus(schedule, next=86_400_000, last=last, skipped=3_600_000)

    listed = listed_schedule(status, now=90_000_000)

    assert listed.is_due
    assert listed.last.startswith("1970-01-01 09:00")
    assert listed.skipped.startswith("1970-01-01 10:00")


def series(*results: float | None, best: int | None = None) -> SeriesState:
    tries = tuple(
        Iteration(number=at, job_id=f"j{at}", score=score, started_at=0) for at, score in enumerate(results, 1)
    )
    settings = Iterate(evaluator="measure", target=1.0)
    values: dict[str, Any] = {"id": "s", "expert_key": "lead", "user_input": "q", "started_at": 0, "updated_at": 0}
    return SeriesState(**values, settings=settings, iterations=tries, best_iteration=best)


def test_scores_are_plotted_from_the_second_measured_try_on() -> None:
    assert score_plot(series(0.5, None, best=1)) is None

    plot = score_plot(series(0.5, None, 0.8, best=3))

    assert plot is not None
    assert [title for _, _, title, _ in plot.marks] == ["try 1: 0.5", "try 3: 0.8, the best"]
    assert json.dumps(plot.limit)
