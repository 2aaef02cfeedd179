"""Workers on several machines that are killed, frozen and cut off, while their PostgreSQL is restarted.

    .venv/bin/python tests/support/cluster.py [--jobs 500] [--rounds 5] [--seconds 240] [--seed N] [--rates 8]

Machines are network namespaces of its own, so it needs root. Jobs have effects (a tool that appends to a ledger by the
key of its call), parallel delegates, questions that are answered, long replies, and times before which they may not
begin; schedules start some. Each harm of `cluster_harms` is done once a round. When all Jobs have come to their end:
each was completed once, each has the steps and tokens that it has without faults, no effect is there twice, none that a
log tells of is missing, what any process was told was written is there as it was, each occurrence came once, and
`verify` finds nothing. Then one worker and two are compared, and how soon a worker that waits has a Job.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

from cluster_counts import Counts, count_outcomes
from cluster_harms import HARMS, harmed
from cluster_machines import Cluster, cluster, schedules_since_long_ago

from perstack.core.runs.events.lifecycle import QueueRun

PAUSE = (1.0, 2.8)
"""Minimum and maximum seconds between two harms."""


async def endure(
    jobs: int,
    workers: int,
    seconds: float,
    seed: int,
    *,
    rounds: int = 1,
    pause: tuple[float, float] = PAUSE,
    delay: float = 400,
    old: Path | None = None,
) -> tuple[Counts, Counter[str]]:
    """Do every harm to workers `rounds` times while they drive `jobs` Jobs.

    Raises AssertionError for every fault, and if not all Jobs are done after `seconds`. SIGTERM ends it with cleanup.
    """
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with cluster(workers, seed, delay, old=old) as running:
        await schedules_since_long_ago(running)
        await running.until_workers()
        async with asyncio.TaskGroup() as group:
            over = asyncio.Event()
            group.create_task(_do_harms(running, jobs, rounds, pause, over))
            await running.until_done(seconds, over)
        leaving_at = int(time.time() * 1000)
        for machine in running.machines:
            await asyncio.to_thread(machine.end, signal.SIGTERM)
        counts = await count_outcomes(running, leaving_at)
    assert not counts.faults, "\n".join(f"{name}: {faults[:5]}" for name, faults in counts.faults.items())
    assert all(running.done[name] >= rounds for name in HARMS), running.done
    assert len(running.jobs) >= jobs
    return counts, running.done


async def _do_harms(running: Cluster, jobs: int, rounds: int, pause: tuple[float, float], over: asyncio.Event) -> None:
    await harmed(running, jobs, rounds, pause)
    over.set()


async def rate(workers: int, jobs: int, delay: float, concurrency: int) -> float:
    """Return Jobs per second with slow models, measured after the workers are ready."""
    async with cluster(workers, 0, delay, concurrency) as running:
        await _wait_until_ready(running)
        names = await running.submit(jobs, "rate", lambda _: "side")
        await running.until_done(120)
        starts, ends = list[int](), list[int]()
        for name in names:
            job = await running.host.job(name)
            starts.append(job.started_at)
            ends.append(job.finished_at or 0)
        return jobs / ((max(ends) - min(starts)) / 1000)


async def pickups(jobs: int) -> list[int]:
    """Return the milliseconds until a waiting worker began each of `jobs` Jobs, submitted one after another."""
    async with cluster(2, 0, 0) as running:
        await _wait_until_ready(running)
        found = list[int]()
        for _ in range(jobs):
            (name,) = await running.submit(1, "pickup", lambda _: "other")
            await running.until_done(60)
            events = [line.event for line in await running.host.events(f"{name}-1")]
            queued = next(number for number, event in enumerate(events) if isinstance(event, QueueRun))
            found.append(events[queued + 1].timestamp - events[queued].timestamp)
        return found


async def _wait_until_ready(running: Cluster) -> None:
    """Wait until every worker has driven a Job."""
    await running.until_workers()
    await running.submit(2 * len(running.machines), "first", lambda _: "other")
    await running.until_done(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5, help=f"how often each of {len(HARMS)} harms is done")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--rates", type=int, default=0, help="compare one worker and two, by so many Jobs each")
    parser.add_argument("--old", type=Path, help="a checkout of another version, which the first worker is of")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    began = time.monotonic()
    work = endure(args.jobs, args.workers, args.seconds, args.seed, rounds=args.rounds, old=args.old)
    counts, done = asyncio.run(work)
    for line in counts.table():
        print(line)
    print(f"\n{sum(done[name] for name in HARMS)} harms in {time.monotonic() - began:.0f} s:")
    for name, count in done.most_common():
        print(f"{count:>4}  {name}")
    code = _print_comparison(args.rates) if args.rates else 0
    print(f"\nall of it in {time.monotonic() - began:.0f} s")
    sys.exit(code)


def _print_comparison(jobs: int) -> int:
    """Print the figures that need a quiet machine. Return 1 if they miss the promised values."""
    median = statistics.median(asyncio.run(pickups(20)))
    one, two = (asyncio.run(rate(workers, jobs * workers, 3000, 4)) for workers in (1, 2))
    print(f"\nwith a worker that waits after {median:.0f} ms at the median (50 at most)")
    print(f"{one:.2f} Jobs a second by one worker, {two:.2f} by two: {two / one:.2f} times (1.8 at least)")
    return int(median > 50 or two / one < 1.8)


if __name__ == "__main__":
    main()
