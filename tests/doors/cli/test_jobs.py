"""`perstack jobs`."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from terminal import Terminal, reply

GOLDEN = Path(__file__).parents[2] / "golden"
ORIGINAL = "dm0jg80payzmbfw1vfv4ry05"


@pytest.fixture
def three(terminal: Terminal) -> Terminal:
    """Return a project with the Jobs one, two and three, written in this order."""
    terminal.project('[experts.a]\ninstruction = "i"\n', a=[reply("Done.", usage=(1200, 34))])
    for name in ("one", "two", "three"):
        result = terminal.call("run", "a", f"query {name}", "--provider", "scripted", "--job-id", name)
        assert result.code == 0, result.err
    return terminal


def test_jobs_are_listed_newest_first_with_expert_status_steps_tokens_cost_and_time(three: Terminal) -> None:
    lines = three.call("jobs").lines
    assert lines[0].split() == ["Job", "Expert", "status", "steps", "tokens", "cost", "when", "query"]
    assert [line.split()[0] for line in lines[1:]] == ["three", "two", "one"]
    assert lines[1].split() == ["three", "a", "completed", "1", "1,234", "unknown", "just", "now", "query", "three"]


def test_json_is_each_jobs_summary_on_one_line(three: Terminal) -> None:
    jobs = three.run("jobs", "--json").events
    assert [job["id"] for job in jobs] == ["three", "two", "one"]
    assert jobs[0]["usage"] == {"inputTokens": 1200, "outputTokens": 34, "totalTokens": 1234}


def test_jobs_are_paged_and_a_line_says_how_to_see_more(three: Terminal) -> None:
    result = three.call("jobs", "--take", "2")
    assert [line.split()[0] for line in result.lines[1:3]] == ["three", "two"]
    assert result.lines[3] == "there are more: see the next with --offset 2, or all with --all"
    assert [job["id"] for job in three.call("jobs", "--json", "--take", "1", "--offset", "1").events] == ["two"]
    assert [job["id"] for job in three.call("jobs", "--json", "--all", "--offset", "1").events] == ["two", "one"]
    assert len(three.call("jobs", "--all").lines) == 4
    assert three.call("jobs", "--offset", "3").lines == ["no Jobs beyond these"]


def test_a_job_that_waits_shows_its_question_and_how_to_answer(waiting: Terminal) -> None:
    result = waiting.call("jobs")
    assert "waiting" in result.lines[1]
    assert "question: Tea or coffee?" in result.lines[1]
    assert "perstack answer" in result.lines[2]


def test_a_failed_job_shows_its_error(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "i"\n', a=[{"error": {"status": 400, "message": "bad words"}}])
    assert terminal.call("run", "a", "q", "--provider", "scripted").code == 1
    line = terminal.call("jobs").lines[1]
    assert "failed" in line
    assert "error: bad words" in line


def test_a_job_whose_process_died_is_listed_as_interrupted(three: Terminal) -> None:
    # job.json as the process left it, and the log cut off before its end
    summary = three.jobs() / "two" / "job.json"
    summary.write_text(summary.read_text().replace('"completed"', '"running"'))
    log = three.log_of("two-1")
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    os.utime(summary, (1, 1))
    for _ in range(2):  # looking at it does not make it the latest
        listed = [(job["id"], job["status"]) for job in three.call("jobs", "--json").events]
        assert listed == [("three", "completed"), ("one", "completed"), ("two", "stoppedByInterrupt")]
    assert three.call("log").lines[0].startswith("Job three ")


def test_a_folder_of_the_original_that_cannot_be_read_is_listed_and_hides_no_other(three: Terminal) -> None:
    shutil.copytree(GOLDEN / "b_files" / "perstack" / "jobs", three.jobs(), dirs_exist_ok=True)
    event = next((three.jobs() / ORIGINAL / "runs").glob("*/event-*-callTools.json"))
    event.write_text("{")
    listed = {job["id"]: job for job in three.call("jobs", "--json").events}
    assert listed["one"]["status"] == "completed"
    assert str(event) in listed[ORIGINAL]["error"]
    assert f"{ORIGINAL}  ?" in three.call("jobs").out


def test_without_jobs_it_says_how_to_start_one(terminal: Terminal) -> None:
    result = terminal.call("jobs")
    assert (result.code, result.lines) == (0, ["no Jobs yet; start one with: perstack run EXPERT QUERY"])
    assert terminal.call("jobs", "--json").out == ""


def test_lines_fit_a_terminal(three: Terminal) -> None:
    three.project('[experts.a]\ninstruction = "i"\n', a=[reply("Done.")])
    assert three.call("run", "a", "long " * 100, "--provider", "scripted").code == 0
    seen = re.sub(r"\x1b\[[0-9;]*m", "", three.look("jobs", columns=70))
    assert max(map(len, seen.splitlines())) == 70
    assert "…" in seen
    assert "long " * 50 in three.run("jobs").out


def test_labels_given_to_a_run_find_its_job(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "i"\n', a=[reply("Done.")])
    for name, team in (("one", "blue"), ("two", "red")):
        run = ("run", "a", "q", "--provider", "scripted", "--job-id", name, "--label", f"team={team}", "--label", "x=1")
        assert terminal.call(*run).code == 0
    assert [job["labels"] for job in terminal.call("jobs", "--json").events] == [
        {"team": "red", "x": "1"},
        {"team": "blue", "x": "1"},
    ]
    assert [job["id"] for job in terminal.call("jobs", "--json", "--label", "team=blue").events] == ["one"]
    assert terminal.call("jobs", "--label", "team=green").lines == ["no Jobs with team=green"]
    result = terminal.call("run", "a", "q", "--provider", "scripted", "--label", "team")
    assert (result.code, "KEY=VALUE" in result.err) == (2, True)


def test_the_model_is_a_column_of_wide_and_stands_in_the_log_of_each_run(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "i"\n', a=[reply("One."), reply("Two.")])
    for more in (("--job-id", "one"), ("--continue-job", "one", "--model", "larch\x1b[31m")):
        result = terminal.call("run", "a", "q", "--provider", "scripted", *more)
        assert result.code == 0, result.err
    lines = terminal.call("jobs", "--wide").lines
    assert lines[0].split()[:4] == ["Job", "Expert", "model", "status"]
    assert "scripted/larch [31m, scripted/scripted" in lines[1]
    log = terminal.call("log", "one").out
    assert "\x1b" not in log
    assert "  model   scripted/larch [31m, scripted/scripted\n" in log
    rows = [line.split(" model ")[1].strip() for line in log.splitlines() if " 1 model " in line]
    assert rows == ["scripted/scripted", "scripted/larch [31m"]
