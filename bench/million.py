"""What 1,000,000 Jobs a day need: what one Job costs is measured, a day of them is simulated.

    .venv/bin/python bench/million.py [--jobs 100] [--steps 10] [--day 1000000] [--seconds 60] [--concurrency 100]

Measured, on this machine, with PostgreSQL's syncs on: the CPU of a worker and of the server, rows, bytes of tables and
of the write-ahead log, transactions and connections, of a Job of so many steps that is submitted and driven by
`perstack worker` on a model that answers at once. Simulated: a day whose arrivals are Poisson's with a peak at noon of
twice the mean, each Job as long as a log-normal time of that median says, and workers that each have so many places.
Prices are assumptions, and models are not in them.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from bench import ENV, PERSTACK, cpu_of, folder_with, one_expert
from postgres_server import PostgresServer

from perstack.host import Host

DAY = 86_400.0
CPU_HOUR, GB_MONTH = 0.04, 0.12
"""US dollars, of a virtual core and of replicated disk: what they cost in 2026 at the large clouds, about."""
KEPT_DAYS = 30
SECONDS = 600.0
_SPREAD = 0.7
"""Of the logarithm of how long a Job takes."""


@dataclass
class Costs:
    """Of one Job."""

    worker_cpu: float
    server_cpu: float
    rows: float
    bytes: float
    wal: float
    transactions: float
    left: int
    """Orders that are left when all is done."""
    connections: int
    """Of a worker, at most."""


def server_cpu(pid: int) -> float:
    """Seconds of the server and of all that it has started, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_of(pid) + ended + sum(cpu_of(int(child)) for child in children)


