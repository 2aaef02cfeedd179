"""The storage contract: torn tails, damage, and leases across processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from perstack.core.base.chain import Head, open_line
from perstack.errors import Conflict, Damaged, NotFound
from perstack.ports.storage import LeaseInfo, RunRef, Storage
from perstack.testing.storage_fixture import (
    JOB,
    RUN,
    SECONDS,
    ContractBase,
    Opener,
    Writer,
    in_loop,
    new_writer,
    text_of,
    wait_for,
)

# Torn tails and damage.

# ruff: noqa: S101 - these are tests


NO_TAIL = "a crash cannot tear this storage's logs: appends are transactions of the medium"
NO_DAMAGE = "this storage's records cannot be changed from outside"


class CrashContract(ContractBase):
    """Promises 1 and 3 after a crash or damage."""

    def test_a_crash_at_any_byte_loses_no_earlier_append_and_shows_no_half_one(self, opener: Opener) -> None:
        async def work(torn: int) -> int:
            """Tear `torn` bytes off a Run's log, check it and continue it. Return the length of the last append."""
            assert opener.tear is not None
            writer = await new_writer(opener.opened[0], RunRef(JOB, f"{JOB}-{torn + 1}"))
            before = await writer.append("before")
            last = await writer.append("eins", "zwei ß")
            length = sum(len(record) + 1 for record in last)
            opener.tear(writer.ref, min(torn, length))
            reader = opener.open()
            read = await reader.read(writer.ref)
            assert read in (before, writer.written), f"half an append is seen after {torn} bytes were torn off"
            assert read == before or torn <= 1, f"{torn} bytes were torn off and none is missed"
            assert await reader.read(writer.ref, after=1) == read[1:]
            continued = Writer(reader, writer.ref, _head_of(read), read)
            await continued.append("on", "and on")
            assert await writer.storage.read(writer.ref) == continued.written
            await reader.close()
            return length

        _require_hook(opener.tear, NO_TAIL)
        opener()
        torn, length = 0, 1
        while torn <= length:
            length = wait_for(work(torn))
            torn += 1

    def test_a_crash_within_the_first_append_leaves_a_run_that_can_begin(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.tear is not None
            writer = await new_writer(opener())
            first = await writer.append("one", "two")
            opener.tear(RUN, len(first[-1]) + 1)
            assert await opener().read(RUN) == []
            restarted = Writer(opener(), RUN)
            await restarted.append("again")
            assert await opener().read(RUN) == restarted.written

        _require_hook(opener.tear, NO_TAIL)
        wait_for(work())

    @pytest.mark.parametrize("tail", [b"\0", b"\0" * 4096, b'{"type":"te', b'{"type":"te\0\0\0\0', b"garbage"])
    def test_what_a_crash_leaves_behind_the_last_record_harms_nothing(self, opener: Opener, tail: bytes) -> None:
        async def work() -> None:
            assert opener.extend is not None
            writer = await _three_appends(opener)
            opener.extend(RUN, tail)
            later = writer.again(opener())
            assert await later.storage.read(RUN) == writer.written
            assert await writer.storage.read(RUN, after=1) == writer.written[1:]
            await later.append("on")
            assert await opener().read(RUN) == later.written
            assert await writer.storage.read(RUN) == later.written

        _require_hook(opener.extend, NO_TAIL)
        wait_for(work())

    def test_a_driver_whose_log_was_cut_behind_its_back_cannot_hide_the_gap(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.tear is not None
            writer = await _three_appends(opener)
            opener.tear(RUN, 5)
            # the writer's last records are missing, so its next append does not continue the log
            with pytest.raises(Conflict):
                await writer.append("more")

        _require_hook(opener.tear, NO_TAIL)
        wait_for(work())

    @pytest.mark.parametrize("index", [0, 1, 2, 4, 5])
    def test_no_damage_passes_as_history_and_all_before_it_stays_readable(self, opener: Opener, index: int) -> None:
        async def work() -> None:
            assert opener.damage is not None
            writer = await _three_appends(opener)
            opener.damage(RUN, index)
            reader = opener()
            with pytest.raises(Damaged) as raised:
                await reader.read(RUN)
            assert raised.value.readable == index
            assert f"{index + 1}" in str(raised.value)
            assert reader.location in str(raised.value)
            assert await reader.read(RUN, limit=index) == writer.written[:index]
            assert await opener().read(RUN, limit=index) == writer.written[:index]

        _require_hook(opener.damage, NO_DAMAGE)
        wait_for(work())

    def test_a_changed_last_record_is_not_dropped_as_if_a_crash_had_torn_it(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.damage is not None
            writer = await _three_appends(opener)
            opener.damage(RUN, len(writer.written) - 1)
            with pytest.raises(Damaged) as raised:
                await opener().read(RUN)
            assert raised.value.readable == len(writer.written) - 1

        _require_hook(opener.damage, NO_DAMAGE)
        wait_for(work())

    def test_damage_of_one_run_spares_every_other(self, opener: Opener) -> None:
        async def work() -> None:
            assert opener.damage is not None
            await _three_appends(opener)
            other = Writer(opener(), RunRef(RUN.job_id, f"{RUN.job_id}-2"))
            await other.append("a", "b")
            opener.damage(RUN, 0)
            assert [text_of(record) for record in await opener().read(other.ref)] == ["a", "b"]

        _require_hook(opener.damage, NO_DAMAGE)
        wait_for(work())


async def _three_appends(opener: Opener) -> Writer:
    writer = await new_writer(opener())
    await writer.append("one")
    await writer.append("two", "drei ß")
    await writer.append("vier 四", "five", "6")
    return writer


def _head_of(records: list[bytes]) -> Head:
    return Head(len(records), open_line(records[-1]).hash)


def _require_hook(hook: object, reason: str) -> None:
    if hook is None:
        pytest.skip(reason)


# ruff: noqa: S101 - these are tests


ONE_PROCESS = "this storage lives in one process"

_CHILD = """
import asyncio, importlib, subprocess, sys
from pathlib import Path
from perstack.core.base.chain import Head, seal
from perstack.errors import Conflict
from perstack.ports.storage import RunRef
module, location, work = sys.argv[1:4]
storage = importlib.import_module(module).perstack_storages()[0].open(location, Path.cwd())

async def hold():
    async with storage.lease("job1", "the child"):
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.DEVNULL)
        print(grandchild.pid, flush=True)
        sys.stdin.read()

async def write():
    run, won = RunRef("job1", "job1-1"), 0
    print("ready", flush=True)
    sys.stdin.readline()
    while won < 40:
        records = await storage.read(run)
        from perstack.core.base.chain import open_line
        head = Head(len(records), open_line(records[-1]).hash)
        lines, _ = seal(head, [b'{"by":"%s"}' % sys.argv[4].encode()] * 2)
        try:
            await storage.append(run, head.seq, lines)
            won += 1
        except Conflict:
            pass
    await storage.close()

async def pour():
    run, head = RunRef("job1", "job1-1"), Head()
    while True:
        lines, after = seal(head, [b'{"n":%d}' % n for n in range(head.seq, head.seq + 3)])
        await storage.append(run, head.seq, lines)
        head = after
        print(head.seq, flush=True)

asyncio.run({"hold": hold, "write": write, "pour": pour}[work]())
"""


class LeaseContract(ContractBase):
    """The lease, and the fence between real processes."""

    def test_no_job_is_shown_as_driven_that_nobody_drives(self, storage: Storage) -> None:
        wait_for(storage.create_job(JOB))
        assert wait_for(storage.lease_info(JOB)) is None

    @in_loop
    async def test_every_process_sees_who_drives_a_job(self, opener: Opener) -> None:
        storage = opener()
        await storage.create_job(JOB)
        async with storage.lease(JOB, "pid 1 on höst"):
            assert await storage.lease_info(JOB) == LeaseInfo("pid 1 on höst")
            assert await opener().lease_info(JOB) == LeaseInfo("pid 1 on höst")
        assert await storage.lease_info(JOB) is None

    @in_loop
    async def test_no_job_has_two_drivers_and_the_second_learns_who_drives(self, opener: Opener) -> None:
        storage = opener()
        await storage.create_job(JOB)
        async with storage.lease(JOB, "the first"):
            for other in (storage, opener()):
                with pytest.raises(Conflict, match="the first"):
                    async with other.lease(JOB, "the second"):
                        pass
            assert await storage.lease_info(JOB) == LeaseInfo("the first")

    @in_loop
    async def test_a_driver_that_ended_or_failed_blocks_nobody(self, storage: Storage) -> None:
        await storage.create_job(JOB)
        with pytest.raises(RuntimeError):
            async with storage.lease(JOB, "one"):
                raise RuntimeError
        async with storage.lease(JOB, "two"):
            pass
        assert await storage.lease_info(JOB) is None

    @in_loop
    async def test_drivers_of_different_jobs_never_block_each_other(self, storage: Storage) -> None:
        await storage.create_job("a")
        await storage.create_job("b")
        async with storage.lease("a", "me"), storage.lease("b", "me"):
            assert await storage.lease_info("b") == LeaseInfo("me")

    @in_loop
    async def test_nobody_drives_a_job_that_is_not_there(self, storage: Storage) -> None:
        with pytest.raises(NotFound):
            async with storage.lease("nope", "me"):
                pass

    @in_loop
    async def test_no_job_is_deleted_under_its_driver(self, opener: Opener) -> None:
        storage = opener()
        writer = await new_writer(storage)
        await writer.append("x")
        async with storage.lease(JOB, "its driver"):
            with pytest.raises(Conflict, match="its driver"):
                await opener().delete_job(JOB)
            await writer.append("y")
        assert await storage.read(RUN) == writer.written
        await opener().delete_job(JOB)

    @in_loop
    async def test_no_record_is_deleted_that_whoever_deletes_has_not_seen(self, opener: Opener) -> None:
        storage = opener()
        writer = await new_writer(storage)
        await writer.append("x", "y")
        for ref, seq in ((RUN, 1), (RUN, 3), (RunRef(JOB, f"{JOB}-2"), 2)):
            with pytest.raises(Conflict):
                await opener().delete_job(JOB, expected=(ref, seq))
        assert await storage.read(RUN) == writer.written
        assert (await storage.runs(JOB)).ids == (RUN.run_id,)
        await opener().delete_job(JOB, expected=(RUN, 2))
        assert not await storage.has_job(JOB)

    def test_no_acknowledged_record_goes_with_a_deletion_at_the_same_moment(self, opener: Opener) -> None:
        async def delete() -> None:
            storage = opener.open()
            try:
                await storage.delete_job(JOB, expected=(RUN, 1))
            finally:
                await storage.close()

        async def write() -> None:
            storage = opener.open()
            try:
                await writer.again(storage).append("one more")
            finally:
                await storage.close()

        def succeeds(work: Callable[[], Coroutine[object, object, None]]) -> bool:
            try:
                wait_for(work())
            except (Conflict, NotFound):
                return False
            return True

        if opener.address is None:
            pytest.skip(ONE_PROCESS)
        with ThreadPoolExecutor(2) as pool:
            for _ in range(40):
                writer = wait_for(new_writer(opener()))
                wait_for(writer.append("x"))
                is_deleted, is_written = pool.map(succeeds, (delete, write))
                assert is_deleted != is_written
                if is_written:
                    wait_for(opener().delete_job(JOB))
                opener.close()

    def test_a_killed_driver_blocks_nobody_though_its_child_lives_on(self, opener: Opener) -> None:
        async def freed(storage: Storage) -> None:
            async with storage.lease(JOB, "the next"):
                pass

        storage = opener()
        wait_for(storage.create_job(JOB))
        with _child(opener, "hold") as holder:
            grandchild = int(_line_of(holder))
            try:
                assert wait_for(storage.lease_info(JOB)) == LeaseInfo("the child")
                with pytest.raises(Conflict, match="the child"):
                    wait_for(freed(storage))
                holder.kill()
                holder.wait(SECONDS)
                os.kill(grandchild, 0)
                deadline = time.monotonic() + opener.expiry
                while wait_for(storage.lease_info(JOB)) is not None and time.monotonic() < deadline:
                    time.sleep(0.1)  # a poll of a server, bounded above
                assert wait_for(storage.lease_info(JOB)) is None
                wait_for(freed(storage))
            finally:
                os.kill(grandchild, 9)

    def test_a_killed_process_loses_nothing_that_was_acknowledged(self, opener: Opener) -> None:
        wait_for(opener().create_job(JOB))
        with _child(opener, "pour") as child:
            acknowledged = 0
            while acknowledged < 90:
                acknowledged = int(_line_of(child))
            child.kill()
            assert child.stdout is not None
            acknowledged = max([acknowledged, *(int(line) for line in child.stdout.read().split("\n")[:-1])])
        records = wait_for(opener().read(RUN))
        assert len(records) >= acknowledged
        assert len(records) % 3 == 0, "half an append is seen"
        numbers = [int(record.split(b",")[0].removeprefix(b'{"n":').rstrip(b"}")) for record in records]
        assert numbers == list(range(len(records)))

    def test_processes_that_write_at_once_lose_and_repeat_nothing(self, opener: Opener) -> None:
        storage = opener()
        wait_for(wait_for(new_writer(storage)).append("begin"))
        with _child(opener, "write", "a") as first, _child(opener, "write", "b") as second:
            for child in (first, second):
                assert _line_of(child) == "ready"
            for child in (first, second):
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            assert [child.wait(SECONDS) for child in (first, second)] == [0, 0]
        records = wait_for(storage.read(RUN))
        assert len(records) == 1 + 2 * 2 * 40
        assert sum(b'"by":"a"' in record for record in records) == 80


@contextmanager
def _child(opener: Opener, *work: str) -> Generator[subprocess.Popen[str]]:
    if opener.address is None:
        pytest.skip(ONE_PROCESS)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, *opener.address, *work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def _line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()
