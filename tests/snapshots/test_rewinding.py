"""Rewinds in Python: every checkpoint can be restored byte for byte, and unknown files stay."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator

import pytest
from folder_trees import Tree, edit, tree
from hosts import Bench, Seen, expert, wait_for
from toolkit_experts import with_kit

from perstack.core.definitions.project import Workspace
from perstack.errors import Conflict, StorageError, UsageError
from perstack.host import Host
from perstack.testing.scripted import text, tool, turn
from perstack.toolkit import Toolkit

Change = Callable[[], object]


class Worker:
    """A Job `j`, each step of which calls a tool that changes files."""

    def __init__(self, bench: Bench, *changes: Change, **settings: int) -> None:
        self.bench = bench
        self.seen: list[Tree] = []
        remaining: Iterator[Change] = iter(changes)
        kit = Toolkit("kit")

        @kit.tool(effect="sideEffect")
        async def change() -> str:
            """Change files."""
            next(remaining)()
            self.seen.append(tree(bench.workspace))
            return "done"

        self.host = bench.host([*(turn(tool("change")) for _ in changes), text("done")], with_kit(), plugins=(kit,))
        place = Workspace(snapshots=True, **settings)
        self.host.use(self.host.project.model_copy(update={"workspace": place}))

    def works(self) -> dict[str, Tree]:
        """Run the Job. Return the files at each checkpoint."""
        seen = Seen()
        job = wait_for(self.host.run("a", "q", job_id="j", on_event=seen))
        assert job.status == "completed", job.error
        return {step.checkpoint_id: files for step, files in zip(seen.of("finishStep"), self.seen, strict=False)}


@pytest.mark.parametrize("seed", range(4))
def test_every_checkpoint_is_had_again_and_each_rewind_can_be_undone(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    worker = Worker(bench, *([lambda: edit(bench.workspace, chance, 6)] * 5))
    edit(bench.workspace, chance, 10)
    host, places = worker.host, worker.works()
    assert len(places) > 4
    for checkpoint in chance.choices(list(places), k=6):
        if chance.random() < 0.5:
            edit(host.workspace, chance, 4)  # a person works on
        before = tree(host.workspace)
        done = wait_for(host.files.rewind("j", checkpoint))
        assert tree(host.workspace) == places[checkpoint]
        assert done.kept == ()
        assert (done.undo is None) == (before == places[checkpoint])
        if done.undo is not None and chance.random() < 0.5:
            wait_for(host.files.rewind("j", done.undo))
            assert tree(host.workspace) == before
    assert list(host.workspace.glob(".perstack-rewind*")) == []
    assert wait_for(host.audit.verify("j")).ok
    assert wait_for(host.audit.replay("j")).ok


def small_job(bench: Bench, **settings: int) -> tuple[Host, str]:
    """Run a Job whose second step removes `a.txt` and `d/b.txt`. Return its Host and its first checkpoint's id."""
    place = bench.workspace
    (place / "a.txt").write_text("one\n")
    (place / "d").mkdir()
    (place / "d" / "b.txt").write_text("b\n")
    worker = Worker(bench, lambda: None, lambda: ((place / "a.txt").unlink(), (place / "d/b.txt").unlink()), **settings)
    return worker.host, next(iter(worker.works()))


def test_what_no_snapshot_knows_stays_and_so_does_the_folder_that_holds_it(bench: Bench) -> None:
    host, first = small_job(bench, max_file_size=100)
    (host.workspace / "new").mkdir()
    (host.workspace / "new" / "file.txt").write_text("new\n")
    (host.workspace / "new" / ".env").write_text("SECRET=1\n")
    (host.workspace / "big.bin").write_bytes(b"x" * 101)
    done = wait_for(host.files.rewind("j", first))
    assert tree(host.workspace) == {
        b"a.txt": ("file", b"one\n"),
        b"d": ("folder", b""),
        b"d/b.txt": ("file", b"b\n"),
        b"new": ("folder", b""),
        b"new/.env": ("file", b"SECRET=1\n"),
        b"big.bin": ("file", b"x" * 101),
    }
    assert {(one.path, one.why) for one in done.kept} == {("new", "unknownInside"), ("big.bin", "notRecorded")}


def test_what_is_in_the_place_of_a_file_and_not_recorded_is_not_overwritten(bench: Bench) -> None:
    host, first = small_job(bench, max_file_size=100)
    (host.workspace / "a.txt").write_bytes(b"x" * 101)
    (host.workspace / "d").rmdir()
    os.mkfifo(host.workspace / "d")
    done = wait_for(host.files.rewind("j", first))
    assert tree(host.workspace) == {b"a.txt": ("file", b"x" * 101), b"d": ("special", b"")}
    assert {one.path for one in done.kept} == {"a.txt", "d", "d/b.txt"}
    assert done.undo is None


