"""What goes wrong between workers and their database: no order is lost, and none is held by two."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_proxy import Cut, Pooler, Proxy
from postgres_server import PostgresServer

from perstack.errors import DispatcherError, UsageError
from perstack.ports.dispatcher import Dispatcher, Order
from perstack.testing.dispatcher_contract import next_claim
from perstack.testing.storage_fixture import wait_for
from perstack_procrastinate.plugin import perstack_dispatchers

CUTS: tuple[Cut, ...] = ("before", "middle", "after")


def open_dispatcher(address: str) -> Dispatcher:
    return perstack_dispatchers()[0].open(address.partition(":")[2])


def dispatcher_through(folder: Path, schema: str) -> Dispatcher:
    return open_dispatcher(f"postgresql://postgres@/postgres?host={folder}&schema={schema}")


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(postgres.folder)
    yield proxy
    proxy.close()


async def a_life(dispatcher: Dispatcher, plain: Dispatcher, proxy: Proxy, at: int, cut: Cut) -> bool:
    """All that happens to two orders, with one cut. Whether it came to that."""
    labels = {"a": "b"}
    async with dispatcher.seat("w", labels=labels) as seat:
        proxy.arm(at, cut)
        for order in (Order("one", labels=labels), Order("two", labels=labels), Order("one", priority=3)):
            await dispatcher.submit(order)
        one, two = await next_claim(seat), await next_claim(seat)
        assert [(claim.order.job_id, claim.is_taken_over) for claim in (one, two)] == [("one", False), ("two", False)]
        assert await seat.beat() == []
        one = await seat.change(one, Order("one", labels=labels, events=3))
        await seat.release(one, one.order)
        await seat.release(two)
        again = await next_claim(seat)
        assert again.order == one.order
        await seat.release(again)
        was_reached = proxy.was_reached
        proxy.arm(1 << 30, cut)
        load = await plain.load()
        assert (load.queued, load.running) == (0, 0)
    return was_reached


@pytest.mark.parametrize("cut", CUTS)
def test_a_connection_that_is_cut_in_any_statement_loses_no_order_and_doubles_no_claim(
    postgres: PostgresServer, proxy: Proxy, cut: Cut
) -> None:
    schema = f"cut_{cut}"

    async def work() -> None:
        at = 1
        plain = dispatcher_through(postgres.folder, schema)
        await plain.load()
        while True:
            dispatcher = dispatcher_through(proxy.folder, schema)
            was_reached = await a_life(dispatcher, plain, proxy, at, cut)
            await dispatcher.close()
            if not was_reached:
                break
            at += 3 if cut == "after" else 5
        await plain.close()
        assert at > 20, at

    wait_for(work())


_WORKER = """
import asyncio, importlib, sys
dispatcher = importlib.import_module("perstack_procrastinate.plugin").perstack_dispatchers()[0].open(sys.argv[1])

async def main():
    async with dispatcher.seat(sys.argv[2], concurrency=8) as seat:
        print("ready", flush=True)
        sys.stdin.readline()

        async def slot():
            while (claim := await seat.claim()) is not None:
                print(claim.order.job_id, int(claim.is_taken_over), flush=True)
                await seat.release(claim)

        await asyncio.gather(*(slot() for _ in range(8)))
        assert list(await seat.beat()) == []
    await dispatcher.close()

