"""Resources for 1,000,000 Jobs a day: the cost of one Job is measured, a day of them is simulated.

    .venv/bin/python bench/million.py [--jobs 100] [--steps 10] [--day 1000000] [--seconds 60] [--concurrency 100]

Measured, on this machine, with PostgreSQL's syncs on: CPU of worker and server, rows, bytes of tables and of the
write-ahead log, transactions and connections per Job, which is submitted and driven by `perstack worker` on a model
that answers at once. Simulated: Poisson arrivals with a peak at noon of twice the mean, log-normal durations with the
given median, and workers with the given concurrency. Prices are assumptions and do not include models.
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

SECONDS_PER_DAY = 86_400.0
CPU_HOUR, GB_MONTH = 0.04, 0.12
"""US dollars for a virtual core and for replicated disk: approximate prices of large clouds in 2026."""
RETENTION_DAYS = 30
TIMEOUT_S = 600.0
_SPREAD = 0.7
"""Standard deviation of the logarithm of a Job's duration."""


@dataclass
class Costs:
    """Costs of one Job."""

    worker_cpu: float
    server_cpu: float
    rows: float
    bytes: float
    wal: float
    transactions: float
    left: int
    """Orders that remain when all Jobs are done."""
    connections: int
    """Maximum number of a worker's connections."""


def server_cpu(pid: int) -> float:
    """Return the processor seconds of the server and its child processes, including ended ones."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children_cpu = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_of(pid) + children_cpu + sum(cpu_of(int(child)) for child in children)


def read_counters(server: PostgresServer) -> tuple[int, int, int, int]:
    """Return rows, bytes, bytes of the write-ahead log, and transactions."""
    tables = [str(name) for (name,) in server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'million'")]
    rows = sum(int(str(server.execute(f"SELECT count(*) FROM million.{name}")[0][0])) for name in tables)
    sizes = server.execute(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c WHERE c.relkind = 'r'"
        " AND c.relnamespace = 'million'::regnamespace"
    )
    size = int(str(sizes[0][0]))
    ((wal,),) = server.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
    server.execute("SELECT pg_stat_force_next_flush()")
    ((transactions,),) = server.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")
    return rows, size, int(str(wal)), int(str(transactions))


def wait_until_done(server: PostgresServer, number: int) -> int:
    """Wait until `number` Jobs are completed; return the maximum number of the worker's connections."""
    completed = "SELECT count(*) FROM million.jobs WHERE convert_from(summary, 'UTF8') LIKE %s"
    connected = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'worker'"
    deadline, max_connections = time.monotonic() + TIMEOUT_S, 0
    while server.execute(completed, '%"status":"completed"%') != [(number,)]:
        if time.monotonic() > deadline:
            sys.exit(f"the Jobs were not done within {TIMEOUT_S:g} s")
        max_connections = max(max_connections, int(str(server.execute(connected)[0][0])))
        time.sleep(1)
    return max_connections


async def submit_jobs(folder: Path, address: str, names: list[str]) -> None:
    async with Host.open(workspace=folder, storage=address, dispatcher=address) as host:
        slots = asyncio.Semaphore(4)

        async def submit(name: str) -> None:
            async with slots:
                await host.submit("bench", "go", job_id=name)

        await asyncio.gather(*(submit(name) for name in names))


def measure_costs(jobs: int, steps: int) -> Costs:
    server = PostgresServer(settings={"fsync": "on", "autovacuum": "on"}).start()
    folder = folder_with(one_expert(steps), [])
    address = server.address("million")
    command = [PERSTACK, "worker", "--storage", address + "&application_name=worker", "--log", "json"]
    os.environ.update({**ENV, "PERSTACK_SCRIPT": str(folder / "script.json")})
    worker = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(submit_jobs(folder, address, ["warm-up"]))
        wait_until_done(server, 1)
        counters_before, cpu, database_cpu = read_counters(server), cpu_of(worker.pid), server_cpu(server.pid)
        asyncio.run(submit_jobs(folder, address, [f"job-{number}" for number in range(jobs)]))
        connections = wait_until_done(server, jobs + 1)
        cpu, database_cpu = cpu_of(worker.pid) - cpu, server_cpu(server.pid) - database_cpu
        counters_after = read_counters(server)
        left = int(str(server.execute("SELECT count(*) FROM million_workers.procrastinate_jobs")[0][0]))
        rows, size, wal, transactions = (
            (end - start) / jobs for start, end in zip(counters_before, counters_after, strict=True)
        )
        return Costs(cpu / jobs, database_cpu / jobs, rows, size, wal, transactions, left, connections)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def arrival_times(jobs: int, chance: random.Random) -> Iterator[float]:
    """Yield times of a day, in seconds: at twice the mean rate at noon, never at midnight."""
    now, max_rate = 0.0, 2 * jobs / SECONDS_PER_DAY
    while (now := now + chance.expovariate(max_rate)) < SECONDS_PER_DAY:
        if chance.random() < (1 - math.cos(2 * math.pi * now / SECONDS_PER_DAY)) / 2:
            yield now


