"""One Job that cannot be read is one row of every list, hides no other, and can be deleted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from stored_damage import reseal
from terminal import Terminal

from golden import GOLDEN
from perstack_filesystem.storage import FilesystemStorage

Harm = Callable[[Path], object]


def _event(job: Path, name: str) -> Path:
    return next(job.glob(f"runs/*/event-*-{name}.json"))


def _edited(job: Path, name: str, **keys: object) -> None:
    path = _event(job, name)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **keys}))


def _becomes(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def _log(job: Path) -> Path:
    return job / "runs" / "team-1" / "events.jsonl"


def _change_log(job: Path, old: bytes, new: bytes) -> None:
    reseal(_log(job), lambda payload: re.sub(old, new, payload))
    (job / "job.json").unlink()


ORIGINAL: dict[str, Harm] = {
    "a call without its result": lambda job: _event(job, "1-finishToolCall").unlink(),
    "a moment after the end": lambda job: _edited(job, "1-callTools", timestamp=9 * 10**15),
    "a moment of thirty digits": lambda job: _edited(job, "1-callTools", timestamp=10**30),
    "five thousand digits": lambda job: _event(job, "1-callTools").write_text('{"timestamp":' + "9" * 5000 + "}"),
    "deep JSON": lambda job: _event(job, "1-callTools").write_text("[" * 100_000),
    "no beginning": lambda job: _event(job, "1-startRun").unlink(),
    "two beginnings of one kind": lambda job: _edited(job, "1-startGeneration", type="completeRun"),
    "a folder for a file": lambda job: _becomes(_event(job, "1-callTools"), Path.mkdir),
    "a FIFO for a file": lambda job: _becomes(_event(job, "1-callTools"), os.mkfifo),
}
HARMS: dict[str, Harm] = {
    "an event that cannot follow": lambda job: _change_log(job, b'"type":"callTools"', b'"type":"finishStep"'),
    "a log that is a folder": lambda job: (_becomes(_log(job), Path.mkdir), (job / "job.json").unlink()),
    "a log that is a FIFO": lambda job: (_becomes(_log(job), os.mkfifo), (job / "job.json").unlink()),
    "a job.json that is a folder": lambda job: _becomes(job / "job.json", Path.mkdir),
    "a job.json that is a FIFO": lambda job: _becomes(job / "job.json", os.mkfifo),
    "bytes that are no text": lambda job: (
        _log(job).write_bytes(_log(job).read_bytes().replace(b"All is done", b"\xff\xfe")),
        (job / "job.json").unlink(),
    ),
    "deep arguments": lambda job: _change_log(job, rb'\{"a":1\}', b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    "arguments of five thousand digits": lambda job: _change_log(job, rb'\{"a":1\}', b'{"a":' + b"9" * 5000 + b"}"),
    "a file for the folder of Runs": lambda job: (
        shutil.rmtree(job / "runs"),
        (job / "runs").write_text(""),
        (job / "job.json").unlink(),
    ),
}


def _check_lists(terminal: Terminal, bad: str) -> None:
    rows = {row["id"]: row for row in terminal.call("jobs", "--json").events}
    assert (set(rows), rows["sound"]["status"]) == ({bad, "sound"}, "completed")
    assert rows[bad].get("damaged"), rows[bad]
    assert rows[bad]["error"]
    (waiting,) = terminal.call("inbox", "--json").events
    assert bad in json.dumps(waiting)
    checked = {row["jobId"]: row["ok"] for row in terminal.call("verify", "--all", "--json").events}
    assert checked == {bad: False, "sound": True}
    for command in ("jobs", "inbox", "cost", "du", "prune --older-than 0s --dry-run", "prune --keep-last 9 --dry-run"):
        result = terminal.call(*command.split())
        assert (result.code, result.err) == (0, ""), command
    for command in (f"log {bad}", f"log {bad} --verbose", f"export {bad} --format json", f"verify {bad}"):
        result = terminal.call(*command.split())
        assert result.code in (0, 1), command
        assert "Traceback" not in result.err
        assert len(result.err.splitlines()) < 3, result.err
    assert terminal.call("export", "sound", "--format", "json").code == 0
    assert terminal.call("log", "sound").code == 0


def _check_deleted(terminal: Terminal, bad: str) -> None:
    result = terminal.call("delete", bad, "--yes")
    assert (result.code, result.err) == (0, "")
    assert [row["id"] for row in terminal.call("jobs", "--json").events] == ["sound"]
    assert terminal.call("verify", "--all").code == 0


@pytest.mark.parametrize("harm", ORIGINAL.values(), ids=ORIGINAL)
def test_a_job_of_the_original_that_does_not_read_is_one_row_and_can_be_deleted(own_team: Terminal, harm: Harm) -> None:
    jobs = own_team.workspace / "perstack" / "jobs"
    assert own_team.call("run", "lead", "q", "--provider", "scripted", "--job-id", "sound").code == 0
    assert own_team.call("delete", "team", "--yes").code == 0
    (golden,) = (GOLDEN / "b_files" / "perstack" / "jobs").iterdir()
    shutil.copytree(golden, jobs / "bad")
    harm(jobs / "bad")
    _check_lists(own_team, "bad")
    _check_deleted(own_team, "bad")


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_job_that_does_not_read_is_one_row_and_can_be_deleted(own_team: Terminal, harm: Harm) -> None:
    assert own_team.call("run", "lead", "q", "--provider", "scripted", "--job-id", "sound").code == 0
    harm(own_team.workspace / "perstack" / "jobs" / "team")
    _check_lists(own_team, "team")
    _check_deleted(own_team, "team")


def test_a_job_whose_process_ended_before_its_first_event_is_deleted_unless_it_is_driven(own_team: Terminal) -> None:
    assert own_team.call("run", "lead", "q", "--provider", "scripted", "--job-id", "sound").code == 0
    assert own_team.call("delete", "team", "--yes").code == 0
    storage = FilesystemStorage(own_team.workspace / "perstack")

    async def while_it_is_driven() -> None:
        for job_id in ("dead", "dead-log", "dead-summary"):
            await storage.create_job(job_id)
        (own_team.workspace / "perstack" / "jobs" / "dead-log" / "runs" / "dead-log-1").mkdir(parents=True)
        (own_team.workspace / "perstack" / "jobs" / "dead-summary" / "job.json").write_text("[" * 9)
        async with storage.lease("dead", "a test"):
            held = await asyncio.to_thread(own_team.run, "delete", "dead", "--yes", "--json")
        assert (held.code, list(held.events[0]["kept"])) == (1, ["dead"])
        await storage.close()

    asyncio.run(while_it_is_driven())
    refused = own_team.call("delete", "dead")
    assert (refused.code, refused.out) == (2, "")
    assert "1 Job would be deleted permanently" in refused.err
    result = own_team.call("delete", "dead", "dead-log", "dead-summary", "--yes", "--json")
    assert result.events == [{"deleted": ["dead", "dead-log", "dead-summary"], "kept": {}}]
    again = own_team.call("delete", "dead", "--yes")
    assert again.code != 0
    assert len(again.err.splitlines()) == 1
    assert [row["id"] for row in own_team.call("jobs", "--json").events] == ["sound"]