def counts(server: PostgresServer) -> tuple[int, int, int, int]:
    """Rows, bytes, bytes of the log, transactions."""
    tables = [str(name) for (name,) in server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'million'")]
    rows = sum(int(str(server.execute(f"SELECT count(*) FROM million.{name}")[0][0])) for name in tables)
    sizes = server.execute(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c WHERE c.relkind = 'r'"
        " AND c.relnamespace = 'million'::regnamespace"
    )
    size = int(str(sizes[0][0]))
    ((wal,),) = server.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
    server.execute("SELECT pg_stat_force_next_flush()")
    ((done,),) = server.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
    return rows, size, int(str(wal)), int(str(done))


def until_done(server: PostgresServer, number: int) -> int:
    """Wait for so many Jobs; the most connections of the worker that were seen."""
    completed = "SELECT count(*) FROM million.jobs WHERE convert_from(summary, 'UTF8') LIKE %s"
    connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker'"
    deadline, most = time.monotonic() + SECONDS, 0
    while server.execute(completed, '%"status":"completed"%') != [(number,)]:
        if time.monotonic() > deadline:
            sys.exit(f"the Jobs were not done within {SECONDS:g} s")
        most = max(most, int(str(server.execute(connected)[0][0])))
        time.sleep(1)
    return most


async def submitted(folder: Path, address: str, names: list[str]) -> None:
    async with Host.open(workspace=folder, storage=address, dispatcher=address) as host:
        places = asyncio.Semaphore(4)

        async def submit(name: str) -> None:
            async with places:
                await host.submit("bench", "go", job_id=name)

        await asyncio.gather(*(submit(name) for name in names))


def measured(jobs: int, steps: int) -> Costs:
    server = PostgresServer(settings={"fsync": "on", "autovacuum": "on"}).start()
    folder = folder_with(one_expert(steps), [])
    address = server.address("million")
    command = [PERSTACK, "worker", "--storage", address + "&application_name=worker", "--log", "json"]
    os.environ.update({**ENV, "PERSTACK_SCRIPT": str(folder / "script.json")})
    worker = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(submitted(folder, address, ["warm-up"]))
        until_done(server, 1)
        before, cpu, its = counts(server), cpu_of(worker.pid), server_cpu(server.pid)
        asyncio.run(submitted(folder, address, [f"job-{number}" for number in range(jobs)]))
        connections = until_done(server, jobs + 1)
        cpu, its = cpu_of(worker.pid) - cpu, server_cpu(server.pid) - its
        after = counts(server)
        left = int(str(server.execute("SELECT count(*) FROM million_workers.procrastinate_jobs")[0][0]))
        rows, size, wal, done = ((later - at) / jobs for at, later in zip(before, after, strict=True))
        return Costs(cpu / jobs, its / jobs, rows, size, wal, done, left, connections)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def arrivals(jobs: int, chance: random.Random) -> Iterator[float]:
    """Times of a day, in seconds: twice the mean at noon, and none at midnight."""
    now, most = 0.0, 2 * jobs / DAY
    while (now := now + chance.expovariate(most)) < DAY:
        if chance.random() < (1 - math.cos(2 * math.pi * now / DAY)) / 2:
            yield now


def day(jobs: int, places: int, median: float) -> tuple[float, float, int]:
    """How long Jobs wait for a place, at the median and of 99 of 100, and how many are driven at most at a time."""
    chance, ends, waits, most = random.Random(1), list[float](), list[float](), 0
    for now in arrivals(jobs, chance):
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        begins = now if len(ends) < places else heapq.heappop(ends)
        heapq.heappush(ends, begins + median * math.exp(chance.gauss(0, _SPREAD)))
        waits.append(begins - now)
        most = max(most, len(ends))
    waits.sort()
    return waits[len(waits) // 2], waits[len(waits) * 99 // 100], most


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def tell_costs(one: Costs, args: argparse.Namespace) -> None:
    mean = args.day / DAY
    row("of", "a Job", f"{args.day:,} a day")
    row("---", "---", "---")
    for name, cpu in (("CPU of workers", one.worker_cpu), ("CPU of PostgreSQL", one.server_cpu)):
        row(name, f"{cpu * 1e3:.0f} ms", f"{cpu * mean:.1f} cores, at noon {2 * cpu * mean:.1f}")
    row("rows that stay", f"{one.rows:.0f}", f"{one.rows * args.day / 1e6:.0f} million")
    row("bytes that stay", f"{one.bytes / 1e3:.1f} KB", f"{one.bytes * args.day / 1e9:.0f} GB")
    rate = f"{one.wal * mean / 1e6:.1f} MB/s"
    row("write-ahead log", f"{one.wal / 1e3:.1f} KB", f"{one.wal * args.day / 1e9:.0f} GB, {rate}")
    row("transactions", f"{one.transactions:.0f}", f"{one.transactions * mean:,.0f} a second")
    row("orders left when all is done", one.left, "")
    cores = 2 * mean * (one.worker_cpu + one.server_cpu) * 24 * CPU_HOUR
    disk = one.bytes * args.day * KEPT_DAYS / 1e9 * GB_MONTH / 30
    print(f"\nCores for noon, all day, at ${CPU_HOUR} an hour: ${cores:,.2f} a day. Jobs kept for {KEPT_DAYS} days, at")
    print(f"${GB_MONTH} a GB and month: ${disk:,.2f} a day. For 1,000 Jobs ${(cores + disk) / args.day * 1e3:.3f}.\n")


def tell_day(one: Costs, args: argparse.Namespace) -> None:
    row("workers", "places", "wait, median", "wait, 99 of 100", "Jobs at a time", "connections")
    row(*["---"] * 6)
    needed = 2 * args.day / DAY * args.seconds * math.exp(_SPREAD**2 / 2) / args.concurrency
    for share in (0.8, 1.0, 1.2):
        workers = math.ceil(needed * share)
        places = workers * args.concurrency
        median, worst, most = day(args.day, places, args.seconds)
        row(workers, f"{places:,}", f"{median:.1f} s", f"{worst:,.1f} s", f"{most:,}", workers * one.connections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--day", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--concurrency", type=int, default=100)
    args = parser.parse_args()
    one = measured(args.jobs, args.steps)
    print(f"A Job of {args.steps} steps, measured over {args.jobs}:\n")
    tell_costs(one, args)
    tell_day(one, args)


if __name__ == "__main__":
    main()
