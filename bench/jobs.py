"""Cost of listing thousands of Jobs, each command in a new process, on both local storages.

    .venv/bin/python bench/jobs.py [--jobs 5000] [--rounds 9]

The Jobs are made without being run: a list reads only the summary of an ended Job.
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
from perstack.core.runs.open_questions import OpenQuestion
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


def make_summary(number: int, now: int) -> JobSummary:
    """Return a completed Job of two Runs."""
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


def with_question(job: JobSummary, now: int) -> JobSummary:
    """Return the Job, waiting for an answer."""
    question = OpenQuestion(
        id=f"{job.id}-1-5",
        run_id=f"{job.id}-1",
        expert_key="writer",
        tool_call_id="call_0",
        tool_name="askUser",
        text="Which of the two reports?",
        args={"question": "Which of the two reports?", "options": ["the first", "the second"]},
        asked_at=now,
    )
    stopped = {"status": "stoppedByInteractiveTool", "lifecycle": "paused", "text": None}
    return job.model_copy(update={**stopped, "asking": question, "question": question.text})


async def fill(storage: Storage, jobs: int, *, is_asking: bool = False) -> None:
    """Create Jobs; with `is_asking` they wait for an answer."""
    now = time.time_ns() // 1_000_000
    for number in range(jobs):
        job = with_question(make_summary(number, now), now) if is_asking else make_summary(number, now)
        await storage.create_job(job.id)
        await storage.put_summary(job.id, job.to_json())
    await storage.close()


def time_command(args: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Return the seconds from start to end of a command, and its processor seconds."""
    usage_before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "perstack", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    seconds, usage_after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime


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
                storage_args = args if "--storage" in args else (*args, "--storage", storage)
                times = [time_command(storage_args, folder) for _ in range(rounds)]
                seconds, cpu = median(second for second, _ in times), median(second for _, second in times)
                print(f"| {command}, {storage.partition(':')[0]} | {seconds:.2f} | {cpu:.2f} | {min(times)[0]:.2f} |")
        print(f"\nload of the machine: {os.getloadavg()[0]:.1f}; floor, bare Python: {time_python():.3f} s CPU")


def time_python() -> float:
    """Return the processor seconds that bare Python takes."""
    times: list[float] = []
    for _ in range(9):
        usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime)
    return median(times)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=5000)
    options.add_argument("--rounds", type=int, default=9)
    given = options.parse_args()
    main(given.jobs, given.rounds)
