"""What a step, a page of 10,000 Jobs and the inbox cost on each storage, in one run, PostgreSQL on this machine.

    .venv/bin/python bench/storages.py [--steps 50 200 1000] [--jobs 10000]

PostgreSQL is the one that the tests start (`make install` does not bring it, `make test` does), with its syncs on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from bench import folder_with, one_expert, run, tenths
from jobs import summary
from postgres_server import PostgresServer

from perstack.engine.plugins import load_plugins
from perstack.engine.read import JobReader
from perstack.memory import ExecutionMemory
from perstack.ports.storage import Storage

ROUNDS = 9


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


async def fill(storage: Storage, number: int) -> None:
    """So many Jobs."""
    now = time.time_ns() // 1_000_000
    for each in range(number):
        one = summary(each, now)
        await storage.create_job(one.id)
        await storage.put_summary(one.id, one.to_json())


async def lists(folder: Path, address: str, number: int) -> tuple[float, float, float, float]:
    """Milliseconds of a page of 50 Jobs, of the inbox, and of tasks by status: in a list, and one of them.

    The quickest of some rounds each.
    """
    storage = load_plugins((), {}).open_storage(address, folder)
    await fill(storage, number)
    pages, inboxes = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await storage.jobs(limit=50)
        pages.append(time.perf_counter() - began)
        began = time.perf_counter()
        await JobReader(storage).waiting()
        inboxes.append(time.perf_counter() - began)
    await storage.close()
    listed, found = [], []
    async with ExecutionMemory.open(workspace=folder, storage=address) as memory:
        for each in range(number):
            await memory.create(f"t{each}", agent_id=f"agent{each % 100}", start=each % 2 == 0)
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
    given = parser.parse_args()
    server = PostgresServer(settings={"fsync": "on", "autovacuum": "on"}).start()
    try:
        storages = {
            "file": "file:perstack",
            "SQLite": "sqlite:perstack/state.db",
            "PostgreSQL": server.address("SCHEMA").replace("=SCHEMA", "=bench_SCHEMA"),
        }
        print(f"load of the machine: {os.getloadavg()[0]:.1f}\n")
        step_table(storages, given.steps)
        if given.jobs:
            print("\n| storage | page of 50 Jobs, ms | inbox | tasks by status and agent | one task |")
            print("| --- | --- | --- | --- | --- |")
        for name, storage in storages.items() if given.jobs else ():
            folder = folder_with(one_expert(1), [])
            figures = asyncio.run(lists(folder, storage.replace("SCHEMA", "lists"), given.jobs))
            print(f"| {name} | " + " | ".join(f"{one:.1f}" for one in figures) + " |", flush=True)
        print(f"\nload of the machine: {os.getloadavg()[0]:.1f}")
    finally:
        server.close()


if __name__ == "__main__":
    main()
