"""Copying Jobs, tasks and iterations unchanged from one storage to another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import get_args

import pytest
from terminal import Terminal, reply

from perstack.audit.storage_admin import copy_storage
from perstack.core.base.ids import OwnerKind
from perstack.engine.log.storage_access import space_of
from perstack.ports.storage import RunRef, Storage
from perstack.support.storage import every_id
from perstack.testing.crashing_storage import Crash, CrashingStorage, crash_points
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore
from perstack_filesystem.storage import FilesystemStorage

EXPERTS = """
[experts.planner]
instruction = "[[planner]]"
delegates = ["writer"]
[experts.writer]
description = "writes"
instruction = "[[writer]]"
"""
LONG = "a long text " * 4000


@pytest.fixture
def stored_jobs(terminal: Terminal) -> Terminal:
    """Return a project with two Jobs, each with delegates and a blob, and a task."""
    delegate = reply("", ("writer", {"query": "one"}), ("writer", {"query": "two"}))
    writing = reply("", ("writeTextFile", {"path": "a.txt", "text": LONG}))
    reading = reply("", ("readTextFile", {"path": "a.txt"}))
    terminal.project(EXPERTS, planner=[delegate, reply("Done.")], writer=[writing, reading, reply("Written.")])
    for job in ("first", "second"):
        assert terminal.call("run", "planner", "plan", "--job-id", job, "--provider", "scripted").code == 0
    assert terminal.call("task", "create", "deploy").code == 0
    return terminal


def contents(storage: Storage) -> dict[str, object]:
    """Return every record and blob of a storage."""

    async def read() -> dict[str, object]:
        records: dict[str, object] = {}
        for kind in get_args(OwnerKind):
            space = space_of(storage, kind)
            for of in await every_id(lambda after, space=space: space.jobs(after=after)):
                for run in await every_id(lambda after, space=space, of=of: space.runs(of, after=after)):
                    records[f"{kind} {run}"] = await space.read(RunRef(of, run))
                for name in await space.blobs(of):
                    records[f"{kind} {of} {name}"] = await space.blob(of, name)
        return records

    return asyncio.run(read())


def of_folder(terminal: Terminal) -> FilesystemStorage:
    return FilesystemStorage(terminal.workspace / "perstack")


def test_every_job_and_task_is_there_as_it_was_and_can_be_continued(stored_jobs: Terminal) -> None:
    done = stored_jobs.call("storage", "copy", "file:perstack", "sqlite:other.db")
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1] == "copied: 3"
    result = stored_jobs.call("storage", "copy", "sqlite:other.db", "file:again")
    assert result.code == 0
    assert contents(FilesystemStorage(stored_jobs.workspace / "again")) == contents(of_folder(stored_jobs))
    there = ("--storage", "sqlite:other.db")
    assert stored_jobs.call("verify", "--all", *there).code == 0
    ids = [json.loads(line)["id"] for line in stored_jobs.call("jobs", "--json", *there).lines]
    assert ids == [json.loads(line)["id"] for line in stored_jobs.call("jobs", "--json").lines]
    assert "deploy" in stored_jobs.call("task", "list", *there).out
    stored_jobs.script(planner=[reply("-"), reply("-"), reply("Once more.")])
    assert (
        stored_jobs.call("run", "planner", "more", "--continue-job", "first", "--provider", "scripted", *there).code
        == 0
    )


def test_to_copy_again_completes_what_is_missing_and_repeats_nothing(stored_jobs: Terminal) -> None:
    copy = ("storage", "copy", "file:perstack", "sqlite:other.db")
    assert stored_jobs.call(*copy, "--job", "first").lines[-1] == "copied: 1"
    stored_jobs.script(planner=[reply("-"), reply("-"), reply("Once more.")])
    assert stored_jobs.call("run", "planner", "more", "--continue-job", "first", "--provider", "scripted").code == 0
    assert stored_jobs.call(*copy).lines[-1] == "copied: 2, completed: 1"
    assert stored_jobs.call(*copy).lines == ["was there: 3"]


def test_only_what_had_an_event_since_is_copied(stored_jobs: Terminal) -> None:
    copy = ("storage", "copy", "file:perstack", "sqlite:other.db")
    assert stored_jobs.call(*copy, "--since", "2100-01-01").lines == ["there is nothing to copy"]
    assert stored_jobs.call(*copy, "--since", "7d").lines[-1] == "copied: 3"
    result = stored_jobs.call(*copy, "--since", "lately")
    assert (result.code, len(result.err.splitlines())) == (2, 1)


def test_what_was_continued_there_is_left_and_named(stored_jobs: Terminal) -> None:
    copy = ("storage", "copy", "file:perstack", "sqlite:other.db")
    stored_jobs.call(*copy)
    stored_jobs.script(planner=[reply("-"), reply("-"), reply("There.")])
    more = ("run", "planner", "more", "--continue-job", "first", "--provider", "scripted")
    assert stored_jobs.call(*more, "--storage", "sqlite:other.db").code == 0
    stored_jobs.script(planner=[reply("-"), reply("-"), reply("Here, and otherwise.")])
    assert stored_jobs.call(*more).code == 0
    before = contents_of_sqlite(stored_jobs)
    result = stored_jobs.call(*copy)
    assert result.code == 1
    assert "job first was skipped: " in result.err
    assert "it was continued there" in result.err
    assert contents_of_sqlite(stored_jobs) == before
    assert stored_jobs.call("verify", "--all", "--storage", "sqlite:other.db").code == 0


def contents_of_sqlite(terminal: Terminal) -> Mapping[str, object]:
    from perstack_sqlite.storage import SqliteStorage

    return contents(SqliteStorage(terminal.workspace / "other.db"))


def test_what_was_redacted_since_is_redacted_there(stored_jobs: Terminal) -> None:
    copy = ("storage", "copy", "file:perstack", "sqlite:other.db")
    stored_jobs.call(*copy)
    assert stored_jobs.call("redact", "first-1-1", "query", "--reason", "asked for").code == 0
    assert stored_jobs.call(*copy).code == 0
    assert contents_of_sqlite(stored_jobs) == contents(of_folder(stored_jobs))
    assert stored_jobs.call("verify", "--all", "--storage", "sqlite:other.db").code == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("file:perstack", "file:perstack"), "copied to itself"),
        (("file:perstack", "nowhere:x"), "no storage 'nowhere'"),
        (("file:perstack", "sqlite:other.db", "--job", "nope"), "no Job, task or series nope"),
    ],
)
def test_what_cannot_be_copied_is_said_in_one_line(stored_jobs: Terminal, words: tuple[str, ...], says: str) -> None:
    result = stored_jobs.call("storage", "copy", *words)
    assert result.code == 2
    assert says in result.err
    assert len(result.err.splitlines()) == 1


def test_a_copy_that_is_cut_short_anywhere_is_completed_by_the_next(stored_jobs: Terminal) -> None:
    source = of_folder(stored_jobs)

    async def copy(target: Storage) -> None:
        async for item in copy_storage(source, target):
            assert not item.problem, item.problem

    whole = contents(source)
    counting = CrashingStorage(InMemoryStorage())
    asyncio.run(copy(counting))
    for point in crash_points(counting.appends):
        store = InMemoryStore()
        with pytest.raises(Crash):
            asyncio.run(copy(CrashingStorage(InMemoryStorage(store), point)))
        asyncio.run(copy(InMemoryStorage(store)))
        assert contents(InMemoryStorage(store)) == whole


def test_an_edited_log_is_not_copied(stored_jobs: Terminal) -> None:
    path = stored_jobs.log_of("first-1")
    path.write_bytes(path.read_bytes().replace(b"plan", b"PLAN", 1))
    result = stored_jobs.call("storage", "copy", "file:perstack", "sqlite:other.db")
    assert result.code == 1
    assert "job first was skipped" in result.err
    assert result.lines[-1] == "copied: 2, skipped: 1"


def test_a_storage_is_checked_and_nothing_is_made(stored_jobs: Terminal) -> None:
    checked = stored_jobs.call("storage", "check", "file:perstack")
    assert (checked.code, checked.err) == (0, "")
    assert stored_jobs.call("storage", "check", "sqlite:new.db").code == 0
    assert not (stored_jobs.workspace / "new.db").exists()
    (stored_jobs.workspace / "text.db").write_text("no database, but a text that is long enough to be one" * 20)
    result = stored_jobs.call("storage", "check", "sqlite:text.db")
    assert result.code == 1
    assert "not an SQLite database" in result.out


def test_a_storage_that_has_no_settings_refuses_them(stored_jobs: Terminal) -> None:
    stored_jobs.project('[storageSetting]\nregion = "x"\n' + EXPERTS)
    refused = stored_jobs.call("jobs")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "storageSetting" in refused.err
