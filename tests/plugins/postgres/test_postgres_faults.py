"""What goes wrong between a process and its database: nothing acknowledged is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest
from frozen_driver import check_frozen, driver, lease_once, take_over
from hosts import closing
from postgres_proxy import Cut, Pooler, Proxy
from postgres_server import PostgresServer
from server_restart import Jobs

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.errors import Conflict, NotFound, StorageError
from perstack.ports.storage import RunRef, Storage
from perstack.testing.storage_fixture import JOB, RUN, SECONDS, new_writer, payload, wait_for
from perstack_postgres.connections import is_busy_server
from perstack_postgres.plugin import perstack_storages

THOROUGH = os.environ.get("PERSTACK_FAULTS") == "all"
JOBS = 50 if THOROUGH else 8
CUTS: tuple[Cut, ...] = ("before", "middle", "after")


def open_storage(address: str) -> Storage:
    return perstack_storages()[0].open(address.partition(":")[2], Path.cwd())


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(postgres.folder)
    yield proxy
    proxy.close()


def through_proxy(proxy: Proxy | Pooler, address: str) -> str:
    """The same store, by way of the proxy."""
    head, _, schema = address.partition("&schema=")
    return f"{head.partition('?')[0]}?host={proxy.folder}&schema={schema}"


async def a_life(storage: Storage) -> list[bytes]:
    """A Job from beginning to end, with all that a driver writes."""
    await storage.create_job(JOB)
    async with storage.lease(JOB, "me"):
        lines, head = seal(EMPTY_LOG, [payload("a")])
        await storage.append(RUN, 0, lines)
        name = await storage.put_blob(JOB, b"\0blob")
        more, head = seal(head, [payload("b"), payload("c")])
        await storage.append(RUN, 1, more)
        await storage.put_entry(JOB, 3, b"{}", expected=(RUN, head))
        last, _ = seal(head, [payload("d")])
        await storage.append(RUN, 3, last)
        await storage.put_summary(JOB, b"{}")
        assert await storage.blob(JOB, name) == b"\0blob"
    await storage.create_job("other")
    await storage.delete_job("other")
    return [*lines, *more, *last]


@pytest.mark.parametrize("cut", CUTS)
def test_a_connection_that_is_cut_in_any_statement_loses_and_repeats_nothing(
    postgres: PostgresServer, proxy: Proxy, cut: Cut
) -> None:
    at, cuts, was_reached = 1, -1, True
    while was_reached:
        cuts += 1
        address = postgres.address()
        storage, plain = open_storage(through_proxy(proxy, address)), open_storage(address)
        with closing(storage, plain):
            wait_for(storage.has_job("none"))  # who has never come to a server does not wait for it
            proxy.arm(at, cut)
            written = wait_for(a_life(storage))
            was_reached = proxy.was_reached
            proxy.arm(1 << 30, cut)
            assert wait_for(plain.read(RUN)) == written, f"{cut} statement {at}"
            assert wait_for(plain.entries()) == {JOB: b"{}"}
            assert wait_for(plain.lease_info(JOB)) is None
        at += 1 if cut == "after" or THOROUGH else 4
    print(f"the connection was cut {cut} each of {cuts} statements: nothing lost, nothing repeated")
    assert at > 20


def test_a_driver_that_was_frozen_writes_nothing_once_another_took_over(postgres: PostgresServer) -> None:
    address = postgres.address()
    storage = open_storage(address)
    with closing(storage):
        wait_for(storage.create_job(JOB))
        with driver(("perstack_postgres.plugin", address.partition(":")[2])) as frozen:
            assert check_frozen(frozen, storage) <= 10.5


def test_a_driver_that_was_cut_off_writes_nothing_once_another_took_over(
    postgres: PostgresServer, proxy: Proxy
) -> None:
    address = postgres.address()
    cut_off, storage = open_storage(through_proxy(proxy, address)), open_storage(address)

    async def work() -> None:
        async with cut_off.lease(JOB, "the cut off"):
            writer = await new_writer(cut_off)
            await writer.append("a")
            proxy.darken()
            took, records = await take_over(storage)
            assert took <= 10.5
            proxy.lighten()
            for late in (writer.append("late"), cut_off.put_summary(JOB, b"late"), cut_off.put_blob(JOB, b"late")):
                with pytest.raises(Conflict, match="lease"):
                    await late
            assert await storage.read(RUN) == records
            assert await storage.summary(JOB) is None

    with closing(cut_off, storage):
        wait_for(cut_off.create_job(JOB))
        wait_for(work())


def test_a_lease_outlives_its_connection_unless_another_takes_it(postgres: PostgresServer, proxy: Proxy) -> None:
    address = postgres.address()
    ours, other = open_storage(through_proxy(proxy, address)), open_storage(address)

    async def work() -> None:
        async with ours.lease(JOB, "ours"):
            writer = await new_writer(ours)
            await writer.append("a")
            proxy.cut_all()
            async with asyncio.timeout(SECONDS):
                while await other.lease_info(JOB) is None:
                    await asyncio.sleep(0.05)
            with pytest.raises(Conflict, match="ours"):
                await lease_once(other)
            await writer.append("b")
            async with AsyncExitStack() as held, asyncio.timeout(SECONDS):
                while True:
                    proxy.cut_all()
                    try:
                        await held.enter_async_context(other.lease(JOB, "quicker"))
                        break
                    except Conflict:  # ours connected again first: cut it off once more
                        continue
                with pytest.raises(Conflict, match="lease"):
                    await writer.append("c")
            assert len(await other.read(RUN)) == 2

    with closing(ours, other):
        wait_for(ours.create_job(JOB))
        wait_for(work())


def test_of_two_who_wait_for_a_lease_at_once_one_has_it(postgres: PostgresServer) -> None:
    address = postgres.address()
    storages = [open_storage(address) for _ in range(2)]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    taken: list[str] = []

    async def take(storage: Storage, name: str) -> str:
        try:
            async with storage.lease(JOB, name):
                taken.append(name)
                async with asyncio.timeout(SECONDS):
                    while not refused:
                        await asyncio.sleep(0.01)
                await (await new_writer(storage)).append("ours")
                return "driven"
        except Conflict as error:
            refused.append(str(error))
            return "refused"

    async def work() -> list[str]:
        async with asyncio.TaskGroup() as group:
            with psycopg.connect(postgres.dsn()) as first:
                first.execute(f"SELECT 1 FROM {address.rpartition('=')[2]}.jobs FOR UPDATE")
                both = [group.create_task(take(one, f"number {n}")) for n, one in enumerate(storages)]
                async with asyncio.timeout(SECONDS):
                    while await asyncio.to_thread(postgres.execute, waiting) != [(2,)]:
                        await asyncio.sleep(0.01)
        return sorted(one.result() for one in both)

    refused: list[str] = []
    with closing(*storages):
        wait_for(storages[0].create_job(JOB))
        assert wait_for(work()) == ["driven", "refused"]
    assert taken[0] in refused[0]


def test_an_entry_that_is_put_during_a_deletion_is_gone_with_its_job(postgres: PostgresServer) -> None:
    address = postgres.address()
    schema = address.rpartition("=")[2]
    storage = open_storage(address)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    async def work() -> None:
        writer = await new_writer(storage)
        await writer.append("a")
        await storage.put_entry(JOB, 1, b"{}", expected=(RUN, writer.head))
        with psycopg.connect(postgres.dsn()) as deleting:
            deleting.execute(f"SELECT n FROM {schema}.jobs FOR UPDATE")  # as `delete_job` does
            deleting.execute(f"DELETE FROM {schema}.entries; DELETE FROM {schema}.jobs")
            late = asyncio.create_task(storage.put_entry(JOB, 2, b"", synced=True, expected=(RUN, writer.head)))
            async with asyncio.timeout(SECONDS):
                while await asyncio.to_thread(postgres.execute, waiting) != [(1,)]:
                    await asyncio.sleep(0.01)
        with pytest.raises(NotFound):
            await late
        assert await storage.entry(JOB) is None

    with closing(storage):
        wait_for(work())


def test_processes_that_begin_at_once_on_a_new_schema_make_it_once(postgres: PostgresServer) -> None:
    address = postgres.address()
    storages = [open_storage(address) for _ in range(4)]

    async def work() -> None:
        for one in storages:
            assert not await one.has_job(JOB)  # their sessions know that there is nothing
        async with asyncio.TaskGroup() as group:
            for n, one in enumerate(storages):
                group.create_task(one.create_job(f"{n}"))
        assert sorted((await storages[0].jobs()).ids) == ["0", "1", "2", "3"]

    with closing(*storages):
        wait_for(work())


def test_a_server_that_is_restarted_costs_no_running_job_anything(tmp_path: Path) -> None:
    server = PostgresServer().start()
    address = server.address()
    storage = open_storage(address)
    written: dict[str, list[bytes]] = {}

    async def drive(job: str, restarted: asyncio.Event) -> None:
        await storage.create_job(job)
        async with storage.lease(job, f"driver of {job}"):
            writer = await new_writer(storage, RunRef(job, f"{job}-1"))
            for n in range(4):
                await writer.append(f"{n}")
                await storage.put_summary(job, b"%d" % n)
            while not restarted.is_set():
                await writer.append("meanwhile")
            for n in range(4):
                await writer.append(f"{n} after")
        written[job] = writer.written

    async def restart(restarted: asyncio.Event) -> None:
        await asyncio.sleep(0.5)
        for sign in (signal.SIGINT, signal.SIGQUIT):
            await asyncio.to_thread(server.stop, sign)
            await asyncio.to_thread(server.start)
        restarted.set()

    async def work() -> None:
        restarted = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(drive(f"job-{number}", restarted))
            group.create_task(restart(restarted))
        for job, lines in written.items():
            assert await storage.read(RunRef(job, f"{job}-1")) == lines
            assert await storage.lease_info(job) is None
        assert len(written) == 50

    try:
        asyncio.run(asyncio.wait_for(work(), 90))
        wait_for(storage.close())
    finally:
        server.close()


def test_jobs_of_a_host_continue_when_the_server_is_restarted_and_when_it_crashes(tmp_path: Path) -> None:
    server = PostgresServer().start()
    jobs = Jobs(tmp_path, server.address(), JOBS)

    async def restart() -> None:
        for sign in (signal.SIGINT, signal.SIGQUIT):
            await asyncio.to_thread(server.stop, sign)
            await asyncio.to_thread(server.start)
            await jobs.steps_of_all(2)

    try:
        print(asyncio.run(jobs.pass_through(restart)))
    finally:
        server.close()
    assert jobs.said == []


def test_a_server_that_is_gone_for_good_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_postgres.connections.RETRY_TIMEOUT_S", 1.0)
    server = PostgresServer().start()
    storage = open_storage(server.address())
    try:
        writer = wait_for(new_writer(storage))
        wait_for(writer.append("a"))
        server.stop()
        for ask in (lambda: writer.append("b"), lambda: storage.read(RUN), lambda: storage.lease_info(JOB)):
            with pytest.raises(StorageError, match="check that the server runs") as error:
                wait_for(ask())  # type: ignore[arg-type]
            assert "\n" not in str(error.value)
    finally:
        wait_for(storage.close())
        server.close()


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_is_used_if_it_keeps_sessions_and_named_if_it_does_not(postgres: PostgresServer, mode: str) -> None:
    pooler = Pooler(postgres.folder, mode)  # type: ignore[arg-type]
    address = postgres.address()
    storage = open_storage(through_proxy(pooler, address))
    try:
        if mode == "session":
            assert len(wait_for(a_life(storage))) == 4
        else:
            with pytest.raises(StorageError, match="pool_mode = session"):
                wait_for(a_life(storage))
    finally:
        wait_for(storage.close())
        pooler.close()


def test_times_of_leases_are_the_servers(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, other = open_storage(postgres.address("skewed")), open_storage(postgres.address("skewed"))

    async def work() -> None:
        async with storage.lease(JOB, "ahead"):
            monkeypatch.setattr(time, "time", lambda: 4e9)
            with pytest.raises(Conflict, match="ahead"):
                await lease_once(other)

    with closing(storage, other):
        wait_for(storage.create_job(JOB))
        wait_for(work())


@pytest.mark.parametrize("words", ["starting up", "not yet accepting connections", "shutting down"])
def test_a_server_that_begins_or_ends_is_waited_for_at_the_first_connection_too(words: str) -> None:
    assert is_busy_server(psycopg.OperationalError(f"connection failed: FATAL:  the database system is {words}"))
