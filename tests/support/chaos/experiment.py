"""Drive one Job in its own folder, disturb its processes, restart it until it is done, and check the result.

with Victims(env) as victims:
    assault = Assault(ExperimentSubject(template, "writer", "go"), victims, room)
    boundaries = assault.plain().boundaries("kill")
    tally = Tally()
    for at in range(1, boundaries + 1):
        tally.add(assault.disturbed(Fault("kill", at)))
    assert not tally.findings
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from chaos.faults import Fault, FaultKind
from chaos.processes import Victim, Victims
from perstack.core.runs.events import StoredEvent
from perstack.dataclass import dataclass
from perstack.errors import NotFound, PerstackError
from perstack.host import Host

# Observations of a Job, and violations found after the processes that drove it were killed.

FindingKind = Literal["lost", "repeated", "wrong"]

_STORED_EVENTS = frozenset(event.model_fields["type"].default for event in get_args(StoredEvent))
_WORK_EVENTS = frozenset(  # event types that occur equally often in every drive, disturbed or not
    (
        "startRun",
        "finishGeneration",
        "callTools",
        "finishToolCall",
        "callDelegate",
        "attemptCompletion",
        "answerQuestion",
        "decideApproval",
        "startToolCall",
        "finishStep",
        "finishRun",
    )
)


@dataclass(frozen=True, slots=True)
class ChaosFinding:
    """One violated promise."""

    kind: FindingKind
    message: str


@dataclass(frozen=True)
class Evidence:
    """Stored state of a Job at one moment."""

    status: str | None = None  # status of the Job; None without an event
    question: str | None = None
    approval: str | None = None  # question id, if the question asks for approval of a call
    text: str | None = None
    steps: int = 0
    tokens: int = 0
    logs: dict[str, tuple[bytes, ...]] = field(default_factory=dict[str, tuple[bytes, ...]])  # log lines of each Run
    finished: frozenset[str] = frozenset()  # keys of the calls that have a result
    work: Counter[str] = field(default_factory=Counter[str])  # number of events by Expert, step and type


async def evidence_of(host: Host, job_id: str) -> Evidence:
    """Return the stored state of a Job, empty if it has not begun. Raises the other errors of `Host.job`."""
    try:
        job = await host.job(job_id)
        logs = await host.jobs.logs(job_id)
    except NotFound:
        return Evidence()
    finished, work = set[str](), Counter[str]()
    for log in logs:
        for line in log.lines:
            event = json.loads(line)
            if event["type"] in _WORK_EVENTS:
                work[f"{event['expertKey']} {event['stepNumber']} {event['type']}"] += 1
            if event["type"] == "finishToolCall":
                finished.add(f"{event['runId']}-{event['stepNumber']}-{event['toolCallId']}")
    return Evidence(
        status=job.status,
        question=job.question,
        approval=job.asking.id if job.asking is not None and job.asking.call_digest else None,
        text=job.text,
        steps=job.total_steps,
        tokens=job.usage.total_tokens,
        logs={log.run_id: tuple(log.lines) for log in logs},
        finished=frozenset(finished),
        work=work,
    )


def check_process(before: Evidence, victim: Victim, after: Evidence) -> Iterator[ChaosFinding]:
    """Yield what one process did wrong: changed history, shown events that are not stored, repeated finished calls."""
    for run_id, lines in before.logs.items():
        if after.logs.get(run_id, ())[: len(lines)] != lines:
            yield ChaosFinding("lost", f"{run_id} does not begin any more with what it had")
    stored = {line for lines in after.logs.values() for line in lines}
    for line in victim.out.splitlines(keepends=True):
        if line.endswith(b"\n") and _is_stored(line) and line[:-1] not in stored:
            yield ChaosFinding("lost", f"an event was shown and is not stored: {line[:120].decode(errors='replace')}")
    for key in sorted(before.finished & set(victim.began)):
        yield ChaosFinding("repeated", f"call {key} had its result, and was made again")
    if "Traceback (most recent call last)" in victim.err:
        yield ChaosFinding("wrong", f"a traceback: {victim.err.strip().splitlines()[-1]}")


def check_lives(effects: frozenset[str], victims: Sequence[Victim]) -> Iterator[ChaosFinding]:
    """Yield the calls with effects that more than one process made."""
    began = Counter(key for victim in victims for key in set(victim.began))
    for key in sorted(key for key in effects if began[key] > 1):
        yield ChaosFinding("repeated", f"call {key} has an effect, and was made {began[key]} times")


async def check_end(host: Host, job_id: str, plain: Evidence, end: Evidence) -> list[ChaosFinding]:
    """Return the differences between a disturbed Job and the undisturbed one, and what verify and replay find."""
    findings: list[ChaosFinding] = []
    for word, ours, theirs in (
        ("status", end.status, plain.status),
        ("text", end.text, plain.text),
        ("steps", end.steps, plain.steps),
        ("tokens", end.tokens, plain.tokens),
        ("Runs", len(end.logs), len(plain.logs)),
    ):
        if ours != theirs:
            findings.append(ChaosFinding("wrong", f"{word}: {ours!r}, and {theirs!r} undisturbed"))
    findings += [ChaosFinding("lost", f"{n} of {key}") for key, n in (plain.work - end.work).items()]
    findings += [ChaosFinding("repeated", f"{n} more of {key}") for key, n in (end.work - plain.work).items()]
    ids = Counter(json.loads(line)["id"] for lines in end.logs.values() for line in lines)
    findings += [ChaosFinding("repeated", f"event {key} is there {n} times") for key, n in ids.items() if n > 1]
    for check in (host.audit.verify, host.audit.replay):
        report = await check(job_id)
        messages = [f"{finding.run_id} {finding.seq}: {finding.message}" for finding in report.findings]
        findings += [ChaosFinding("wrong", message) for message in messages]
    return findings


def effects_of(evidence: Evidence) -> frozenset[str]:
    """Return the keys of the calls that may have an effect."""
    keys = set[str]()
    for lines in evidence.logs.values():
        for event in map(json.loads, lines):
            if event["type"] == "callTools":
                keys |= {
                    f"{event['runId']}-{event['stepNumber']}-{call['id']}"
                    for call in event["calls"]
                    if call.get("effect", "sideEffect") == "sideEffect" and call.get("kind", "tool") == "tool"
                }
    return frozenset(keys)


def _is_stored(line: bytes) -> bool:
    try:
        return json.loads(line).get("type") in _STORED_EVENTS
    except ValueError:
        return False


_MAX_PROCESSES = 60  # maximum number of processes for one Job; with more it counts as never ending


@dataclass(frozen=True)
class ExperimentSubject:
    """The Expert to start, and its project."""

    template: Path  # a folder with a perstack.toml, copied for each Job
    expert: str
    query: str
    env: Mapping[str, str]  # the environment for inspecting the stored state
    storage: str | None = None  # storage address; None: as perstack.toml says
    options: tuple[str, ...] = ("--provider", "scripted")
    answer: str = "yes"  # the answer to every question
    job: str = "chaos"  # prefix of the Job ids


@dataclass(frozen=True)
class Trial:
    """Result of one Job."""

    name: str  # disturbances of the Job, precise enough to repeat them
    folder: Path
    victims: tuple[Victim, ...]
    end: Evidence
    findings: tuple[ChaosFinding, ...] = ()

    def boundaries(self, kind: FaultKind) -> int:
        """Return the number of boundaries in all its processes that a fault of this kind counts."""
        return sum(victim.boundaries(kind) for victim in self.victims)

    @property
    def kills(self) -> int:
        """Number of killed processes."""
        return sum(victim.was_killed for victim in self.victims)

    @property
    def errors(self) -> int:
        """Number of processes that met a system error."""
        return sum(victim.reached and not victim.was_killed for victim in self.victims)


@dataclass
class Tally:
    """Totals over many trials."""

    trials: int = 0
    kills: int = 0
    errors: int = 0
    findings: list[tuple[str, ChaosFinding]] = field(default_factory=list[tuple[str, ChaosFinding]])

    def add(self, trial: Trial) -> None:
        """Add one trial."""
        self.trials += 1
        self.kills += trial.kills
        self.errors += trial.errors
        self.findings += [(trial.name, finding) for finding in trial.findings]


class Assault:
    """Disturber of the Jobs of one subject. The files of Jobs with findings stay in `room`."""

    def __init__(self, target: ExperimentSubject, victims: Victims, room: Path) -> None:
        """Start nothing yet."""
        self._target = target
        self._victims = victims
        self._room = room
        self._numbers = count(1)
        self._plain: Trial | None = None

    def plain(self) -> Trial:
        """Return the undisturbed Job, the reference for the others. Raises RuntimeError if it does not complete."""
        if self._plain is None:
            trial = self._drive("undisturbed", iter(()), None)
            if trial.findings or trial.end.status not in ("completed", "stoppedByMaxSteps"):
                words = "; ".join(finding.message for finding in trial.findings) or trial.victims[-1].err.strip()
                raise RuntimeError(f"undisturbed, its Job does not complete: {words}")
            self._plain = trial
        return self._plain

    def disturbed(self, fault: Fault) -> Trial:
        """Drive a Job that meets a fault, counting boundaries over all of its processes."""
        self.plain()
        return self._drive(f"{fault.kind} at {fault.at}", iter(()), fault)

    def kill_after(self, *seconds: float) -> Trial:
        """Drive a Job and kill its processes one after the other, each after the given seconds."""
        self.plain()
        return self._drive("killed after " + ", ".join(f"{delay:.4f}" for delay in seconds), iter(seconds), None)

    def _drive(self, name: str, after: Iterator[float], fault: Fault | None) -> Trial:
        number = next(self._numbers)
        folder, job_id = self._room / f"{number}", f"{self._target.job}-{number}"
        shutil.copytree(self._target.template, folder, symlinks=True)
        victims, findings, evidence = list[Victim](), list[ChaosFinding](), Evidence()
        while not self._is_done(evidence, victims):
            if len(victims) == _MAX_PROCESSES:
                findings.append(ChaosFinding("wrong", f"not done after {_MAX_PROCESSES} processes: {victims[-1].err}"))
                break
            victim = self._victims.run(
                folder,
                *self._next_command(job_id, evidence),
                aside=self._room / f"{number}-aside",
                fault=_remaining_fault(fault, victims),
                after=next(after, None),
            )
            victims.append(victim)
            try:
                new_evidence = asyncio.run(self._read_evidence(folder, job_id))
            except PerstackError as error:
                findings.append(ChaosFinding("wrong", f"cannot be read: {error}"))
                break
            findings += check_process(evidence, victim, new_evidence)
            evidence = new_evidence
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

    def _next_command(self, job_id: str, evidence: Evidence) -> tuple[str, ...]:
        target = self._target
        storage_args = () if target.storage is None else ("--storage", target.storage)
        if evidence.status is None:
            return ("run", target.expert, target.query, "--job-id", job_id, *target.options, *storage_args)
        if evidence.question is not None:
            return ("answer", evidence.approval or job_id, target.answer, *target.options, *storage_args)
        return ("resume", job_id, *target.options, *storage_args)

    async def _read_evidence(self, folder: Path, job_id: str) -> Evidence:
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


def _remaining_fault(fault: Fault | None, victims: list[Victim]) -> Fault | None:
    if fault is None:
        return None
    past = sum(victim.boundaries(fault.kind) for victim in victims)
    return Fault(fault.kind, fault.at - past) if fault.at > past else None
