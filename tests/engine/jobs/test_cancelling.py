"""Cancelling a Job, from its caller's task and from another."""

from __future__ import annotations

import asyncio

import pytest
from hosts import Begun, Bench, expert, wait_for
from toolkit_experts import with_kit

from perstack.errors import StorageError
from perstack.host import Host
from perstack.testing.crashing_storage import CrashingStorage
from perstack.testing.scripted import ScriptedProvider, text, tool, turn
from perstack.toolkit import Toolkit

SLOW_TURNS = [turn(text="late", delay_ms=60_000)]


class FullDisk(CrashingStorage):
    """A storage that fails one append after `is_full` was set."""

    is_full = False

    async def append(self, run, expected_seq, records) -> None:
        if self.is_full:
            self.is_full = False
            raise StorageError("events.jsonl: no space left on device")
        await super().append(run, expected_seq, records)


async def _begin(host: Host) -> tuple[asyncio.Task, Begun]:
    seen = Begun()
    task = asyncio.create_task(host.run("a", "q", job_id="job", on_event=seen))
    async with asyncio.timeout(10):
        await seen.generating.wait()
    return task, seen


def test_cancel_does_not_wait_for_what_else_its_caller_does(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host(SLOW_TURNS, expert("a")) as host:
            may_end = asyncio.Event()
            seen = Begun()

            async def busy() -> str:
                try:
                    await host.run("a", "q", job_id="job", on_event=seen)
                except asyncio.CancelledError:
                    await may_end.wait()
                return "did its other work"

            task = asyncio.create_task(busy())
            async with asyncio.timeout(10):
                await seen.generating.wait()
                await host.cancel("job")
                assert seen.types()[-1] == "stopRunByInterrupt"
                assert (await host.job("job")).status == "stoppedByInterrupt"
            assert not task.done()
            may_end.set()
            assert await task == "did its other work"
            assert task.cancelling() == 0, "only the Job was cancelled"

    wait_for(work())


def test_a_cancelled_job_can_be_resumed_at_once(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host(SLOW_TURNS, expert("a")) as host:
            task, _ = await _begin(host)
            await host.cancel("job")
            assert task.cancelled()
            seen = Begun()
            again = asyncio.create_task(host.resume("job", on_event=seen))
            async with asyncio.timeout(10):
                await seen.generating.wait()
            again.cancel()
            with pytest.raises(asyncio.CancelledError):
                await again
            assert seen.types() == ["resumeRun", "startGeneration", "stopRunByInterrupt"]

    wait_for(work())


def test_a_tool_that_swallows_a_cancellation_does_not_keep_its_job_going(bench: Bench) -> None:
    async def work() -> None:
        kit, begun = Toolkit("kit"), asyncio.Event()

        @kit.tool(effect="sideEffect", description="Wait.")
        async def wait() -> str:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "I went on"
            return "too late"

        provider = ScriptedProvider([turn(tool("wait", {})), text("done")])
        async with bench.host(provider, with_kit(), plugins=(kit,)) as host:
            task = asyncio.create_task(host.run("a", "q", job_id="job"))
            async with asyncio.timeout(10):
                await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await host.job("job")).status == "stoppedByInterrupt"

    wait_for(work())


@pytest.mark.parametrize("door", ["host.cancel", "the caller's task"])
def test_a_disk_error_while_a_job_is_cancelled_is_what_a_person_reads(bench: Bench, door: str) -> None:
    async def work() -> None:
        async with bench.host(SLOW_TURNS, expert("a"), wrap=FullDisk) as host:
            disk = host.storage
            assert isinstance(disk, FullDisk)
            task, _ = await _begin(host)
            disk.is_full = True
            if door == "host.cancel":
                with pytest.raises(StorageError, match="no space left"):
                    await host.cancel("job")
            else:
                task.cancel()
            with pytest.raises(StorageError, match="no space left"):
                await task

    wait_for(work())


class SlowDisk(FullDisk):
    """A storage whose append of `finishRun` blocks until `may_fail` is set, and then fails."""

    def __init__(self, storage) -> None:
        super().__init__(storage)
        self.writing = asyncio.Event()
        self.may_fail = asyncio.Event()

    async def append(self, run, expected_seq, records) -> None:
        if b'"finishRun"' in records[-1]:
            self.writing.set()
            await self.may_fail.wait()
            self.is_full = True
        await super().append(run, expected_seq, records)


def test_a_write_that_fails_after_a_cancellation_has_come_is_what_a_person_reads(bench: Bench) -> None:
    async def work() -> None:
        async with bench.host([turn(text="quick")], expert("a"), wrap=SlowDisk) as host:
            disk = host.storage
            assert isinstance(disk, SlowDisk)
            task = asyncio.create_task(host.run("a", "q", job_id="job"))
            async with asyncio.timeout(10):
                await disk.writing.wait()
            task.cancel()
            await asyncio.sleep(0)
            disk.may_fail.set()
            with pytest.raises(StorageError, match="no space left"):
                await task

    wait_for(work())
