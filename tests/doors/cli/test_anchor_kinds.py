"""An anchor also covers tasks, series of iterations, and deleted logs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from signing_keys import key_pair
from terminal import Result, Terminal, reply

from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.errors import Conflict
from perstack.host import Host

SCRIPTED = ("--provider", "scripted")
PROJECT = """
[experts.solo]
instruction = "You work alone."
[experts.solo.iterate]
evaluator = "echo '{{\\"score\\": 1}}'"
maxIterations = 1
[audit]
anchor = "file:{place}"
"""


@pytest.fixture
def away(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder outside the workspace."""
    return tmp_path_factory.mktemp("away")


@pytest.fixture(params=["heads.jsonl", ""], ids=["file", "folder"])
def project(terminal: Terminal, away: Path, request: pytest.FixtureRequest) -> Terminal:
    """Return a project with an anchor, which is a file or a folder."""
    return with_anchor(terminal, f"{away}/{request.param}")


def with_anchor(terminal: Terminal, place: str) -> Terminal:
    return terminal.project(PROJECT.format(place=place), solo=[reply("Made.")] * 4)


def did(terminal: Terminal, *words: str) -> Result:
    result = terminal.call(*words)
    assert result.code == 0, result.err
    return result


def waiting_task(terminal: Terminal, task_id: str = "t") -> None:
    """Create a task that has begun and waits for a person."""
    did(terminal, "task", "create", task_id, "--start")
    did(terminal, "task", "pause", task_id, "--reason", "human_input", "--message", "What now?")


def series(terminal: Terminal, series_id: str = "it") -> None:
    """Run a series of iterations to its end."""
    did(terminal, "iterate", "solo", "Make it", "--id", series_id, *SCRIPTED)


def records(place: Path) -> list[dict]:
    files = sorted(place.glob("*.jsonl"))
    return [json.loads(line)["predicate"] for file in files for line in file.read_text().splitlines() if line]


def log_of(terminal: Terminal, space: str, of: str) -> Path:
    return terminal.workspace / "perstack" / space / of / "runs" / f"{of}-1" / "events.jsonl"


def forget_summaries(terminal: Terminal, space: str, of: str) -> None:
    """Remove what is stored beside a log and records its end."""
    (terminal.workspace / "perstack" / space / "entries.jsonl").unlink(missing_ok=True)
    (terminal.workspace / "perstack" / space / of / "job.json").unlink(missing_ok=True)


# --- tasks and series ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["tasks", "iterations"])
@pytest.mark.parametrize("harm", ["cut", "written anew"])
def test_a_log_that_was_changed_with_all_that_knew_of_it_is_found_by_the_anchor(
    project: Terminal, away: Path, space: str, harm: str
) -> None:
    waiting_task(project, "one")
    series(project, "two")
    of = "one" if space == "tasks" else "two"
    shown = did(project, "verify", of, "--json").events[0]
    assert (shown["ok"], shown["complete"]) == (True, True)
    log = log_of(project, space, of)
    lines = log.read_bytes().splitlines()
    payloads = [open_line(line).payload for line in lines]
    payloads = payloads[:-1] if harm == "cut" else [payload.replace(b"What now?", b"No more.") for payload in payloads]
    payloads = [payload.replace(b"Make it", b"Fake it") for payload in payloads]
    log.write_bytes(b"\n".join([*seal(EMPTY_LOG, payloads)[0], b""]))
    forget_summaries(project, space, of)
    words = "the log ends at" if harm == "cut" else "the log was rewritten"
    for arguments in ([of], ["--all"]):
        result = project.call("verify", *arguments)
        assert (result.code, words in result.out) == (1, True), result.out
        assert f"the anchor file:{away}" in result.out
    (project.workspace / "perstack.toml").write_text(PROJECT.partition("[audit]")[0].format())
    assert project.call("verify", of).code == 0, "nothing else knows of it"


def test_a_task_is_anchored_whenever_it_is_changed_and_does_not_run(project: Terminal, away: Path) -> None:
    waiting_task(project)
    did(project, "task", "answer", "t", "go on")
    did(project, "task", "resume", "t")
    did(project, "task", "checkpoint", "t", "--state", "{}")
    did(project, "task", "complete", "t")
    assert [(record["jobId"], record["kind"]) for record in records(away)] == [("t", "task")] * 3
    shown = did(project, "verify", "t", "--json").events[0]
    assert (shown["complete"], shown["checked"]["heads"]) == (True, 4)


