"""Delay from submitting an order to its claim, and orders per second, on a second PostgreSQL server with syncs on.

    .venv/bin/python bench/dispatch.py [--rounds 200] [--orders 2000] [--waiting 0 1000 10000 100000]

The floor of a pickup is a NOTIFY that is received and answered on two connections to that server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import psycopg
from postgres_server import PostgresServer

from perstack.engine.plugins.registry import load_plugins
from perstack.ports.dispatcher import BEATS_EACH, Claim, Dispatcher, Order, Seat


def open_dispatcher(server: PostgresServer, schema: str) -> Dispatcher:
    return load_plugins().open_dispatcher(server.address(schema))


def format_percentiles(milliseconds: list[float]) -> str:
    ordered = sorted(milliseconds)
    return f"{statistics.median(ordered):.1f} | {ordered[len(ordered) * 95 // 100]:.1f} | {ordered[-1]:.1f}"


async def wait_for_claim(seat: Seat) -> Claim:
    while (claim := await seat.claim()) is None:
        await seat.wait(BEATS_EACH)
    return claim


async def measure_pickups(server: PostgresServer, rounds: int) -> list[float]:
    """Return the milliseconds from a submit in one dispatcher to the claim by a waiting worker of another."""
    submitter, claimer, times_ms = open_dispatcher(server, "pickup"), open_dispatcher(server, "pickup"), list[float]()
    async with claimer.seat("w") as seat:
        for number in range(rounds):
            claiming = asyncio.create_task(wait_for_claim(seat))
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            await submitter.submit(Order(f"job-{number}"))
            claim = await claiming
            times_ms.append((time.perf_counter() - began) * 1000)
            await seat.release(claim)
    await submitter.close()
    await claimer.close()
    return times_ms[rounds // 10 :]


async def measure_floor(server: PostgresServer, rounds: int) -> list[float]:
    """Return the milliseconds from one committed row and its NOTIFY to the notice."""
    times_ms = list[float]()
    async with (
        await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as sender,
        await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as listener,
    ):
        await sender.execute("CREATE TABLE floor (n int)")
        await listener.execute("LISTEN floor")
        notices = listener.notifies()
        for number in range(rounds):
            notice = asyncio.ensure_future(anext(notices))
            await asyncio.sleep(0.002)
            began = time.perf_counter()
            async with sender.transaction():
                await sender.execute("INSERT INTO floor VALUES (%s)", [number])
                await sender.execute("NOTIFY floor")
            await notice
            times_ms.append((time.perf_counter() - began) * 1000)
        await notices.aclose()
    return times_ms[rounds // 10 :]


async def measure_rates(server: PostgresServer, orders: int, waiting: int) -> tuple[float, float, float]:
    """Return orders per second: submitted; claimed and released by one task, and by four; beside `waiting` orders."""
    schema = f"rates{waiting}"
    first, second = open_dispatcher(server, schema), open_dispatcher(server, schema)
    await first.load()
    server.execute(
        f"SET search_path = {schema}_workers; INSERT INTO procrastinate_jobs (queue_name, task_name, priority, lock,"
        " queueing_lock, args) SELECT 'perstack', 'perstack.job', 0, name, name, jsonb_build_object('job_id', name)"
        f" FROM generate_series(1, {waiting}) AS n, LATERAL (SELECT 'waits-' || n AS name) AS names"
    )
    server.execute("ANALYZE")
    began = time.perf_counter()
    for start in range(0, orders, 16):
        numbers = range(start, min(start + 16, orders))
        await asyncio.gather(*(first.submit(Order(f"job-{n}", priority=1)) for n in numbers))
    submit_rate = orders / (time.perf_counter() - began)

    async def serve(seat: Seat, number: int) -> None:
        for _ in range(number):
            claim = await seat.claim()
            assert claim is not None
            await seat.release(claim)

    async with first.seat("a") as first_seat, second.seat("b") as second_seat:
        began = time.perf_counter()
        await serve(first_seat, orders // 2)
        single_rate = orders // 2 / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(serve(seat, orders // 8) for seat in (first_seat, second_seat, first_seat, second_seat)))
        parallel_rate = orders // 8 * 4 / (time.perf_counter() - began)
    await first.close()
    await second.close()
    return submit_rate, single_rate, parallel_rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--waiting", type=int, nargs="*", default=[0, 1_000, 10_000, 100_000])
    args = parser.parse_args()
    server = PostgresServer(settings={"fsync": "on", "autovacuum": "on"}).start()
    try:
        print("| ms | median | 95 of 100 | worst |\n| --- | --- | --- | --- |")
        print(f"| a notice and one row | {format_percentiles(asyncio.run(measure_floor(server, args.rounds)))} |")
        print(f"| pickup | {format_percentiles(asyncio.run(measure_pickups(server, args.rounds)))} |\n")
        print("| orders that wait | submitted/s | claimed and released/s, one at a time | four at a time |")
        print("| --- | --- | --- | --- |")
        for waiting in args.waiting:
            figures = asyncio.run(measure_rates(server, args.orders, waiting))
            print(f"| {waiting:,} | {' | '.join(f'{figure:,.0f}' for figure in figures)} |", flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
