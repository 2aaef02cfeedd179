"""Jobs of the original Perstack through the Python door: seen, continued, exported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Bench, Seen, agree_to_state, expert, wait_for

from golden import CASES, GOLDEN, states
from perstack.core.base.chain import open_line
from perstack.core.messages.messages import ToolMessage
from perstack.core.runs.events import parse_event
from perstack.errors import NotFound, UsageError
from perstack.next_steps import Continue
from perstack.ports.formats import ForeignJob
from perstack.testing.scripted import ScriptedProvider, text, tool, turn


@pytest.fixture
def files(tmp_path: Path) -> Bench:
    """A workspace with the filesystem storage."""
    return Bench(tmp_path, "file:perstack")


def golden_job(bench: Bench, case: str) -> str:
    shutil.copytree(GOLDEN / case / "perstack", bench.workspace / "perstack")
    agree_to_state(bench.workspace)
    return next((bench.workspace / "perstack" / "jobs").iterdir()).name


async def logs_of(host, job_id: str) -> dict:
    return {
        log.run_id: [parse_event(open_line(line).payload) for line in log.lines] for log in await host.jobs.logs(job_id)
    }


def messages_of(runs: dict) -> list[str]:
    """Of every Run; in no order, for a nested delegate may be numbered otherwise."""
    return sorted(str(run.messages[:]) for run in runs.values())


@pytest.mark.parametrize(("case", "steps", "tokens"), [(CASES[0], 3, 1432), (CASES[1], 6, 4490), (CASES[2], 4, 605)])
def test_it_is_listed_with_its_totals_and_result(files: Bench, case: str, steps: int, tokens: int) -> None:
    job_id = golden_job(files, case)
    job = wait_for(files.host([]).job(job_id))
    assert (job.status, job.total_steps, job.usage.total_tokens) == ("completed", steps, tokens)
    assert job.text


@pytest.mark.parametrize("case", CASES)
def test_a_new_query_continues_it_with_its_history(files: Bench, case: str) -> None:
    job_id = golden_job(files, case)
    before = wait_for(files.host([]).job(job_id))
    provider = ScriptedProvider(lambda request: "and on")
    key = before.expert_key
    job = wait_for(files.host(provider, expert(key)).continue_job(key, "one more thing", job_id=job_id))
    assert (job.id, job.text, job.total_steps) == (job_id, "and on", before.total_steps + 1)
    assert job.coordinator_run_id == f"{job_id}-{len(before.runs) + 1}"
    sent = provider.requests[0].messages
    assert any(isinstance(message, ToolMessage) for message in sent)
    assert sent[-1].contents[0].text == "one more thing"
    assert wait_for(files.host([]).job(job_id)).total_steps == before.total_steps + 1


def test_a_question_that_the_original_asked_is_answered_here(files: Bench) -> None:
    job_id = golden_job(files, "d_interactive")
    runs = files.workspace / "perstack" / "jobs" / job_id / "runs"
    asked, answered = sorted(runs.iterdir(), key=lambda run: min(file.name for file in run.iterdir()))
    shutil.rmtree(answered)
    setting = {"model": "scripted", "providerConfig": {"providerName": "scripted"}}
    (asked / "run-setting.json").write_text(json.dumps(setting))
    waiting = wait_for(files.host([]).job(job_id))
    assert (waiting.status, waiting.question) == ("stoppedByInteractiveTool", "confirm?")
    host = files.host(ScriptedProvider(lambda request: "thanks"), expert("asker", ask=True))
    job = wait_for(host.answer("yes", job_id=job_id))
    assert (job.status, job.text, job.coordinator_run_id) == ("completed", "thanks", f"{job_id}-1")


def test_a_job_of_ours_exported_opens_again_as_one_of_the_original(files: Bench, tmp_path: Path) -> None:
    script = {
        "[[boss]]": [
            turn(tool("todo", {"newTodos": ["t"]}), tool("left", {"query": "L"}), tool("right", {"query": "R"})),
            tool("todo", {"completedTodos": [0]}),
            turn(tool("attemptCompletion", {}), text="all done"),
        ],
        "[[left]]": [tool("leaf", {"query": "from left"}), text("left done")],
        "[[right]]": [text("right done")],
        "[[leaf]]": [text("leaf done")],
    }
    experts = [
        expert("boss", delegates=("left", "right")),
        expert("left", delegates=("leaf",)),
        expert("right"),
        expert("leaf"),
    ]
    job = wait_for(files.host(script, *experts).run("boss", "q", on_event=Seen()))
    job = wait_for(files.host([text("second")], *experts).continue_job("boss", "again", job_id=job.id))
    logs = wait_for(logs_of(files.host([]), job.id))
    there = Bench(tmp_path / "there", "file:perstack")
    for path, content in wait_for(files.host([]).exports.export("perstack", job.id)).items():
        file = there.workspace / "perstack" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    again = wait_for(there.host([]).job(job.id))
    assert (again.status, again.text, again.total_steps, again.usage) == (
        job.status,
        job.text,
        job.total_steps,
        job.usage,
    )
    logs_there = wait_for(logs_of(there.host([]), job.id))
    before, after = states(ForeignJob(logs)), states(ForeignJob(logs_there))
    assert messages_of(after) == messages_of(before)


def test_a_format_that_is_not_installed_is_refused_with_the_installed_ones(files: Bench) -> None:
    job_id, host = golden_job(files, "b_files"), files.host([])
    with pytest.raises(UsageError, match="no format 'perl' is installed; available: perstack"):
        wait_for(host.exports.export("perl", job_id))


def test_a_run_that_does_not_say_its_provider_is_refused_with_the_way_out_and_nothing_is_written(files: Bench) -> None:
    job_id = golden_job(files, "d_interactive")
    runs = files.workspace / "perstack" / "jobs" / job_id / "runs"
    shutil.rmtree(max(runs.iterdir(), key=lambda run: min(file.name for file in run.iterdir())))
    before = sorted(path for path in runs.rglob("*") if path.is_file())
    host = files.host(ScriptedProvider(lambda request: "x"), expert("asker", ask=True))
    with pytest.raises(UsageError, match="does not say which provider") as refused:
        wait_for(host.answer("yes", job_id=job_id))
    assert refused.value.next_steps == (Continue(job_id, "asker"),)
    assert sorted(path for path in runs.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("case", CASES)
def test_every_checkpoint_of_the_original_is_found_by_its_own_id(files: Bench, case: str) -> None:
    job_id, host = golden_job(files, case), files.host([])
    kept = sorted((files.workspace / "perstack" / "jobs" / job_id / "checkpoints").iterdir())
    assert kept
    for file in kept:
        theirs = json.loads(file.read_bytes())
        checkpoint = wait_for(host.jobs.checkpoint(theirs["id"]))
        assert (checkpoint.id, checkpoint.expert.key) == (theirs["id"], theirs["expert"]["key"])
        assert checkpoint == wait_for(host.jobs.checkpoint(theirs["id"], job_id=job_id))
        assert [message.type for message in checkpoint.messages] == [one["type"] for one in theirs["messages"]]
    with pytest.raises(NotFound, match="no checkpoint nosuchplace"):
        wait_for(host.jobs.checkpoint("nosuchplace"))


def test_a_new_query_branches_from_a_checkpoint_of_the_original(files: Bench) -> None:
    job_id = golden_job(files, "b_files")
    provider = ScriptedProvider(lambda request: "branched")
    host = files.host(provider, expert("filer"))
    wait_for(host.continue_job("filer", "instead", job_id=job_id, resume_from="r0mjyolzcy9isug5aqoxdie4"))
    whole = len(wait_for(host.jobs.checkpoint("d0pcnn3dk8plkq6n5csku58d")).messages)
    assert len(provider.requests[0].messages) < whole
    assert wait_for(host.audit.replay(job_id)) is not None


def test_nothing_that_reads_or_writes_it_is_imported_for_jobs_of_ours(files: Bench) -> None:
    job = wait_for(files.host([text("ok")], expert("a")).run("a", "q"))
    program = (
        "import asyncio, sys\n"
        "from perstack.core.definitions.project import Project\n"
        "from perstack.host import Host\n"
        "host = Host(Project(), storage='file:perstack')\n"
        f"print(asyncio.run(host.job({job.id!r})).status)\n"
        "print(sorted(name for name in sys.modules if name.startswith('perstack_original.')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=files.workspace, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["completed", "['perstack_original.plugin']"]
