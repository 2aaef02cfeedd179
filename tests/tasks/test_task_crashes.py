"""Tasks survive crashes of processes that work on them, and of two concurrent writers one fails."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hosts import Bench, wait_for

from perstack.errors import Conflict, NotAllowed, NotFound
from perstack.memory import ExecutionMemory
from perstack.testing.crashing_storage import Crash
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore

SCRIPT = Path(__file__).parents[1] / "support" / "file_refactoring.py"
FILES = 42
THOROUGH = os.environ.get("PERSTACK_FAULTS") == "all"
KILLS = 20 if THOROUGH else 8
TASKS = 10_000 if THOROUGH else 2_000


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/state.db"])
def test_a_script_killed_at_random_moments_processes_each_of_42_files_once(storage: str, tmp_path: Path) -> None:
    chance = random.Random(42)

    def run(lines: int | None) -> bool:
        """Let the program print so many lines, then kill it. Return whether it ended by itself."""
        command = [sys.executable, str(SCRIPT), storage, str(FILES)]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if lines is None:
                assert process.stdout.read().endswith("end\n")
                return process.wait(60) == 0
            for _ in range(lines):
                process.stdout.readline()
            # a random place between this line and the next, by busy waiting
            for _ in range(chance.randrange(30_000)):
                pass
            process.kill()
            return "end" in process.stdout.read()

    ended = [run(chance.choice((0, 1, 1, 2, 3))) for _ in range(KILLS)]
    assert not all(ended)
    assert run(None)
    files = [tmp_path / f"file{number}.py" for number in range(FILES)]
    assert {file.read_text() for file in files} == {"refactored\n"}

    async def check() -> None:
        async with ExecutionMemory.open(workspace=tmp_path, storage=storage) as memory:
            task = await memory.get("refactor")
            assert (task.status, task.result) == ("completed", FILES)
            kept = [event for event in await memory.history("refactor") if event.type == "checkpointTask"]
            done = Counter(str((event.data or {})["file"]) for event in kept)
            assert done == Counter({f"file{number}.py": 1 for number in range(FILES)})
            assert [listed.status for listed in (await memory.list()).tasks] == ["completed"]

    wait_for(check())


def test_of_many_writers_that_expect_one_version_exactly_one_succeeds(bench: Bench) -> None:
    async def work() -> None:
        memories = [bench.host([]).tasks for _ in range(6)]
        version = (await memories[0].create("t", start=True)).version
        for _ in range(10):
            writes = (one.checkpoint("t", {"by": n}, expected_version=version) for n, one in enumerate(memories))
            done = await asyncio.gather(*writes, return_exceptions=True)
            assert sum(isinstance(one, Conflict) for one in done) == len(memories) - 1
            version += 1
        assert (await memories[0].get("t")).version == version

    wait_for(work())


def test_writers_that_expect_nothing_lose_nothing(bench: Bench) -> None:
    async def work() -> None:
        memories = [bench.host([]).tasks for _ in range(4)]
        await memories[0].create("t", start=True)
        await asyncio.gather(*(memory.checkpoint("t", {"n": n}) for n in range(5) for memory in memories))
        assert (await memories[0].get("t")).checkpoints == 20
        assert [task.checkpoints for task in (await memories[0].list()).tasks] == [20]

    wait_for(work())


def test_of_two_that_create_or_resume_a_task_one_succeeds(bench: Bench) -> None:
    async def work() -> None:
        memories = [bench.host([]).tasks for _ in range(2)]
        done = await asyncio.gather(*(memory.create("t", start=True) for memory in memories), return_exceptions=True)
        assert sum(isinstance(one, NotAllowed) for one in done) == 1
        await memories[0].pause("t", "checkpoint")
        done = await asyncio.gather(*(memory.resume("t") for memory in memories), return_exceptions=True)
        assert sum(isinstance(one, NotAllowed) for one in done) == 1

    wait_for(work())


def test_of_writing_to_a_task_and_deleting_it_at_one_version_one_succeeds(bench: Bench) -> None:
    async def work() -> None:
        one, other = (bench.host([]).tasks for _ in range(2))
        for _ in range(10):
            version = (await one.create("t", start=True)).version
            done = await asyncio.gather(
                one.delete("t", expected_version=version),
                other.checkpoint("t", {"n": 1}, expected_version=version),
                return_exceptions=True,
            )
            assert sum(isinstance(each, Conflict | NotFound) for each in done) == 1
            if done[0] is not None:
                assert (await one.get("t")).state == {"n": 1}
                with pytest.raises(Conflict, match="of version 3, not 2"):
                    await one.delete("t", expected_version=version)
                await one.delete("t")

    wait_for(work())


class DyingStorage(InMemoryStorage):
    """A storage that crashes at its n-th write."""

    left = 1 << 30

    def space(self, name: str) -> DyingStorage:
        return DyingStorage(self.store.spaces.setdefault(name, InMemoryStore()))

    def write(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    async def create_job(self, job_id: str) -> None:
        self.write()
        await super().create_job(job_id)

    async def append(self, run, expected_seq, records) -> None:
        self.write()
        await super().append(run, expected_seq, records)

    async def put_entry(self, job_id, seq, entry, *, synced=False, expected=None) -> None:
        self.write()
        await super().put_entry(job_id, seq, entry, synced=synced, expected=expected)


def test_a_list_never_lies_wherever_a_writer_dies() -> None:
    async def work() -> None:
        for left in range(12):
            store = InMemoryStore()
            storage = DyingStorage(store)
            storage.space("tasks").left = left
            dying = ExecutionMemory(storage)
            try:
                await dying.create("t", start=True)
                await dying.pause("t", "scheduled_wait", resume_at=1, state={"n": 1})
                await dying.resume("t")
            except Crash:
                pass
            later = ExecutionMemory(InMemoryStorage(store))
            listed = (await later.list()).tasks
            if not await later.log.events("t"):
                assert listed == ()
                await later.create("t")
                continue
            task = await later.get("t")
            assert [(one.version, one.status) for one in listed] == [(task.version, task.status)]

    wait_for(work())


def test_thousands_of_tasks_are_listed_and_one_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # this test does not simulate power loss, and a busy disk takes minutes for so many syncs
    for sync in ("os.fsync", "perstack_filesystem.log_file.sync_data", "perstack_filesystem.entry_index.sync_data"):
        monkeypatch.setattr(sync, lambda fd: None)

    async def work() -> None:
        async with ExecutionMemory.open(workspace=tmp_path) as memory:
            for number in range(TASKS):
                await memory.create(f"t{number}", agent_id=f"agent{number % 100}", start=number % 2 == 0)
        async with ExecutionMemory.open(workspace=tmp_path) as memory:
            loop = asyncio.get_running_loop()
            began = loop.time()
            page = await memory.list(status="running", agent_id="agent4", older_than=0)
            between = loop.time()
            task = await memory.get("t1777")
            took = (between - began, loop.time() - between)
        assert len(page.tasks) == TASKS // 100
        assert {task.agent_id for task in page.tasks} == {"agent4"}
        assert task.name == "t1777"
        # many times the duration on an idle machine (docs/speed.md), since other tests run concurrently
        assert max(took) < 2 * TASKS / 10_000

    wait_for(work(), 100)
