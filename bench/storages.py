"""Cost of a step, a page of 10,000 Jobs and the inbox on each storage, in one run, with servers on this machine.

    .venv/bin/python bench/storages.py [--steps 50 200 1000] [--jobs 10000]

PostgreSQL is the tests' server (`make install` does not install it, `make test` does), with syncs on; S3 is moto, which
is slow: compare its requests, and a step with the requests of each kind in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import bench
from bench import folder_with, one_expert, run, slowdown
from cutting_proxy import Cutting, cutting
from jobs import make_summary
from postgres_server import PostgresServer
from s3_server import BUCKET, KEYS, bucket, server_variables, serving

from perstack.engine.jobs.reader import JobReader
from perstack.engine.plugins.registry import load_plugins
from perstack.memory import ExecutionMemory
from perstack.ports.storage import Storage

ROUNDS = 9
CONCURRENCY = 16


def print_step_table(storages: dict[str, str], numbers: list[int]) -> None:
    """Print the time between the events that a command prints as each step ends."""
    print("| storage | steps | ms a step | of the quickest 20 in a row | last tenth / first |")
    print("| --- | --- | --- | --- | --- |")
    for name, storage in storages.items():
        for steps in numbers:
            folder = folder_with(one_expert(steps), [])
            storage_args = ("--storage", storage.replace("SCHEMA", f"steps{steps}"))
            figures = run(folder, "run", "bench", "go", "--provider", "scripted", *storage_args)
            events = [json.loads(line) for line in figures.stdout.splitlines()]
            times = [event["timestamp"] for event in events if event["type"] == "finishStep"]
            step_ms = (times[-1] - times[0]) / max(len(times) - 1, 1)
            # Other load on the machine slows most stretches of 20 steps, but hardly all.
            best_ms = min((end - start) / 20 for start, end in zip(times, times[20:], strict=False))
            print(f"| {name} | {steps} | {step_ms:.2f} | {best_ms:.2f} | {slowdown(times):.2f} |", flush=True)


async def measure_floors(server: PostgresServer, endpoint: str) -> str:
    """Return the milliseconds that a step needs at least: a commit of a row, and a request that writes or reads."""
    import obstore
    import psycopg

    with psycopg.connect(server.dsn(), autocommit=True) as database:
        database.execute("CREATE TABLE IF NOT EXISTS floor (line bytea)")
        commit = median_ms(lambda: database.execute("INSERT INTO floor VALUES (%s)", [b"x" * 1000]))
    store = bucket(endpoint)
    put = median_ms(lambda: obstore.put(store, "floor", b"x" * 1000))
    get = median_ms(lambda: obstore.get(store, "floor").bytes())
    return (
        f"floors: a commit in PostgreSQL {commit:.2f} ms; a request of the S3 server {put:.2f} (PUT), {get:.2f} (GET)"
    )


def median_ms(work: Callable[[], object], times: int = 100) -> float:
    """Return the median of the milliseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return sorted(took)[times // 2] * 1000


def measure_requests(endpoint: str) -> str:
    """Return the requests of a Job in S3: for each step, and for the beginning and end of a Job."""
    with cutting(endpoint) as (address, state):
        requests_of_10, requests_of_40 = (count_requests(steps, address, state) for steps in (10, 40))
    per_step = (requests_of_40 - requests_of_10) / 30
    return f"S3: {per_step:.2f} requests a step, {requests_of_10 - 10 * per_step:.0f} for the rest of a Job"


def count_requests(steps: int, address: str, state: Cutting) -> int:
    folder = folder_with(one_expert(steps), [])
    bench.ENV["AWS_ENDPOINT_URL_S3"] = address
    state.fail(0, "lost")
    run(folder, "run", "bench", "go", "--provider", "scripted", "--storage", f"s3://{BUCKET}/requests{steps}")
    bench.ENV["AWS_ENDPOINT_URL_S3"] = os.environ["AWS_ENDPOINT_URL_S3"]
    return state.requests


async def fill(storage: Storage, number: int) -> None:
    """Create Jobs."""
    now = time.time_ns() // 1_000_000

    async def put(number: int) -> None:
        job = make_summary(number, now)
        await storage.create_job(job.id)
        await storage.put_summary(job.id, job.to_json())

    for start in range(0, number, CONCURRENCY):
        await asyncio.gather(*(put(index) for index in range(start, min(start + CONCURRENCY, number))))


async def measure_lists(folder: Path, address: str, number: int) -> tuple[float, float, float, float]:
    """Return the milliseconds of a page of 50 Jobs, of the inbox, and of tasks: the best of some rounds."""
    storage = load_plugins((), {}).open_storage(address, folder)
    await fill(storage, number)
    pages, inboxes = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await storage.jobs(limit=50)
        pages.append(time.perf_counter() - began)
        began = time.perf_counter()
        await JobReader(storage).needing_attention()
        inboxes.append(time.perf_counter() - began)
    await storage.close()
    list_times, get_times = [], []
    async with ExecutionMemory.open(workspace=folder, storage=address) as memory:

        async def create(number: int) -> None:
            await memory.create(f"t{number}", agent_id=f"agent{number % 100}", start=number % 2 == 0)

        for start in range(0, number, CONCURRENCY):
            await asyncio.gather(*(create(index) for index in range(start, min(start + CONCURRENCY, number))))
        for index in range(ROUNDS):
            began = time.perf_counter()
            await memory.list(status="running", agent_id="agent4")
            list_times.append(time.perf_counter() - began)
            began = time.perf_counter()
            await memory.get(f"t{index * number // ROUNDS}")
            get_times.append(time.perf_counter() - began)
    return tuple(min(times) * 1000 for times in (pages, inboxes, list_times, get_times))  # type: ignore[return-value]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 200, 1000])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--s3-jobs", type=int, default=1000)
    args = parser.parse_args()
    server = PostgresServer(settings={"fsync": "on", "autovacuum": "on"}).start()
    with TemporaryDirectory() as log_folder, serving(Path(log_folder) / "log") as endpoint, server_variables(endpoint):
        bench.ENV |= {**KEYS, "AWS_ENDPOINT_URL_S3": endpoint}
        try:
            report(server, endpoint, args.steps, {"S3": args.s3_jobs}, args.jobs)
        finally:
            server.close()


def report(server: PostgresServer, endpoint: str, steps: list[int], jobs_in: dict[str, int], jobs: int) -> None:
    """Print all figures."""
    storages = {
        "file": "file:perstack",
        "SQLite": "sqlite:perstack/state.db",
        "PostgreSQL": server.address("SCHEMA").replace("=SCHEMA", "=bench_SCHEMA"),
        "S3": f"s3://{BUCKET}/SCHEMA",
    }
    print(f"load of the machine: {os.getloadavg()[0]:.1f}; {asyncio.run(measure_floors(server, endpoint))}\n")
    print_step_table(storages, steps)
    print(f"\n{measure_requests(endpoint)}")
    if jobs:
        print("\n| storage | Jobs | page of 50 Jobs, ms | inbox | tasks by status and agent | one task |")
        print("| --- | --- | --- | --- | --- | --- |")
    for name, storage in storages.items() if jobs else ():
        number = jobs_in.get(name, jobs)
        figures = asyncio.run(measure_lists(folder_with(one_expert(1), []), storage.replace("SCHEMA", "lists"), number))
        print(f"| {name} | {number} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |", flush=True)
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
