"""Two processes at once on one Job or task: one does it, the other is refused or finds it done. Nothing is twice."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
import workload
from chaos.experiment import Evidence, check_end, check_lives, check_process, effects_of, evidence_of
from chaos.faults import Fault
from chaos.processes import Victim, Victims
from hosts import agree_to_state, other_address, server_variables

from perstack.errors import Conflict, NotFound
from perstack.host import Host

JOB = "pair"
OPTIONS = ("--provider", "scripted")
RUN = ("run", "boss", "go", "--job-id", JOB, *OPTIONS)
COMMANDS = {
    "run": RUN,
    "resume": ("resume", JOB, *OPTIONS),
    "answer": ("answer", JOB, "yes", *OPTIONS),
    "signal": ("signal", JOB, *OPTIONS),
    "run-due": ("task", "run-due", *OPTIONS),
    "task answer": ("task", "answer", "t", "yes"),
    "task cancel": ("task", "cancel", "t"),
    "task delete": ("task", "delete", "t"),
}
EVENT = b'{"specversion": "1.0", "id": "1", "source": "/test", "type": "go", "data": "yes"}'
ENDS = {"cancel": signal.SIGINT, "kill": signal.SIGKILL}
MOST_SECONDS = 60
MOST = 20
"""Processes, after which a Job does not come to an end."""

PAIRS = [
    ("new", "run", "run"),
    ("new", "run", "resume"),
    ("new", "run", "delete"),
    ("new", "run", "cancel"),
    ("killed", "resume", "resume"),
    ("killed", "resume", "run"),
    ("killed", "resume", "signal"),
    ("killed", "resume", "delete"),
    ("killed", "resume", "cancel"),
    ("killed", "resume", "kill"),
    ("asking", "answer", "answer"),
    ("asking", "answer", "resume"),
    ("asking", "answer", "signal"),
    ("asking", "signal", "signal"),
    ("asking", "answer", "delete"),
    ("asking", "answer", "cancel"),
    ("asking", "signal", "kill"),
]
STATES = ("new", "plain", "killed", "asking")
SOME = (("new", "run", "run"), ("killed", "resume", "resume"), ("asking", "answer", "signal"))
"""Those of an ordinary run of the tests."""
TASK_PAIRS = [
    ("run-due", other) for other in ("run-due", "task answer", "task cancel", "task delete", "cancel", "kill")
]

T = TypeVar("T")


@dataclass
class Two:
    """Two processes of a workspace, started at once."""

    room: Path
    victims: tuple[Victims, Victims]
    storage: str
    _numbers: Iterator[int] = field(default_factory=count)

    def rounds(self, thorough: bool) -> int:
        """How often each pair is tried: on a server a try takes seconds, for each process asks it many times."""
        if not thorough:
            return 2
        return 8 if other_address(self.storage) == self.storage else 3

    def copied(self, state: Path, folder: Path) -> None:
        """A state of the workspace once more, with a store of its own."""
        shutil.copytree(state, folder)
        agree_to_state(folder)
        theirs = other_address(self.storage)
        if theirs != self.storage:
            toml = folder / "perstack.toml"
            storage = tomllib.loads(toml.read_text())["storage"]
            self.wait_until_free(folder)
            assert self.run_alone(folder, "storage", "copy", storage, theirs).code == 0
            toml.write_text(toml.read_text().replace(storage, theirs))

    def wait_until_free(self, folder: Path) -> None:
        """Until nobody has a Job: on a server the lease of a process that was killed has to expire."""

        async def free(host: Host) -> None:
            async with asyncio.timeout(MOST_SECONDS):
                for job in (await host.jobs.list()).jobs:
                    while await host.storage.lease_info(job.id) is not None:
                        await asyncio.sleep(0.3)

        self.ask(folder, free)

    def run_alone(self, folder: Path, *argv: str, fault: Fault | None = None) -> Victim:
        """One alone."""
        return self.victims[0].run(folder, *argv, aside=self._aside(), fault=fault)

    def at_once(self, folder: Path, left: str, right: str, delay: float) -> list[Victim]:
        """The second begins later by `delay`, or is a signal for the first, or a deletion."""
        asides = [self._aside(), self._aside()]

        def start_first() -> Victim:
            end = {"after": delay, "by": ENDS[right]} if right in ENDS else {}
            return self.victims[0].run(folder, *COMMANDS[left], aside=asides[0], stdin=EVENT, **end)

        def second() -> Victim | None:
            time.sleep(delay)  # which of many moments is met, is what is tried
            if right == "delete":
                asyncio.run(self.deleted(folder))
            if right not in COMMANDS:
                return None
            return self.victims[1].run(folder, *COMMANDS[right], aside=asides[1], stdin=EVENT)

        with ThreadPoolExecutor(2) as threads:
            done = [future.result() for future in (threads.submit(start_first), threads.submit(second))]
        return [one for one in done if one is not None]

    async def deleted(self, folder: Path) -> None:
        async with self.host(folder) as host:
            with suppress(Conflict, NotFound):
                await host.jobs.delete(JOB)

    def host(self, folder: Path) -> Host:
        return Host.open(config=folder / "perstack.toml", workspace=folder, env=environment(self.room.parent))

    def ask(self, folder: Path, question: Callable[[Host], Awaitable[T]]) -> T:
        """What a Host of this process finds."""

        async def ask_host() -> T:
            async with self.host(folder) as host:
                return await question(host)

        return asyncio.run(ask_host())

    def evidence_in(self, folder: Path) -> Evidence:
        return self.ask(folder, lambda host: evidence_of(host, JOB))

    def to_the_end(self, folder: Path) -> list[Victim]:
        """The Job, gone on with alone as a person would."""
        lives = list[Victim]()
        while (now := self.evidence_in(folder)).status != "completed":
            assert len(lives) < MOST, lives[-1]
            self.wait_until_free(folder)
            name = "run" if now.status is None else "answer" if now.question is not None else "resume"
            lives.append(self.run_alone(folder, *COMMANDS[name]))
        return lives

    def _aside(self) -> Path:
        return self.room / f"aside-{next(self._numbers)}"


@pytest.fixture
def two(tmp_path: Path, any_storage: str, victims: Victims) -> Iterator[Two]:
    (tmp_path / "room").mkdir()
    with Victims(environment(tmp_path)) as others:
        yield Two(tmp_path / "room", (victims.with_env(environment(tmp_path)), others), any_storage)


def environment(folder: Path) -> dict[str, str]:
    """Of every process: their user has agreed to the address of the storage."""
    names = [*STATES, "due", *(f"room/{number}" for number in range(500))]
    trusted = os.pathsep.join(str(folder / name / "perstack.toml") for name in names)
    return {**workload.env(folder), **server_variables(), "PERSTACK_TRUST": trusted}


def fair(one: Victim, name: str) -> bool:
    """Whether it ended as it may: well, by its signal, or refused in one line that names what it is about."""
    if one.code in (0, 3, 130) or (one.code == -9 and name == "kill"):
        return "Traceback" not in one.err
    words = one.err.splitlines()
    names = any(name in one.err for name in (JOB, "task t"))
    return one.code in (1, 2) and len(words) == 1 and words[0].startswith("error: ") and names


@pytest.mark.timeout(3600)
def test_two_processes_on_a_job_come_to_what_one_would(two: Two, tmp_path: Path, thorough: bool) -> None:
    states = {name: tmp_path / name for name in STATES}
    states["new"].mkdir()
    workload.team(states["new"], tmp_path, two.storage)
    for name in ("plain", "killed", "asking"):
        two.copied(states["new"], states[name])
    plain = two.to_the_end(states["plain"])
    end, longest = two.evidence_in(states["plain"]), max(life.seconds for life in plain)
    before: dict[str, list[Victim]] = {
        "new": [],
        "asking": [two.run_alone(states["asking"], *RUN)],
        "killed": [two.run_alone(states["killed"], *RUN, fault=Fault("kill", plain[0].changes * 2 // 3))],
    }
    chance, tried = random.Random(1), 0
    for state, left, right in PAIRS if thorough else SOME:
        for number in range(two.rounds(thorough)):
            folder = two.room / f"{tried}"
            two.copied(states[state], folder)
            was = two.evidence_in(folder)
            delay = chance.uniform(0, longest) if number or right in ENDS else 0
            pair = two.at_once(folder, left, right, delay)
            what = (state, left, right, delay, [(one.code, one.err) for one in pair])
            assert all(fair(one, right) for one in pair), what
            now = two.evidence_in(folder)
            if right != "delete" or now.status is not None:
                assert [one for life in pair for one in check_process(was, life, now)] == [], what
            lives = [*before[state], *pair, *two.to_the_end(folder)]
            last = two.evidence_in(folder)
            if right != "delete":
                assert list(check_lives(effects_of(last), lives)) == [], what
            assert two.ask(folder, partial(check_end, job_id=JOB, plain=end, end=last)) == [], what
            shutil.rmtree(folder)
            tried += 1
    print(f"{tried} pairs of processes on a Job")


@pytest.mark.timeout(3600)
def test_two_processes_on_a_task_wake_it_once(two: Two, tmp_path: Path, thorough: bool) -> None:
    due = tmp_path / "due"
    due.mkdir()
    workload.worker(due, tmp_path, two.storage)
    for argv in (
        ("create", "t", "--agent", "worker", "--description", "go", "--start"),
        ("pause", "t", "--reason", "human_input", "--message", "go on?"),
    ):
        assert two.run_alone(due, "task", *argv).code == 0
    chance, tried = random.Random(1), 0
    for left, right in TASK_PAIRS if thorough else TASK_PAIRS[:2]:
        for _ in range(two.rounds(thorough)):
            folder = two.room / f"{tried}"
            two.copied(due, folder)
            if right != "task answer":
                assert two.run_alone(folder, *COMMANDS["task answer"]).code == 0
            pair = two.at_once(folder, left, right, chance.uniform(0, 0.3))
            what = (left, right, [(one.code, one.err) for one in pair])
            assert all(fair(one, right) for one in pair), what
            two.wait_until_free(folder)
            for _ in range(2):
                assert two.run_alone(folder, *COMMANDS["run-due"]).code == 0
            check_task(two, folder, right, what)
            shutil.rmtree(folder)
            tried += 1
    print(f"{tried} pairs of processes on a task")


def check_task(two: Two, folder: Path, right: str, what: object) -> None:
    """Its Expert has worked once, if nobody has given the task up, and all that there is of it is whole."""

    async def find(host: Host) -> tuple[list[str], str | None]:
        jobs = (await host.jobs.list()).jobs
        for job in jobs:
            assert (await host.audit.verify(job.id)).findings == (), what
            assert job.status == "completed", what
        assert len(jobs) <= 1, what
        try:
            kinds = [event.type for event in await host.tasks.history("t")]
            return kinds, (await host.tasks.get("t")).status
        except NotFound:
            return [], None

    kinds, status = two.ask(folder, find)
    assert kinds.count("wakeTask") <= 1, what
    assert (folder / "worker.txt").read_text() in ("", "worker\n"), what
    match right:
        case "task delete":
            assert status in (None, "completed"), what
        case "task cancel":
            assert status in ("failed", "completed"), what
        case _ if kinds[-1:] == ["wakeTask"]:
            # ended before its Job began, which is found at a look half a minute later
            assert right in ENDS, what
        case _:
            assert (status, kinds.count("completeTask")) == ("completed", 1), (what, kinds)
