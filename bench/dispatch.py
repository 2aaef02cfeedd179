"""How soon a worker has what was submitted, and how many orders a second PostgreSQL hands out, with its syncs on.

    .venv/bin/python bench/dispatch.py [--rounds 200] [--orders 2000] [--waiting 0 1000 10000 100000]

The floor of a pickup is a NOTIFY that is heard and answered on two connections of the same server.
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


def opened(server: PostgresServer, schema: str) -> Dispatcher:
    return load_plugins().open_dispatcher(server.address(schema))


def spread(milliseconds: list[float]) -> str:
    ordered = sorted(milliseconds)
    return f"{statistics.median(ordered):.1f} | {ordered[len(ordered) * 95 // 100]:.1f} | {ordered[-1]:.1f}"


async def picked(seat: Seat) -> Claim:
    while (claim := await seat.claim()) is None:
        await seat.wait(BEATS_EACH)
    return claim


async def pickups(server: PostgresServer, rounds: int) -> list[float]:
    """Milliseconds from a submit in one process's dispatcher to the claim in another's, of a worker that waits."""
    one, other, took = opened(server, "pickup"), opened(server, "pickup"), list[float]()
    async with other.seat("w") as seat:
        for number in range(rounds):
            waiting = asyncio.create_task(picked(seat))
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            await one.submit(Order(f"job-{number}"))
            claim = await waiting
            took.append((time.perf_counter() - began) * 1000)
            await seat.release(claim)
    await one.close()
    await other.close()
    return took[rounds // 10 :]


async def floor(server: PostgresServer, rounds: int) -> list[float]:
    """The same of a notice and one committed row."""
    took = list[float]()
    async with (
        await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as one,
        await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as other,
    ):
        await one.execute("CREATE TABLE floor (n int)")
        await other.execute("LISTEN floor")
        notices = other.notifies()
        for number in range(rounds):
            heard = asyncio.ensure_future(anext(notices))
            await asyncio.sleep(0.002)
            began = time.perf_counter()
            async with one.transaction():
                await one.execute("INSERT INTO floor VALUES (%s)", [number])
                await one.execute("NOTIFY floor")
            await heard
            took.append((time.perf_counter() - began) * 1000)
        await notices.aclose()
    return took[rounds // 10 :]


async def rates(server: PostgresServer, orders: int, waiting: int) -> tuple[float, float, float]:
    """Orders a second: submitted; claimed and released by one seat, and by four; with so many more that wait."""
    schema = f"rates{waiting}"
    one, other = opened(server, schema), opened(server, schema)
    await one.load()
    server.execute(
        f"SET search_path = {schema}_workers; INSERT INTO procrastinate_jobs (queue_name, task_name, priority, lock,"
        " queueing_lock, args) SELECT 'perstack', 'perstack.job', 0, name, name, jsonb_build_object('job_id', name)"
        f" FROM generate_series(1, {waiting}) AS n, LATERAL (SELECT 'waits-' || n AS name) AS names"
    )
    server.execute("ANALYZE")
    began = time.perf_counter()
    for start in range(0, orders, 16):
        numbers = range(start, min(start + 16, orders))
        await asyncio.gather(*(one.submit(Order(f"job-{n}", priority=1)) for n in numbers))
    submitted = orders / (time.perf_counter() - began)

    async def serve(seat: Seat, number: int) -> None:
        for _ in range(number):
            claim = await seat.claim()
            assert claim is not None
            await seat.release(claim)

    async with one.seat("a") as a, other.seat("b") as b:
        began = time.perf_counter()
        await serve(a, orders // 2)
        alone = orders // 2 / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(serve(seat, orders // 8) for seat in (a, b, a, b)))
        four = orders // 8 * 4 / (time.perf_counter() - began)
    await one.close()
    await other.close()
    return submitted, alone, four


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--orders", type=int, default=2000)
    parser.add_argument("--waiting", type=int, nargs="*", default=[0, 1_000, 10_000, 100_000])
    args = parser.parse_args()
    server = PostgresServer(settings={"fsync": "on", "autovacuum": "on"}).start()
    try:
        print("| ms | median | 95 of 100 | worst |\n| --- | --- | --- | --- |")
        print(f"| a notice and one row | {spread(asyncio.run(floor(server, args.rounds)))} |")
        print(f"| pickup | {spread(asyncio.run(pickups(server, args.rounds)))} |\n")
        print("| orders that wait | submitted/s | claimed and released/s, one at a time | four at a time |")
        print("| --- | --- | --- | --- |")
        for waiting in args.waiting:
            figures = asyncio.run(rates(server, args.orders, waiting))
            print(f"| {waiting:,} | {' | '.join(f'{one:,.0f}' for one in figures)} |", flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