def test_what_has_the_same_id_is_not_taken_for_the_other(project: Terminal) -> None:
    did(project, "run", "solo", "Hi", "--job-id", "same", *SCRIPTED)
    waiting_task(project, "same")
    assert json.loads(did(project, "verify", "same", "--json").out)["complete"]
    assert "findings" in did(project, "verify", "--all").out


def test_records_of_tasks_are_signed(terminal: Terminal, away: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    private, public = key_pair(tmp_path_factory.mktemp("key"))
    terminal.project(PROJECT.format(place=f"{away}/") + 'signingKey = "env:AUDIT_KEY"\n')
    text = private.read_text().replace("\n", "\\n")
    (terminal.workspace / ".env").write_text(f'AUDIT_KEY="{text}"\n')
    waiting_task(terminal)
    assert "signatures in the anchor: 1;" in did(terminal, "verify", "t").out
    assert json.loads(did(terminal, "verify", "t", "--key", str(public), "--json").out)["complete"]
    _, other = key_pair(away, "other")
    result = terminal.call("verify", "t", "--key", str(other))
    assert (result.code, "record 1 of this task in the anchor" in result.out) == (1, True)


def test_an_anchor_that_fails_stops_no_task_and_no_series_and_is_tried_again(terminal: Terminal, away: Path) -> None:
    (away / "mount").write_text("no folder")
    with_anchor(terminal, f"{away}/mount/heads.jsonl")
    did(terminal, "task", "create", "t", "--start")
    paused = did(terminal, "task", "pause", "t", "--reason", "human_input", "--message", "What now?")
    assert f"the anchor file:{away}/mount/heads.jsonl did not take the heads of task t: " in paused.err
    done = did(terminal, "iterate", "solo", "Make it", "--id", "it", *SCRIPTED)
    assert "did not take the heads of series of iterations it: " in done.err
    assert f"the anchor file:{away}/mount/heads.jsonl cannot be read" in did(terminal, "verify", "t").out
    (away / "mount").unlink()
    waiting_task(terminal, "other")
    kinds = sorted((record["jobId"], record.get("kind", "job")) for record in records(away / "mount"))
    assert kinds == [("it", "iterations"), ("it-i1", "job"), ("other", "task"), ("t", "task")]
    assert "not checked" not in did(terminal, "verify", "t").out


# --- what is gone -------------------------------------------------------------------------------------------------


def test_what_was_removed_with_everything_that_knew_of_it_is_found_by_the_anchor(project: Terminal, away: Path) -> None:
    did(project, "run", "solo", "Hi", "--job-id", "job", *SCRIPTED)
    waiting_task(project)
    series(project)
    assert did(project, "verify", "--all").lines[-1].endswith("2 Jobs, 1 task, 1 series, 0 findings")
    for space in ("jobs/job", "tasks", "iterations"):
        shutil.rmtree(project.workspace / "perstack" / space)
    result = project.call("verify", "--all")
    assert result.code == 1
    for of, name in (("job", "Job"), ("t", "task"), ("it", "series of iterations")):
        assert any(
            line.startswith(f"{of}: the anchor file:{away}") and f"has heads of this {name}, the last of " in line
            for line in result.lines
        ), result.out
    assert result.lines[-1].endswith("1 Job, 0 tasks, 0 series, 3 findings")
    assert "but it is gone: somebody removed it" in project.call("verify", "job").out


def test_what_perstack_removed_itself_is_no_finding_and_its_id_can_be_used_again(project: Terminal, away: Path) -> None:
    did(project, "run", "solo", "Hi", "--job-id", "job", *SCRIPTED)
    did(project, "run", "solo", "Hi", "--job-id", "other", *SCRIPTED)
    waiting_task(project)
    did(project, "task", "delete", "t")
    delete(project, "job")
    assert [(record["jobId"], record.get("removed", False)) for record in records(away)].count(("job", True)) == 1
    assert did(project, "verify", "--all").lines[-1].endswith("1 Job, 0 tasks, 0 series, 0 findings")
    assert project.call("verify", "job").code == 2
    did(project, "run", "solo", "Hi", "--job-id", "job", *SCRIPTED)
    waiting_task(project)
    shown = did(project, "verify", "--all", "--json").events
    assert all(one["complete"] for one in shown), shown
    shutil.rmtree(project.workspace / "perstack/jobs/job")
    assert "job: the anchor" in project.call("verify", "--all").out


def test_a_removal_that_the_anchor_has_not_taken_is_named(terminal: Terminal, away: Path) -> None:
    with_anchor(terminal, f"{away}/heads.jsonl")
    did(terminal, "run", "solo", "Hi", "--job-id", "job", *SCRIPTED)
    (away / "heads.jsonl").rename(away / "kept")
    (away / "heads.jsonl").mkdir()
    (away / "heads.jsonl/job.jsonl").mkdir()
    delete(terminal, "job")
    shutil.rmtree(away / "heads.jsonl")
    (away / "kept").rename(away / "heads.jsonl")
    shown = did(terminal, "verify", "--all")
    assert "not checked: job: it is not here, and a record of its removal waits to be sent" in shown.out
    did(terminal, "run", "solo", "Hi", "--job-id", "other", *SCRIPTED)
    assert "not checked" not in did(terminal, "verify", "--all").out


def test_a_job_that_is_driven_is_not_removed_and_stays_anchored(terminal: Terminal, away: Path) -> None:
    with_anchor(terminal, f"{away}/heads.jsonl")
    did(terminal, "run", "solo", "Hi", "--job-id", "job", *SCRIPTED)

    async def main() -> None:
        host = Host.open(workspace=terminal.workspace, env=terminal.env)
        async with host, host.storage.lease("job", "a test"):
            with pytest.raises(Conflict):
                await host.jobs.delete("job")

    asyncio.run(main())
    assert [record.get("removed", False) for record in records(away)] == [False, True, False]
    assert json.loads(did(terminal, "verify", "job", "--json").out)["complete"]
    shutil.rmtree(terminal.workspace / "perstack/jobs/job")
    assert "job: the anchor" in terminal.call("verify", "--all").out


def test_stores_that_share_an_anchor_are_kept_apart(
    project: Terminal, away: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    did(project, "run", "solo", "Hi", "--job-id", "mine", *SCRIPTED)
    other = Terminal(tmp_path_factory.mktemp("other"))
    other.project((project.workspace / "perstack.toml").read_text(), solo=[reply("Made.")])
    did(other, "run", "solo", "Hi", "--job-id", "yours", *SCRIPTED)
    shown = did(project, "verify", "--all")
    assert "other stores, or from another path of this one: 1" in shown.out
    assert "yours" not in shown.out


def test_an_anchor_that_is_only_sent_to_is_named_for_each_and_for_what_may_be_gone(terminal: Terminal) -> None:
    terminal.project(PROJECT.replace("file:{place}", "https://127.0.0.1:1/heads").format(), solo=[reply("Made.")])
    did(terminal, "run", "solo", "Hi", "--job-id", "job", *SCRIPTED)
    waiting_task(terminal)
    shown = did(terminal, "verify", "--all").out
    words = "the anchor https://127.0.0.1:1/heads can only be sent to: its records are not compared"
    assert f"not checked: Job job: {words}" in shown
    assert f"not checked: Task t: {words}" in shown
    assert f"{words}; whether anything was removed is not known" in shown


# --- reading ------------------------------------------------------------------------------------------------------

watched: list[list[str]] = []
"""Paths opened by this process. They are recorded by an audit hook, which Python cannot remove again."""


def note(event: str, args: tuple[object, ...]) -> None:
    if event == "open":
        for opened in watched:
            opened.append(str(args[0]))


def test_an_anchor_that_is_one_file_is_read_once_for_a_whole_store(terminal: Terminal, away: Path) -> None:
    with_anchor(terminal, f"{away}/heads.jsonl")
    for number in range(3):
        did(terminal, "run", "solo", "Hi", "--job-id", f"job{number}", *SCRIPTED)
        waiting_task(terminal, f"t{number}")
    sys.addaudithook(note)
    opened: list[str] = []
    watched.append(opened)
    try:
        did(terminal, "verify", "--all")
    finally:
        watched.remove(opened)
    assert opened.count(f"{away}/heads.jsonl") == 1


def delete(terminal: Terminal, job_id: str) -> None:
    async def main() -> None:
        async with Host.open(workspace=terminal.workspace, env={**os.environ, **terminal.env}) as host:
            await host.jobs.delete(job_id)

    asyncio.run(main())