asyncio.run(main())
"""


def start_process(address: str, name: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", _WORKER, address.partition(":")[2], name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def test_two_processes_that_race_for_500_orders_claim_each_once(postgres: PostgresServer) -> None:
    address = postgres.address()
    children = [start_process(address, f"w{n}") for n in range(2)]
    try:

        async def submit() -> None:
            dispatcher = open_dispatcher(address)
            await asyncio.gather(*(dispatcher.submit(Order(f"job-{n}", priority=n % 3)) for n in range(500)))
            await dispatcher.close()

        wait_for(submit())
        assert [child.stdout.readline() for child in children if child.stdout] == ["ready\n", "ready\n"]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [child.communicate(timeout=60)[0].split("\n")[:-1] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [child.returncode for child in children] == [0, 0]
    assert Counter(line for lines in said for line in lines) == Counter(f"job-{n} 0" for n in range(500))
    assert min(len(lines) for lines in said) > 50


def test_many_processes_that_come_first_make_the_tables_once(postgres: PostgresServer) -> None:
    async def work() -> None:
        address = postgres.address()
        dispatchers = [open_dispatcher(address) for _ in range(6)]
        await asyncio.gather(*(one.submit(Order("job")) for one in dispatchers))
        assert (await dispatchers[0].load()).queued == 1
        for one in dispatchers:
            await one.close()

    wait_for(work())


def test_a_server_that_is_restarted_costs_a_seat_nothing(tmp_path: Path) -> None:
    server = PostgresServer().start()
    dispatcher = open_dispatcher(server.address())

    async def work() -> None:
        async with dispatcher.seat("w") as seat, dispatcher.seat("v") as other:
            await dispatcher.submit(Order("held"))
            held = await next_claim(seat)
            for sign in (signal.SIGINT, signal.SIGQUIT):
                waiting = asyncio.create_task(next_claim(other))
                await asyncio.to_thread(server.stop, sign)
                beating, submitting = (
                    asyncio.create_task(seat.beat()),
                    asyncio.create_task(dispatcher.submit(Order("new"))),
                )
                await asyncio.to_thread(server.start)
                assert await beating == []
                await submitting
                new = await waiting
                assert (new.order.job_id, new.is_taken_over) == ("new", False)
                await other.release(new)
            await seat.release(held)
            assert await dispatcher.order("held") is None
        await dispatcher.close()

    try:
        wait_for(work())
    finally:
        server.close()


def test_a_seat_that_was_swept_sits_down_again(postgres: PostgresServer) -> None:
    async def work() -> None:
        address = postgres.address("swept")
        dispatcher = open_dispatcher(address)
        async with dispatcher.seat("w") as seat:
            await dispatcher.submit(Order("lost"))
            lost = await next_claim(seat)
            postgres.execute(
                "SET search_path = swept_workers; UPDATE procrastinate_workers SET last_heartbeat = '2020-1-1'"
            )
            async with dispatcher.seat("v") as other:
                assert (await next_claim(other)).is_taken_over
                assert await seat.claim() is None
                await dispatcher.submit(Order("new"))
                assert (await next_claim(seat)).order.job_id == "new"
                assert await seat.beat() == [lost.id]
                assert [info.name for info in await dispatcher.workers()] == ["v", "w"]
        await dispatcher.close()

    wait_for(work())


def test_a_job_of_somebody_else_in_the_tables_is_in_nobodys_way(postgres: PostgresServer) -> None:
    async def work() -> None:
        dispatcher = open_dispatcher(postgres.address("strange"))
        async with dispatcher.seat("w") as seat:
            postgres.execute(
                "SET search_path = strange_workers;"
                "INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES ('q', 't', '{\"a\": [1]}')"
            )
            await dispatcher.submit(Order("ours"))
            assert (await next_claim(seat)).order.job_id == "ours"
            assert postgres.execute("SELECT count(*) FROM strange_workers.procrastinate_jobs") == [(2,)]
        await dispatcher.close()

    wait_for(work())


def test_a_worker_keeps_three_connections_at_most_and_no_finished_order(postgres: PostgresServer) -> None:
    async def work() -> None:
        dispatcher = open_dispatcher(postgres.address("small") + "&application_name=small")
        async with dispatcher.seat("w", concurrency=16) as seat:
            await asyncio.gather(*(dispatcher.submit(Order(f"job-{n}")) for n in range(16)))
            claims = await asyncio.gather(*(next_claim(seat) for _ in range(16)))
            assert len({claim.order.job_id for claim in claims}) == 16
            await asyncio.gather(seat.beat(), *(seat.release(claim) for claim in claims))
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'small'"
            assert postgres.execute(query)[0][0] in (2, 3)  # type: ignore[comparison-overlap]
            for table in ("procrastinate_jobs", "procrastinate_events"):
                assert postgres.execute(f"SELECT count(*) FROM small_workers.{table}") == [(0,)]
        await dispatcher.close()
        assert postgres.execute("SELECT count(*) FROM small_workers.seats") == [(0,)]

    wait_for(work())


def test_what_is_wrong_with_a_server_is_said_on_one_line_without_the_password(postgres: PostgresServer) -> None:
    for address, words in (
        (f"postgresql://u:hunter2@/nobody?host={postgres.folder}", "does not exist"),
        ("postgresql://u:hunter2@/db?host=/nowhere/at/all", "check that the server runs"),
    ):
        dispatcher = open_dispatcher(address)
        with pytest.raises(DispatcherError, match=words) as error:
            wait_for(dispatcher.submit(Order("job")))
        assert "hunter2" not in f"{error.value}{dispatcher.location}"
        assert "\n" not in str(error.value)
        assert "`storage`" not in str(error.value)
    with pytest.raises(UsageError, match=r"^dispatcher: this is not the address") as refused:
        open_dispatcher("postgresql://u:hun/ter2@x@/db")
    assert "ter2" not in str(refused.value)


def test_a_pooler_that_keeps_no_sessions_is_named(postgres: PostgresServer) -> None:
    pooler = Pooler(postgres.folder, "transaction")
    dispatcher = dispatcher_through(pooler.folder, "pooled")
    try:
        with pytest.raises(DispatcherError, match="pool_mode = session"):
            wait_for(dispatcher.submit(Order("job")))
    finally:
        wait_for(dispatcher.close())
        pooler.close()
