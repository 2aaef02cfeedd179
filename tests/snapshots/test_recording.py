"""Snapshots recorded by a Run: before its first step, and after each step whose calls may have changed files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hosts import Bench, Seen, expert, recording, until_it_crashes, wait_for

from perstack.core.definitions.project import MAX_FILE_SIZE
from perstack.core.files.trees import Entry, File, Link, SkippedEntry, Subfolder
from perstack.errors import DefinitionError
from perstack.host import Host
from perstack.snapshots.stored_trees import Trees
from perstack.testing.crashing_storage import CrashingStorage, CrashPoint, crash_points
from perstack.testing.scripted import text, tool, turn
from perstack.trust.definition_files import load_project


def _entries(host: Host, job_id: str, tree: str) -> dict[bytes, Entry]:
    async def work() -> dict[bytes, Entry]:
        return {path: entry async for path, entry in Trees(host.storage, job_id).entries(tree)}

    return wait_for(work())


def test_what_a_program_did_to_the_files_is_recorded_with_the_step(bench: Bench) -> None:
    (bench.workspace / "a.txt").write_text("one\ntwo\n")
    script = [
        turn(tool("exec", {"command": "sh", "args": ["-c", "echo three >> a.txt; mkdir -p d/e; ln -s a.txt l"]})),
        turn(tool("readTextFile", {"path": "a.txt"})),
        text("done"),
    ]
    host, seen = recording(bench.host(script, expert("a"))), Seen()
    job = wait_for(host.run("a", "q", on_event=seen))
    before, after = seen.of("recordSnapshot")
    assert (before.files, before.base, before.added) == (1, None, None)
    assert (after.base, after.files, after.added, after.changed, after.removed) == (before.tree, 2, 1, 1, 0)
    assert (after.lines_added, after.lines_removed) == (1, 0)
    types = seen.types()
    assert types.index("recordSnapshot") == 1
    assert types[types.index("finishStep") - 1] == "recordSnapshot"
    entries = _entries(host, job.id, after.tree)
    assert entries.keys() == {b"a.txt", b"d", b"d/e", b"l"}
    assert entries[b"l"] == Link(b"l", b"a.txt")
    assert isinstance(entries[b"d/e"], Subfolder)
    assert isinstance(entries[b"a.txt"], File)
    assert wait_for(Trees(host.storage, job.id).content(entries[b"a.txt"].digest)) == b"one\ntwo\nthree\n"


def test_nothing_is_recorded_unless_it_was_asked_for(bench: Bench) -> None:
    host, seen = bench.host([turn(tool("exec", {"command": "true", "args": []})), text("done")], expert("a")), Seen()
    wait_for(host.run("a", "q", on_event=seen))
    assert seen.of("recordSnapshot") == []
    assert b"snapshots" not in seen.lines[1]


def test_private_ignored_and_unreadable_files_are_not_recorded_and_large_ones_are_named(bench: Bench) -> None:
    top = bench.workspace
    for name in (".env", ".env.local", "keep.txt", "out/x.o", "out/keep.o", "mine/secret", "big", ".git/config"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(name * 10)
    (top / ".gitignore").write_text("*.o\nmine/\n")
    (top / "out" / ".gitignore").write_text("!keep.o\n")
    (top / ".perstackignore").write_text("!mine\n")
    (top / "big").write_bytes(b"x" * 1001)
    os.mkfifo(top / "pipe")
    host, seen = recording(bench.host([text("done")], expert("a")), max_file_size=1000), Seen()
    job = wait_for(host.run("a", "q", on_event=seen))
    (event,) = seen.of("recordSnapshot")
    entries = _entries(host, job.id, event.tree)
    recorded = {b".gitignore", b".perstackignore", b"keep.txt", b"mine", b"mine/secret", b"out", b"out/.gitignore"}
    assert entries.keys() - {b"big", b"pipe"} == recorded | {b"out/keep.o"}
    assert entries[b"big"] == SkippedEntry(b"big", "tooLarge")
    assert [(one.path, one.reason, one.size) for one in event.left_out] == [
        ("big", "tooLarge", 1001),
        ("pipe", "special", None),
    ]
    assert event.left_out_count == 2


def test_a_delegate_records_as_its_caller_does(bench: Bench) -> None:
    write = turn(tool("writeTextFile", {"path": "new.txt", "text": "new"}))
    script = {"[[boss]]": [turn(tool("w", {"query": "go"})), text("all")], "[[w]]": [write, text("done")]}
    host = recording(bench.host(script, expert("boss", delegates=("w",)), expert("w")))
    seen = Seen()
    wait_for(host.run("boss", "q", on_event=seen))
    own = [event.added for event in seen.of("recordSnapshot", run="-1")]
    below = [event.added for event in seen.of("recordSnapshot", run="-2")]
    assert (own, below) == ([None, 1], [None, 1])


def test_what_a_person_did_while_a_run_stood_still_is_no_work_of_its_next_step(bench: Bench) -> None:
    script = [
        turn(tool("exec", {"command": "sh", "args": ["-c", "echo x > own.txt"]}), tool("askUser", {"question": "?"})),
        turn(tool("exec", {"command": "true", "args": []})),
        text("done"),
    ]
    host, seen = recording(bench.host(script, expert("a", ask=True))), Seen()

    async def work() -> None:
        job = await host.run("a", "q", on_event=seen)
        assert job.question is not None
        (bench.workspace / "mine.txt").write_text("mine")
        await host.answer("yes", job_id=job.id, on_event=seen)
        assert (await host.audit.replay(job.id)).ok

    wait_for(work())
    assert [event.added for event in seen.of("recordSnapshot")] == [None, 1, 1, 0]
    types = [one for one in seen.types() if one in ("recordSnapshot", "callInteractiveTool", "resumeRun", "finishStep")]
    assert types[:5] == ["recordSnapshot", "recordSnapshot", "callInteractiveTool", "resumeRun", "recordSnapshot"]


def test_what_the_definition_says_of_snapshots_is_read_with_its_path_or_without(tmp_path: Path) -> None:
    file = tmp_path / "perstack.toml"
    for written, folder, most in (
        ("workspace = { snapshots = true }", None, MAX_FILE_SIZE),
        ('workspace = { path = "w", snapshots = true, maxFileSize = 7 }', str(tmp_path / "w"), 7),
        ('workspace = { path = "w" }', str(tmp_path / "w"), None),
        ('workspace = "w"', str(tmp_path / "w"), None),
    ):
        file.write_text(f'{written}\n[experts.a]\ninstruction = "x"\n')
        project = load_project(file).project
        assert project.folder == folder
        assert (project.snapshots and project.snapshots.max_file_size) == most
    for wrong in ("{ snapshots = 1 }", "{ snapshot = true }", "{ maxFileSize = 0 }", '{ path = "" }', "1"):
        file.write_text(f'workspace = {wrong}\n[experts.a]\ninstruction = "x"\n')
        with pytest.raises(DefinitionError, match="workspace"):
            load_project(file)


CRASHED = [
    turn(tool("exec", {"command": "sh", "args": ["-c", "echo once >> a.txt"]}), tool("askUser", {"question": "sure?"})),
    turn(tool("exec", {"command": "sh", "args": ["-c", "mkdir -p sub; echo again > sub/b.txt"]})),
    text("done"),
]


async def _live(bench: Bench, point: CrashPoint | None) -> None:
    """Run one process of the Job, which crashes at the point."""
    host = recording(bench.host(CRASHED, expert("a", ask=True), wrap=lambda inner: CrashingStorage(inner, point)))
    async with host:
        with until_it_crashes():
            if not await host.storage.has_job("job") or not (await host.storage.runs("job")).ids:
                job = await host.run("a", "q", job_id="job")
            else:
                job = await host.job("job")
                job = await (host.answer("yes", job_id="job") if job.question else host.resume("job"))
            if job.question:
                await host.answer("yes", job_id="job")


async def _check(bench: Bench, point: CrashPoint) -> None:
    async with bench.host(CRASHED, expert("a", ask=True)) as host:
        assert (await host.job("job")).status == "completed", point
        assert (await host.audit.verify("job")).ok, point
        assert (await host.audit.replay("job")).ok, point
        trees = [line.event.tree for line in await host.events("job-1") if line.event.type == "recordSnapshot"]
        found = {path: entry async for path, entry in Trees(host.storage, "job").entries(trees[-1])}
        for name in ("a.txt", "sub/b.txt"):
            entry = found.get(name.encode())
            data = await Trees(host.storage, "job").content(entry.digest) if isinstance(entry, File) else None
            assert data == ((bench.workspace / name).read_bytes() if (bench.workspace / name).exists() else None), point


def test_wherever_a_process_dies_the_last_snapshot_is_what_is_there_and_the_log_replays(
    tmp_path: Path, bench: Bench
) -> None:
    for point in crash_points(14)[::4]:
        folder = tmp_path / f"{point.moment}-{point.append}"
        folder.mkdir()
        (folder / "a.txt").write_text("first\n")
        one = bench.beside(folder)
        wait_for(_live(one, point))
        for _ in range(3):
            if _stands(one) != "completed":
                wait_for(_live(one, None))
        wait_for(_check(one, point))


def _stands(bench: Bench) -> str:
    async def work() -> str:
        async with bench.host(CRASHED, expert("a", ask=True)) as host:
            has_run = await host.storage.has_job("job") and (await host.storage.runs("job")).ids
            return (await host.job("job")).status if has_run else ""

    return wait_for(work())
