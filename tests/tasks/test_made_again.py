"""A task is deleted and recreated under its id while a process is changing the previous one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
from hosts import Bench, wait_for

from perstack.core.base.chain import Head
from perstack.errors import Conflict
from perstack.host import Host
from perstack.ports.storage import RunRef, Storage
from perstack.testing.crashing_storage import CrashingStorage

MOMENTS = ("before it says that it will append", "before it appends", "before it says what it has appended")


class Interrupted(CrashingStorage):
    """A storage that runs the next action of `meanwhile` before certain writes."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.meanwhile: list[Callable[[], Awaitable[None]]] = []

    async def append(self, run: RunRef, expected_seq: int, records: Sequence[bytes]) -> None:
        await self._do_meanwhile()
        await super().append(run, expected_seq, records)

    async def put_entry(
        self, job_id: str, seq: int, entry: bytes, *, synced: bool = False, expected: tuple[RunRef, Head] | None = None
    ) -> None:
        await self._do_meanwhile()
        await super().put_entry(job_id, seq, entry, synced=synced, expected=expected)

    async def _do_meanwhile(self) -> None:
        if self.meanwhile:
            await self.meanwhile.pop(0)()


class Whole(CrashingStorage):
    """A storage with another storage for its tasks."""

    def __init__(self, storage: Storage, tasks: Storage) -> None:
        super().__init__(storage)
        self._tasks = tasks

    def space(self, name: str) -> Storage:
        return self._tasks if name == "tasks" else super().space(name)


async def nothing() -> None: ...


async def made_again(host: Host, events: int) -> None:
    await host.tasks.delete("t")
    await host.tasks.create("t", description="new")
    if events > 1:
        await host.tasks.start("t")
    for number in range(2, events):
        await host.tasks.checkpoint("t", state={"number": number})


@pytest.mark.parametrize("moment", range(3), ids=MOMENTS)
@pytest.mark.parametrize("events", [1, 2, 3, 4])
def test_what_an_earlier_task_was_hurts_none_that_is_made_again_under_its_id(
    bench: Bench, moment: int, events: int
) -> None:
    holder: list[Interrupted] = []

    def wrap(storage: Storage) -> Storage:
        holder.append(Interrupted(storage.space("tasks")))
        return Whole(storage, holder[0])

    async def work() -> None:
        slow, other = bench.host((), wrap=wrap), bench.host(())
        await other.tasks.create("t", description="old")
        await other.tasks.start("t")
        holder[0].meanwhile = [*[nothing] * moment, lambda: made_again(other, events)]
        change = slow.tasks.checkpoint("t", state={"number": 9}, expected_version=2)
        if moment == 2:
            await change
        else:
            with pytest.raises(Conflict, match="written to by another process"):
                await change
        assert holder[0].meanwhile == []
        for host in (slow, other):
            task = await host.tasks.get("t")
            assert (task.description, task.version) == ("new", events)
            (listed,) = (await host.tasks.list()).tasks
            assert (listed.task_id, listed.version) == ("t", events)
            assert (await host.audit.verify("t")).findings == ()

    wait_for(work())