def simulate_day(jobs: int, places: int, median: float) -> tuple[float, float, int]:
    """Return the median and 99th percentile of the seconds Jobs wait, and the maximum number of concurrent Jobs."""
    chance, ends, waits, max_jobs = random.Random(1), list[float](), list[float](), 0
    for now in arrival_times(jobs, chance):
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        begins = now if len(ends) < places else heapq.heappop(ends)
        heapq.heappush(ends, begins + median * math.exp(chance.gauss(0, _SPREAD)))
        waits.append(begins - now)
        max_jobs = max(max_jobs, len(ends))
    waits.sort()
    return waits[len(waits) // 2], waits[len(waits) * 99 // 100], max_jobs


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_costs(costs: Costs, args: argparse.Namespace) -> None:
    mean = args.day / SECONDS_PER_DAY
    row("of", "a Job", f"{args.day:,} a day")
    row("---", "---", "---")
    for name, cpu in (("CPU of workers", costs.worker_cpu), ("CPU of PostgreSQL", costs.server_cpu)):
        row(name, f"{cpu * 1e3:.0f} ms", f"{cpu * mean:.1f} cores, at noon {2 * cpu * mean:.1f}")
    row("rows that stay", f"{costs.rows:.0f}", f"{costs.rows * args.day / 1e6:.0f} million")
    row("bytes that stay", f"{costs.bytes / 1e3:.1f} KB", f"{costs.bytes * args.day / 1e9:.0f} GB")
    rate = f"{costs.wal * mean / 1e6:.1f} MB/s"
    row("write-ahead log", f"{costs.wal / 1e3:.1f} KB", f"{costs.wal * args.day / 1e9:.0f} GB, {rate}")
    row("transactions", f"{costs.transactions:.0f}", f"{costs.transactions * mean:,.0f} a second")
    row("orders left when all is done", costs.left, "")
    cores = 2 * mean * (costs.worker_cpu + costs.server_cpu) * 24 * CPU_HOUR
    disk = costs.bytes * args.day * RETENTION_DAYS / 1e9 * GB_MONTH / 30
    print(f"\nCores for noon, all day, at ${CPU_HOUR} an hour: ${cores:,.2f} a day.")
    print(f"Jobs kept for {RETENTION_DAYS} days, at ${GB_MONTH} a GB and month: ${disk:,.2f} a day.")
    print(f"For 1,000 Jobs ${(cores + disk) / args.day * 1e3:.3f}.\n")


def print_day(costs: Costs, args: argparse.Namespace) -> None:
    row("workers", "places", "wait, median", "wait, 99 of 100", "Jobs at a time", "connections")
    row(*["---"] * 6)
    needed = 2 * args.day / SECONDS_PER_DAY * args.seconds * math.exp(_SPREAD**2 / 2) / args.concurrency
    for share in (0.8, 1.0, 1.2):
        workers = math.ceil(needed * share)
        places = workers * args.concurrency
        median, worst, max_jobs = simulate_day(args.day, places, args.seconds)
        row(workers, f"{places:,}", f"{median:.1f} s", f"{worst:,.1f} s", f"{max_jobs:,}", workers * costs.connections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--day", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--concurrency", type=int, default=100)
    args = parser.parse_args()
    costs = measure_costs(args.jobs, args.steps)
    print(f"A Job of {args.steps} steps, measured over {args.jobs}:\n")
    print_costs(costs, args)
    print_day(costs, args)


if __name__ == "__main__":
    main()
