"""What it costs to list Jobs where there are thousands, each command a new process, on both storages.

    .venv/bin/python bench/jobs.py [--jobs 5000] [--rounds 9]

The Jobs are made without being run: what a list reads of one that has ended is its summary alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from perstack.core.base.usage import Usage
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.core.runs.questions import OpenQuestion
from perstack.ports.storage import Storage
from perstack_filesystem.storage import FilesystemStorage
from perstack_sqlite.storage import SqliteStorage

COMMANDS = {
    "jobs": ("jobs",),
    "jobs --status failed": ("jobs", "--status", "failed"),
    "jobs --json --all": ("jobs", "--json", "--all"),
    "jobs, with no Job": ("jobs", "--storage", "file:none"),
    "inbox, where each asks": ("inbox", "--storage", "file:asking"),
    "inbox, with no Job": ("inbox", "--storage", "file:none"),
}


def summary(number: int, now: int) -> JobSummary:
    """A completed Job of two Runs."""
    job_id = f"job-of-{number:06d}"
    runs = [
        RunSummary(id=f"{job_id}-{n}", expert_key="writer", status="completed", model="anthropic/claude", steps=12)
        for n in (1, 2)
    ]
    return JobSummary(
        id=job_id,
        expert_key="writer",
        query=f"Summarise report {number} of last week, and write what is to be done into todo.md.",
        status="completed",
        lifecycle="completed",
        coordinator_run_id=f"{job_id}-1",
        total_steps=24,
        usage=Usage(input_tokens=30_000, output_tokens=2_000, total_tokens=32_000, cost_usd=0.1),
        started_at=now,
        updated_at=now,
        text="It is done. " * 40,
        runs=tuple(runs),
    )


def asking(one: JobSummary, now: int) -> JobSummary:
    """The same Job, which waits for an answer."""
    question = OpenQuestion(
        id=f"{one.id}-1-5",
        run_id=f"{one.id}-1",
        expert_key="writer",
        tool_call_id="call_0",
        tool_name="askUser",
        text="Which of the two reports?",
        args={"question": "Which of the two reports?", "options": ["the first", "the second"]},
        asked_at=now,
    )
    stopped = {"status": "stoppedByInteractiveTool", "lifecycle": "paused", "text": None}
    return one.model_copy(update={**stopped, "asking": question, "question": question.text})


async def fill(storage: Storage, jobs: int, *, is_asking: bool = False) -> None:
    """So many Jobs; those that ask wait for an answer."""
    now = time.time_ns() // 1_000_000
    for number in range(jobs):
        one = asking(summary(number, now), now) if is_asking else summary(number, now)
        await storage.create_job(one.id)
        await storage.put_summary(one.id, one.to_json())
    await storage.close()


def timed(args: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Seconds from start to end of a command, and those of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "perstack", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(jobs: int, rounds: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="perstack-bench-") as name:
        folder = Path(name)
        asyncio.run(fill(FilesystemStorage(folder / "files"), jobs))
        asyncio.run(fill(FilesystemStorage(folder / "asking"), jobs, is_asking=True))
        asyncio.run(fill(SqliteStorage(folder / "state.db"), jobs))
        print(f"| {jobs:,} Jobs | seconds | of them CPU | least |")
        print("| --- | --- | --- | --- |")
        for command, args in COMMANDS.items():
            for storage in (args[-1],) if "--storage" in args else ("file:files", "sqlite:state.db"):
                given = args if "--storage" in args else (*args, "--storage", storage)
                times = [timed(given, folder) for _ in range(rounds)]
                took, cpu = median(one for one, _ in times), median(one for _, one in times)
                print(f"| {command}, {storage.partition(':')[0]} | {took:.2f} | {cpu:.2f} | {min(times)[0]:.2f} |")
        print(f"\nload of the machine: {os.getloadavg()[0]:.1f}; floor, bare Python: {bare():.3f} s CPU")


def bare() -> float:
    """Seconds of the processor that Python takes for nothing."""
    found: list[float] = []
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(found)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=5000)
    options.add_argument("--rounds", type=int, default=9)
    given = options.parse_args()
    main(given.jobs, given.rounds)