def test_a_file_that_was_ignored_then_and_is_recorded_now_stays(bench: Bench) -> None:
    (bench.workspace / ".gitignore").write_text("*.log\nbuild/\n")
    host, first = small_job(bench)
    (host.workspace / ".gitignore").write_text("")
    (host.workspace / "x.log").write_text("log\n")
    (host.workspace / "build").mkdir()
    (host.workspace / "build" / "out").write_text("out\n")
    wait_for(host.files.rewind("j", first))
    found = tree(host.workspace)
    assert found[b"x.log"] == ("file", b"log\n")
    assert found[b"build/out"] == ("file", b"out\n")
    assert found[b".gitignore"] == ("file", b"*.log\nbuild/\n")


def test_only_what_is_asked_for_is_rewound(bench: Bench) -> None:
    host, first = small_job(bench)
    wait_for(host.files.rewind("j", first, only=["d"]))
    assert tree(host.workspace) == {b"d": ("folder", b""), b"d/b.txt": ("file", b"b\n")}
    (host.workspace / "d" / "b.txt").unlink()
    (host.workspace / "d").rmdir()
    wait_for(host.files.rewind("j", first, only=["b.*"]))
    assert tree(host.workspace) == {b"d": ("folder", b""), b"d/b.txt": ("file", b"b\n")}


def test_nothing_is_rewound_while_a_job_is_driven_there(bench: Bench) -> None:
    host, first = small_job(bench)
    refused: list[str] = []

    async def work() -> None:
        other = bench.host([turn(tool("exec", {"command": "sleep", "args": ["30"]}))], expert("a"))
        began = asyncio.Event()

        def begins(event: object, line: bytes) -> None:
            if getattr(event, "type", "") == "callTools":
                began.set()

        running = asyncio.create_task(other.run("a", "q", job_id="k", on_event=begins))
        await asyncio.wait_for(began.wait(), 20)
        with pytest.raises(Conflict) as error:
            await host.files.rewind("j", first)
        refused.append(str(error.value))
        running.cancel()
        await asyncio.wait({running})

    wait_for(work())
    assert refused[0].startswith("Job k is driven in ")
    wait_for(host.files.rewind("j", first))
    assert tree(host.workspace)[b"a.txt"] == ("file", b"one\n")


def test_a_rewind_does_what_was_shown_or_nothing(bench: Bench) -> None:
    host, first = small_job(bench)
    plan = wait_for(host.files.plan_rewind("j", first))
    assert [(file.path, file.kind) for file in plan.files] == [("a.txt", "added"), ("d/b.txt", "added")]
    assert tree(host.workspace) == {b"d": ("folder", b"")}
    (host.workspace / "new.txt").write_text("new\n")
    with pytest.raises(Conflict, match="look at the new one"):
        wait_for(host.files.rewind("j", first, expected=plan.digest))
    assert set(tree(host.workspace)) == {b"d", b"new.txt"}


def test_a_job_of_another_folder_is_rewound_there_only_when_that_is_asked_for(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    host, first = small_job(bench)
    other = tmp_path_factory.mktemp("other")
    (other / "mine.txt").write_text("mine\n")
    there = Host(host.project, workspace=other, storage=host.storage)
    with pytest.raises(UsageError, match="did not work in"):
        wait_for(there.files.rewind("j", first))
    assert tree(other) == {b"mine.txt": ("file", b"mine\n")}
    wait_for(there.files.rewind("j", first, elsewhere=True))
    assert set(tree(other)) == {b"a.txt", b"d", b"d/b.txt"}


def test_files_of_a_checkpoint_are_written_to_a_new_folder_and_to_no_other(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    host, first = small_job(bench)
    target = tmp_path_factory.mktemp("other") / "deep" / "new"
    assert wait_for(host.files.write_files(first, target)) == 3
    assert tree(target) == {b"a.txt": ("file", b"one\n"), b"d": ("folder", b""), b"d/b.txt": ("file", b"b\n")}
    with pytest.raises(UsageError, match="is not empty"):
        wait_for(host.files.write_files(first, target))


def test_a_link_that_takes_the_place_of_a_folder_leads_no_write_out(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    host, first = small_job(bench)
    outside = tmp_path_factory.mktemp("outside")
    (host.workspace / "d").rmdir()
    (host.workspace / "d").symlink_to(outside)
    wait_for(host.files.rewind("j", first))
    assert list(outside.iterdir()) == []
    assert tree(host.workspace)[b"d/b.txt"] == ("file", b"b\n")


def test_a_file_that_cannot_be_put_back_leaves_all_as_it_was(bench: Bench) -> None:
    host, first = small_job(bench)
    before = tree(host.workspace)
    real = os.link

    def fails(source: bytes, target: bytes, **more: object) -> None:
        if target == b"b.txt":
            raise OSError(28, "No space left on device")
        real(source, target, **more)  # type: ignore[arg-type]

    os.link = fails  # type: ignore[assignment]
    try:
        with pytest.raises(StorageError, match="the files are as they were"):
            wait_for(host.files.rewind("j", first))
    finally:
        os.link = real
    assert tree(host.workspace) == before
    assert list(host.workspace.glob(".perstack-rewind*")) == []
