"""Due items are handled independently: an error with one is reported and stops no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hosts import Bench, expert, wait_for

from perstack.errors import StorageError
from perstack.host import Host
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import RunRef, Storage, StorageFactory
from perstack.schedules.scheduler import DueWorkResult
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore
from perstack.testing.scripted import fail, text


class Failing(CrashingStorage, StorageFactory):
    """A storage that fails calls by their name, in all spaces, and the plugin that opens it."""

    scheme = "failing"

    def __init__(self, storage: Storage, failing: dict[str, BaseException] | None = None) -> None:
        super().__init__(storage)
        self.failing: dict[str, BaseException] = {} if failing is None else failing
        """Exceptions by the name of the call, optionally with the Job."""

    def open(self, location: str, workspace: Path, **options: object) -> Storage:
        return self

    @hookimpl
    def perstack_storages(self) -> Sequence[StorageFactory]:
        return [self]

    def space(self, name: str) -> Storage:
        return Failing(super().space(name), self.failing)

    async def entries(self) -> Mapping[str, bytes]:
        self._reach("entries")
        return await super().entries()

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        self._reach("append", run.job_id)
        await super().append(run, expected_seq, records)

    async def summary(self, job_id: str) -> bytes | None:
        self._reach("summary", job_id)
        return await super().summary(job_id)

    def _reach(self, *call: str) -> None:
        if (error := self.failing.get(" ".join(call))) is not None:
            raise error


async def watched(host: Host, look: Callable[[asyncio.Queue[DueWorkResult]], Awaitable[None]]) -> None:
    """Watch until `look` has ended, and check that the watch did not end first."""
    woken = asyncio.Queue[DueWorkResult]()
    watching = asyncio.ensure_future(host.scheduler.watch(1, woken.put_nowait))
    looking = asyncio.ensure_future(look(woken))
    await asyncio.wait({watching, looking}, return_when=asyncio.FIRST_COMPLETED)
    assert not watching.done(), watching.exception()
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    await looking


async def due(host: Host, task_id: str, agent: str = "me") -> None:
    await host.tasks.create(task_id, agent_id=agent, start=True)
    await host.tasks.pause(task_id, "scheduled_wait", resume_at=1)


ERRORS = [StorageError("the disk is full"), OSError(5, "Input/output error"), ValueError("a plugin's own mistake")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_list_that_cannot_be_had_is_told_and_had_at_a_later_look(tmp_path: Path, error: Exception) -> None:
    storage = Failing(InMemoryStorage())
    host = Bench(tmp_path, "failing:").host([text("Done.")], expert("fixer"), plugins=(storage,))

    async def look(woken: asyncio.Queue[DueWorkResult]) -> None:
        storage.failing["entries"] = error
        told = await woken.get()
        assert (told.did, told.task_id) == ("failed", None)
        assert "the tasks cannot be listed" in (told.error or "")
        assert str(error) in (told.error or "")
        await due(host, "t", "fixer")
        del storage.failing["entries"]
        done = await woken.get()
        assert (done.task_id, done.did) == ("t", "worked")
        assert woken.empty()

    wait_for(watched(host, look))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_fails_for_one_task_interrupts_no_job_and_is_tried_again(tmp_path: Path, error: Exception) -> None:
    store = InMemoryStore()
    storage = Failing(InMemoryStorage(store), {"append bad": error})
    script = {"[[slow]]": [text("At last.", delay_ms=500)], "[[quick]]": [text("Done.")]}
    bench = Bench(tmp_path, "failing:")
    host = bench.host(script, expert("slow"), expert("quick"), plugins=(storage,))

    async def look(woken: asyncio.Queue[DueWorkResult]) -> None:
        await due(host, "long", "slow")
        while (await host.tasks.get("long")).job_id is None:
            await asyncio.sleep(0.001)
        await due(bench.host([], plugins=(Failing(InMemoryStorage(store)),)), "bad", "quick")
        first = await woken.get()
        assert (first.task_id, first.did) == ("bad", "failed")
        assert str(error) in (first.error or "")
        del storage.failing["append bad"]
        rest = sorted([await woken.get(), await woken.get()], key=lambda one: str(one.task_id))
        assert [(one.task_id, one.did) for one in rest] == [("bad", "worked"), ("long", "worked")]
        job_id = (await host.tasks.get("long")).job_id
        kinds = [line.event.type for line in await host.events(f"{job_id}-1")]
        assert "stopRunByInterrupt" not in kinds

    wait_for(watched(host, look))


def test_once_looks_after_the_others_and_gives_back_what_failed(tmp_path: Path) -> None:
    storage = Failing(InMemoryStorage())
    host = Bench(tmp_path, "failing:").host([], plugins=(storage,))

    async def work() -> None:
        for one in ("a", "bad", "c"):
            await due(host, one)
        storage.failing["append bad"] = StorageError("the disk is full")
        woken = {one.task_id: (one.did, one.error) for one in await host.scheduler.once()}
        assert woken == {"a": ("resumed", None), "bad": ("failed", "the disk is full"), "c": ("resumed", None)}

    wait_for(work())


def test_a_job_that_cannot_be_looked_at_is_told_by_its_id(tmp_path: Path) -> None:
    storage = Failing(InMemoryStorage())
    bench = Bench(tmp_path, "failing:")
    limited = bench.host([fail(429, "come back", retry_after=3600)], expert("a"), plugins=(storage,))

    async def work() -> None:
        job = await limited.run("a", "q")
        bench.clock.move(3_700_000)
        storage.failing[f"append {job.id}"] = StorageError("the disk is full")
        (woken,) = await limited.scheduler.once()
        assert (woken.did, woken.job_id, woken.error) == ("failed", job.id, "the disk is full")
        del storage.failing[f"append {job.id}"]
        host = bench.host([text("done")], expert("a"), plugins=(storage,))
        (woken,) = await host.scheduler.once()
        assert (woken.did, woken.job_id) == ("resumed", job.id)

    wait_for(work())


def test_a_page_of_jobs_that_never_began_hides_none_that_is_due(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        limited = bench.host([fail(429, "come back", retry_after=3600)], expert("a"))
        job = await limited.run("a", "q")
        monkeypatch.setattr("perstack.schedules.scheduler._ITEMS_PER_PAGE", 3)
        for number in range(4):
            await limited.storage.create_job(f"empty{number}")
        bench.clock.move(3_700_000)
        host = bench.host([text("done")], expert("a"))
        (woken,) = await host.scheduler.once()
        assert (woken.did, woken.job_id) == ("resumed", job.id)

    wait_for(work())
