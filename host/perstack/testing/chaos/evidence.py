"""What a Job has to show for itself, and what does not hold of it after processes that drove it were killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Literal, get_args

from perstack.core.events import StoredEvent
from perstack.dataclass import dataclass
from perstack.errors import NotFound
from perstack.host import Host
from perstack.testing.chaos.victims import Victim

FindingKind = Literal["lost", "repeated", "wrong"]

_STORED = frozenset(event.model_fields["type"].default for event in get_args(StoredEvent))
_OF_WORK = frozenset(
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
"""What is there as often as in a drive that nothing disturbed, however often it was."""


@dataclass(frozen=True, slots=True)
class ChaosFinding:
    """One promise that was not kept."""

    kind: FindingKind
    message: str


@dataclass(frozen=True)
class Evidence:
    """A Job at one moment."""

    status: str | None = None
    """None: it has no event."""
    question: str | None = None
    approval: str | None = None
    """The id of the question, if it asks for approval of a call."""
    text: str | None = None
    steps: int = 0
    tokens: int = 0
    logs: dict[str, tuple[bytes, ...]] = field(default_factory=dict[str, tuple[bytes, ...]])
    """Every Run's lines."""
    finished: frozenset[str] = frozenset()
    """The keys of the calls that have their result."""
    work: Counter[str] = field(default_factory=Counter[str])
    """How often there is what, by Expert, step and type."""


async def evidence_of(host: Host, job_id: str) -> Evidence:
    """What is stored of a Job. Raises what `Host.load` does, but for a Job that has not begun."""
    try:
        job = await host.job(job_id)
        logs = await host.logs(job_id)
    except NotFound:
        return Evidence()
    finished, work = set[str](), Counter[str]()
    for log in logs:
        for line in log.lines:
            event = json.loads(line)
            if event["type"] in _OF_WORK:
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
    """What one process did that it may not: to what was there, to what it showed, and to calls that had a result."""
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
    """Calls with effects that were made in more than one process."""
    began = Counter(key for victim in victims for key in set(victim.began))
    for key in sorted(key for key in effects if began[key] > 1):
        yield ChaosFinding("repeated", f"call {key} has an effect, and was made {began[key]} times")


async def check_end(host: Host, job_id: str, plain: Evidence, end: Evidence) -> list[ChaosFinding]:
    """How a Job that was disturbed differs from one that was not, and what its logs do not hold."""
    found: list[ChaosFinding] = []
    for word, ours, theirs in (
        ("status", end.status, plain.status),
        ("text", end.text, plain.text),
        ("steps", end.steps, plain.steps),
        ("tokens", end.tokens, plain.tokens),
        ("Runs", len(end.logs), len(plain.logs)),
    ):
        if ours != theirs:
            found.append(ChaosFinding("wrong", f"{word}: {ours!r}, and {theirs!r} undisturbed"))
    found += [ChaosFinding("lost", f"{n} of {what}") for what, n in (plain.work - end.work).items()]
    found += [ChaosFinding("repeated", f"{n} more of {what}") for what, n in (end.work - plain.work).items()]
    ids = Counter(json.loads(line)["id"] for lines in end.logs.values() for line in lines)
    found += [ChaosFinding("repeated", f"event {one} is there {n} times") for one, n in ids.items() if n > 1]
    for check in (host.verify, host.replay):
        report = await check(job_id)
        found += [ChaosFinding("wrong", f"{one.run_id} {one.seq}: {one.message}") for one in report.findings]
    return found


def effects_of(evidence: Evidence) -> frozenset[str]:
    """The keys of the calls that may have an effect."""
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
        return json.loads(line).get("type") in _STORED
    except ValueError:
        return False
