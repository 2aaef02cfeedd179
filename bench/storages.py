"""What a step, a page of 10,000 Jobs and the inbox cost on each storage, in one run, the servers on this machine.

    .venv/bin/python bench/storages.py [--steps 50 200 1000] [--jobs 10000]

PostgreSQL is the one that the tests start (`make install` does not bring it, `make test` does), with its syncs on; S3
is moto, which is slow: what counts there are requests, and what a step takes beside one of each kind in the same run.
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
from bench import folder_with, one_expert, run, tenths
from cutting import Cutting, cutting
from jobs import summary
from postgres_server import PostgresServer
from s3_server import BUCKET, KEYS, bucket, known, serving

from perstack.engine.jobs.reader import JobReader
from perstack.engine.plugins.registry import load_plugins
from perstack.engine.tasks.memory import ExecutionMemory
from perstack.ports.storage import Storage

ROUNDS = 9
AT_ONCE = 16


def step_table(storages: dict[str, str], numbers: list[int]) -> None:
    """By the events that a command prints, which come as each step ends."""
    print("| storage | steps | ms a step | of the quickest 20 in a row | last tenth / first |")
    print("| --- | --- | --- | --- | --- |")
    for name, storage in storages.items():
        for steps in numbers:
            folder = folder_with(one_expert(steps), [])
            where = ("--storage", storage.replace("SCHEMA", f"steps{steps}"))
            ran = run(folder, "run", "bench", "go", "--provider", "scripted", *where)
            events = [json.loads(line) for line in ran.stdout.splitlines()]
            times = [event["timestamp"] for event in events if event["type"] == "finishStep"]
            each = (times[-1] - times[0]) / max(len(times) - 1, 1)
            # what others do on the machine slows most of them, and hardly all
            least = min((later - at) / 20 for at, later in zip(times, times[20:], strict=False))
            print(f"| {name} | {steps} | {each:.2f} | {least:.2f} | {tenths(times):.2f} |", flush=True)


async def floors(server: PostgresServer, endpoint: str) -> str:
    """Milliseconds of what a step cannot do without: a commit of a row, and a request that writes or reads."""
    import obstore
    import psycopg

    with psycopg.connect(server.dsn(), autocommit=True) as database:
        database.execute("CREATE TABLE IF NOT EXISTS floor (line bytea)")
        commit = quickest(lambda: database.execute("INSERT INTO floor VALUES (%s)", [b"x" * 1000]))
    store = bucket(endpoint)
    put = quickest(lambda: obstore.put(store, "floor", b"x" * 1000))
    get = quickest(lambda: obstore.get(store, "floor").bytes())
    return (
        f"floors: a commit in PostgreSQL {commit:.2f} ms; a request of the S3 server {put:.2f} (PUT), {get:.2f} (GET)"
    )


def quickest(work: Callable[[], object], times: int = 100) -> float:
    """Milliseconds of the median."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return sorted(took)[times // 2] * 1000


def requests_a_step(endpoint: str) -> str:
    """Of a Job in S3: of one step more, and of the first and the last things that a Job does."""
    with cutting(endpoint) as (address, state):
        few, many = (requests_of(steps, address, state) for steps in (10, 40))
    each = (many - few) / 30
    return f"S3: {each:.2f} requests a step, {few - 10 * each:.0f} for the rest of a Job"


def requests_of(steps: int, address: str, state: Cutting) -> int:
    folder = folder_with(one_expert(steps), [])
    bench.ENV["AWS_ENDPOINT_URL_S3"] = address
    state.fail(0, "lost")
    run(folder, "run", "bench", "go", "--provider", "scripted", "--storage", f"s3://{BUCKET}/requests{steps}")
    bench.ENV["AWS_ENDPOINT_URL_S3"] = os.environ["AWS_ENDPOINT_URL_S3"]
    return state.requests


async def fill(storage: Storage, number: int) -> None:
    """So many Jobs."""
    now = time.time_ns() // 1_000_000

    async def put(each: int) -> None:
        one = summary(each, now)
        await storage.create_job(one.id)
        await storage.put_summary(one.id, one.to_json())

    for first in range(0, number, AT_ONCE):
        await asyncio.gather(*(put(each) for each in range(first, min(first + AT_ONCE, number))))


async def lists(folder: Path, address: str, number: int) -> tuple[float, float, float, float]:
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
    listed, found = [], []
    async with ExecutionMemory.open(workspace=folder, storage=address) as memory:

        async def create(each: int) -> None:
            await memory.create(f"t{each}", agent_id=f"agent{each % 100}", start=each % 2 == 0)

        for first in range(0, number, AT_ONCE):
            await asyncio.gather(*(create(each) for each in range(first, min(first + AT_ONCE, number))))
        for each in range(ROUNDS):
            began = time.perf_counter()
            await memory.list(status="running", agent_id="agent4")
            listed.append(time.perf_counter() - began)
            began = time.perf_counter()
            await memory.get(f"t{each * number // ROUNDS}")
            found.append(time.perf_counter() - began)
    return tuple(min(one) * 1000 for one in (pages, inboxes, listed, found))  # type: ignore[return-value]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 200, 1000])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--s3-jobs", type=int, default=1000)
    given = parser.parse_args()
    server = PostgresServer(settings={"fsync": "on", "autovacuum": "on"}).start()
    with TemporaryDirectory() as aside, serving(Path(aside) / "log") as endpoint, known(endpoint):
        bench.ENV |= {**KEYS, "AWS_ENDPOINT_URL_S3": endpoint}
        try:
            report(server, endpoint, given.steps, {"S3": given.s3_jobs}, given.jobs)
        finally:
            server.close()


def report(server: PostgresServer, endpoint: str, steps: list[int], jobs_in: dict[str, int], jobs: int) -> None:
    """All of it."""
    storages = {
        "file": "file:perstack",
        "SQLite": "sqlite:perstack/state.db",
        "PostgreSQL": server.address("SCHEMA").replace("=SCHEMA", "=bench_SCHEMA"),
        "S3": f"s3://{BUCKET}/SCHEMA",
    }
    print(f"load of the machine: {os.getloadavg()[0]:.1f}; {asyncio.run(floors(server, endpoint))}\n")
    step_table(storages, steps)
    print(f"\n{requests_a_step(endpoint)}")
    if jobs:
        print("\n| storage | Jobs | page of 50 Jobs, ms | inbox | tasks by status and agent | one task |")
        print("| --- | --- | --- | --- | --- | --- |")
    for name, storage in storages.items() if jobs else ():
        number = jobs_in.get(name, jobs)
        figures = asyncio.run(lists(folder_with(one_expert(1), []), storage.replace("SCHEMA", "lists"), number))
        print(f"| {name} | {number} | " + " | ".join(f"{one:.1f}" for one in figures) + " |", flush=True)
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
