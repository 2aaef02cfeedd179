"""One Job, started again and again in a folder of its own, disturbed each time, gone on with until it is done.

with Victims(env) as victims:
    assault = Assault(Target(template, "writer", "go"), victims, room)
    boundaries = assault.plain().boundaries("kill")
    tally = Tally()
    for at in range(1, boundaries + 1):
        tally.add(assault.disturbed(Fault("kill", at)))
    assert not tally.findings
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import count
from pathlib import Path

from perstack.dataclass import dataclass
from perstack.errors import PerstackError
from perstack.host import Host
from perstack.testing.chaos.evidence import (
    ChaosFinding,
    Evidence,
    check_end,
    check_lives,
    check_process,
    effects_of,
    evidence_of,
)
from perstack.testing.chaos.faults import Fault, FaultKind
from perstack.testing.chaos.victims import Victim, Victims

_MOST_LIVES = 60
"""Processes of one Job, after which it does not come to an end."""


@dataclass(frozen=True)
class Target:
    """What is started: an Expert of a project."""

    template: Path
    """A folder with a perstack.toml, which is copied for each Job."""
    expert: str
    query: str
    env: Mapping[str, str]
    """The environment in which its state is looked at."""
    storage: str | None = None
    """Where Jobs are kept, if not where perstack.toml says."""
    options: tuple[str, ...] = ("--provider", "scripted")
    answer: str = "yes"
    """What is answered to every question."""
    job: str = "chaos"
    """How the ids of the Jobs begin."""


@dataclass(frozen=True)
class Trial:
    """What came of one Job."""

    name: str
    """What was done to it, so that it can be done again."""
    folder: Path
    victims: tuple[Victim, ...]
    end: Evidence
    findings: tuple[ChaosFinding, ...] = ()

    def boundaries(self, kind: FaultKind) -> int:
        """The boundaries of all its processes that a fault of this kind counts."""
        return sum(victim.boundaries(kind) for victim in self.victims)

    @property
    def kills(self) -> int:
        """How many of its processes were killed."""
        return sum(victim.was_killed for victim in self.victims)

    @property
    def errors(self) -> int:
        """How many errors of the system its processes met."""
        return sum(victim.reached and not victim.was_killed for victim in self.victims)


@dataclass
class Tally:
    """What came of many."""

    trials: int = 0
    kills: int = 0
    errors: int = 0
    findings: list[tuple[str, ChaosFinding]] = field(default_factory=list[tuple[str, ChaosFinding]])

    def add(self, trial: Trial) -> None:
        """One more."""
        self.trials += 1
        self.kills += trial.kills
        self.errors += trial.errors
        self.findings += [(trial.name, finding) for finding in trial.findings]

    def number(self, kind: str) -> int:
        """How many findings there are of a kind."""
        return sum(finding.kind == kind for _, finding in self.findings)


class Assault:
    """Disturbs one Target. What it keeps of a Job that something was wrong with stays in `room`."""

    def __init__(self, target: Target, victims: Victims, room: Path) -> None:
        self._target = target
        self._victims = victims
        self._room = room
        self._numbers = count(1)
        self._plain: Trial | None = None

    def plain(self) -> Trial:
        """The Job that nothing disturbs; others are compared with it. Raises RuntimeError if it does not complete."""
        if self._plain is None:
            trial = self._drive("undisturbed", iter(()), None)
            if trial.findings or trial.end.status not in ("completed", "stoppedByMaxSteps"):
                words = "; ".join(finding.message for finding in trial.findings) or trial.victims[-1].err.strip()
                raise RuntimeError(f"undisturbed, its Job does not complete: {words}")
            self._plain = trial
        return self._plain

    def disturbed(self, fault: Fault) -> Trial:
        """A Job that meets a fault, its boundaries counted over all of its processes."""
        self.plain()
        return self._drive(f"{fault.kind} at {fault.at}", iter(()), fault)

    def killed_after(self, *seconds: float) -> Trial:
        """A Job whose processes are killed, one after the other, each so long after it began."""
        self.plain()
        return self._drive("killed after " + ", ".join(f"{one:.4f}" for one in seconds), iter(seconds), None)

    def _drive(self, name: str, after: Iterator[float], fault: Fault | None) -> Trial:
        number = next(self._numbers)
        folder, job_id = self._room / f"{number}", f"{self._target.job}-{number}"
        shutil.copytree(self._target.template, folder, symlinks=True)
        victims, findings, evidence = list[Victim](), list[ChaosFinding](), Evidence()
        while not self._is_done(evidence, victims):
            if len(victims) == _MOST_LIVES:
                findings.append(ChaosFinding("wrong", f"not done after {_MOST_LIVES} processes: {victims[-1].err}"))
                break
            victim = self._victims.run(
                folder,
                *self._next(job_id, evidence),
                aside=self._room / f"{number}-aside",
                fault=_rest_of(fault, victims),
                after=next(after, None),
            )
            victims.append(victim)
            try:
                later = asyncio.run(self._look(folder, job_id))
            except PerstackError as error:
                findings.append(ChaosFinding("wrong", f"cannot be read: {error}"))
                break
            findings += check_process(evidence, victim, later)
            evidence = later
        findings += check_lives(effects_of(evidence), victims)
        if self._plain is not None:
            findings += asyncio.run(self._check(folder, job_id, self._plain.end, evidence))
        if not findings and self._plain is not None:
            shutil.rmtree(folder)
            shutil.rmtree(self._room / f"{number}-aside")
        return Trial(name, folder, tuple(victims), evidence, tuple(findings))

    def _is_done(self, evidence: Evidence, victims: list[Victim]) -> bool:
        if evidence.status == "completed":
            return True
        if not victims or victims[-1].was_killed or victims[-1].reached or evidence.question is not None:
            return False
        ends = ("stoppedByError", "stoppedByMaxSteps") if self._plain is None else (self._plain.end.status,)
        return evidence.status in ends or (evidence.status is None and self._plain is None)

    def _next(self, job_id: str, evidence: Evidence) -> tuple[str, ...]:
        target = self._target
        where = () if target.storage is None else ("--storage", target.storage)
        if evidence.status is None:
            return ("run", target.expert, target.query, "--job-id", job_id, *target.options, *where)
        if evidence.question is not None:
            return ("answer", evidence.approval or job_id, target.answer, *target.options, *where)
        return ("resume", job_id, *target.options, *where)

    async def _look(self, folder: Path, job_id: str) -> Evidence:
        async with self._host(folder) as host:
            return await evidence_of(host, job_id)

    async def _check(self, folder: Path, job_id: str, plain: Evidence, end: Evidence) -> list[ChaosFinding]:
        async with self._host(folder) as host:
            return await check_end(host, job_id, plain, end)

    def _host(self, folder: Path) -> Host:
        target = self._target
        return Host.open(
            config=folder / "perstack.toml", workspace=folder, storage=target.storage, env=dict(target.env)
        )


def _rest_of(fault: Fault | None, victims: list[Victim]) -> Fault | None:
    """The fault as the next process counts it."""
    if fault is None:
        return None
    past = sum(victim.boundaries(fault.kind) for victim in victims)
    return Fault(fault.kind, fault.at - past) if fault.at > past else None
