"""A task, a series and a schedule, killed or failed wherever they write, end the same, each event there once."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import workload
from chaos.faults import FAULT_KINDS, Fault, FaultKind
from chaos.processes import Victim, Victims
from hosts import agree_to_definition
from workload import spread

from perstack.errors import NotFound
from perstack.host import Host
from perstack.ports.storage import RunRef

SOME: tuple[FaultKind, ...] = ("kill", "ENOSPC")
"""The faults of an ordinary run of the tests."""
OPTIONS = ("--provider", "scripted")
MOST = 30
"""Processes, after which what they work on does not come to an end."""
LATER = 31
"""Seconds by which a process begins later than one that did nothing: a task that was woken, and whose Job never began,
is woken again after 30."""

Next = Callable[[Host], Awaitable[tuple[str, ...] | None]]


async def next_of_task(host: Host) -> tuple[str, ...] | None:
    """What a person would type next: a task that pauses, is answered, and is finished by an Expert's Job."""
    try:
        task = await host.tasks.get("t")
    except NotFound:
        return ("task", "create", "t", "--agent", "worker", "--description", "go", "--start")
    if task.status == "completed":
        return None
    if task.status == "running" and task.job_id is None:
        return ("task", "pause", "t", "--reason", "human_input", "--message", "go on?")
    if task.status == "paused" and not task.answered:
        return ("task", "answer", "t", "yes")
    if task.status == "failed":
        return ("task", "retry", "t")
    return ("task", "run-due", *OPTIONS)


async def next_of_series(host: Host) -> tuple[str, ...] | None:
    """What a person would type next: iterations, until none is left."""
    try:
        series = await host.iterations.get("it")
    except NotFound:
        return ("iterate", "worker", "make it", "--id", "it", *OPTIONS)
    return None if series.status == "completed" else ("resume", "it", *OPTIONS)


async def next_of_schedule(host: Host) -> tuple[str, ...] | None:
    """What cron would call: until the Job of an occurrence has ended, and that is recorded."""
    (standing,) = await host.schedules.list()
    ended = standing.last is not None and standing.last.outcome is not None
    return None if ended else ("task", "run-due", *OPTIONS)


@dataclass
class Course:
    """A task, a series or a schedule, driven to its end in a folder of its own each time."""

    template: Path
    room: Path
    victims: Victims
    space: str
    ident: str
    next: Next
    _numbers: count = field(default_factory=count)

    def drive(self, fault: Fault | None = None) -> tuple[Path, list[Victim]]:
        """Its processes, of which one meets the fault. What its log had is there after each of them."""
        number, ahead = next(self._numbers), 0
        folder = self.room / f"{number}"
        shutil.copytree(self.template, folder)
        agree_to_definition(folder)
        lives, before = list[Victim](), self.log(folder)
        while (argv := asyncio.run(self._next_command(folder))) is not None:
            assert len(lives) < MOST, lives[-1]
            rest = None if fault is None else fault.at - sum(life.boundaries(fault.kind) for life in lives)
            lives.append(
                self.victims.run(
                    folder,
                    *argv,
                    aside=self.room / f"{number}-aside",
                    fault=Fault(fault.kind, rest) if fault is not None and rest is not None and rest > 0 else None,
                    ahead=ahead,
                )
            )
            assert "Traceback" not in lives[-1].err, (fault, lives[-1].err)
            after = self.log(folder)
            assert after[: len(before)] == before, fault
            ahead += LATER if after == before else 0
            before = after
        return folder, lives

    def log(self, folder: Path) -> list[bytes]:
        """Its log."""
        return asyncio.run(self._log(folder))

    async def _next_command(self, folder: Path) -> tuple[str, ...] | None:
        async with self._host(folder) as host:
            return await self.next(host)

    async def _log(self, folder: Path) -> list[bytes]:
        async with self._host(folder) as host:
            try:
                return await host.storage.space(self.space).read(RunRef(self.ident, f"{self.ident}-1"))
            except NotFound:
                return []

    async def jobs(self, folder: Path) -> list[str]:
        """How each Job stands that was begun; all of them verify."""
        async with self._host(folder) as host:
            jobs = (await host.jobs.list()).jobs
            for job in jobs:
                assert (await host.audit.verify(job.id)).findings == ()
                assert (await host.audit.replay(job.id)).findings == ()
            return sorted(f"{job.status} {job.text} {job.total_steps} {job.usage.total_tokens}" for job in jobs)

    def _host(self, folder: Path) -> Host:
        return Host.open(config=folder / "perstack.toml", workspace=folder, env=workload.env(self.room.parent))


@pytest.fixture(params=["task", "series", "schedule"])
def course(request: pytest.FixtureRequest, tmp_path: Path, victims: Victims, storage: str) -> Course:
    template, room = tmp_path / "template", tmp_path / "room"
    template.mkdir()
    room.mkdir()
    workload.worker(template, tmp_path, storage)
    if request.param == "schedule":
        with (template / "perstack.toml").open("a") as definition:
            definition.write('[schedules.s]\ncron = "* * * * *"\nexpert = "worker"\nquery = "go"\n')
        return Course(template, room, victims, "schedules", "s", next_of_schedule)
    if request.param == "task":
        return Course(template, room, victims, "tasks", "t", next_of_task)
    return Course(template, room, victims, "iterations", "it", next_of_series)


@pytest.mark.timeout(3600)
def test_it_ends_the_same_whichever_boundary_it_dies_or_fails_at(course: Course, thorough: bool) -> None:
    folder, lives = course.drive()
    plain, jobs = course.log(folder), asyncio.run(course.jobs(folder))
    for kind in FAULT_KINDS if thorough else SOME:
        boundaries, hits = sum(life.boundaries(kind) for life in lives), 0
        for at in spread(boundaries, boundaries if thorough else 2):
            folder, tried = course.drive(Fault(kind, at))
            hits += any(life.reached for life in tried)
            assert once_each(course.log(folder)), (kind, at)
            assert count_of_effects(course.log(folder)) == count_of_effects(plain), (kind, at)
            left = asyncio.run(course.jobs(folder))
            failed = [one for one in left if one.startswith("stoppedByError")]
            if course.space == "schedules" and failed and kind not in ("kill", "torn"):
                assert left == ["stoppedByError None 0 0"], (kind, at)  # before its first step; a person resumes it
                continue
            # a task that failed because the system did is tried again, with a Job of its own
            assert len(failed) == times(course.log(folder), "retryTask"), (kind, at, left)
            assert [one for one in left if one not in failed] == jobs, (kind, at, left)
        print(f"{course.space} {kind}: {hits} of {boundaries} boundaries")
        assert hits


def once_each(log: list[bytes]) -> bool:
    return all(number == 1 for number in Counter(json.loads(line)["digest"] for line in log).values())


def times(log: list[bytes], kind: str) -> int:
    return sum(json.loads(line)["type"] == kind for line in log)


def count_of_effects(log: list[bytes]) -> dict[str, int]:
    """How often there is what work is made of; pauses and resumptions may be more."""
    kinds = Counter(json.loads(line)["type"] for line in log)
    return {
        kind: number for kind, number in kinds.items() if kind.startswith(("start", "finish", "complete", "create"))
    }
