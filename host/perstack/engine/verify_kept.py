"""Checking what is one log with a summary beside it: tasks and series of iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from perstack.core.base import Fact
from perstack.core.chain import Sealed
from perstack.core.verification import Checked, Finding, Report, Unchecked, against, against_head
from perstack.engine.logs.damage import DoesNotFollow
from perstack.engine.logs.kept import Kept
from perstack.engine.logs.lines import run_ids
from perstack.engine.logs.log import CheckedLog, EventLog, StoredLine
from perstack.engine.logs.series import SERIES
from perstack.engine.logs.summarized import Summarized, log_of
from perstack.engine.logs.tasks import TASKS
from perstack.ports.storage import Storage

S = TypeVar("S")
E = TypeVar("E", bound=Fact)
M = TypeVar("M", bound=Fact)


async def verify_task(storage: Storage, task_id: str) -> Report:
    """Check the log of a task, and its entry against it. Raises NotFound."""
    return await _verify(TASKS, storage, task_id)


async def verify_series(storage: Storage, series_id: str) -> Report:
    """Check the log of a series of iterations, and job.json against it. Raises NotFound."""
    return await _verify(SERIES, storage, series_id)


async def _verify(definition: Summarized[S, E, M], storage: Storage, of: str) -> Report:
    space = storage.space(definition.space)
    kept = await definition.keeping.read(space, of)  # before the log, which may only grow meanwhile
    others = [run_id for run_id in await run_ids(space, of) if run_id != log_of(of).run_id]
    findings = [Finding(run_id, 0, "a log that is no part of it") for run_id in others]
    log, states = await _checked(definition, space, of, kept)
    if log.damage is not None:
        findings.append(Finding("", log.damage.readable + 1, str(log.damage)))
    findings += [Finding("", seq, words) for seq, words in log.wrong]
    findings += _against_head(definition, kept, log, has_findings=bool(findings))
    unchecked = _unchecked(definition, kept, log)
    has_compared = False
    if states is not None and not findings and not log.unknown:
        found, passed_over = _against_summary(definition, kept, definition.summary(states.kept))
        findings += found
        unchecked += passed_over
        has_compared = not passed_over
        for job_id in definition.jobs(states.last):
            if not await storage.has_job(job_id):
                words = f"it names Job {job_id}, which is not there: it was deleted, or never began"
                unchecked.append(Unchecked("runs", "", 0, words))
    heads = int(kept.head is not None or kept.floor > 0)
    checked = Checked(len(log.chain), heads, int(has_compared))
    return Report(of, 1, len(log.chain), tuple(findings), tuple(unchecked), checked, definition.kind)


@dataclass(frozen=True, slots=True)
class _States(Generic[S]):
    kept: S
    """When the summary was written: a process that was killed right after an event leaves one of the state before."""
    last: S


async def _checked(
    definition: Summarized[S, E, M], space: Storage, of: str, kept: Kept
) -> tuple[CheckedLog, _States[S] | None]:
    """The log, and what it adds up to, up to the first event that is wrong or unknown."""
    lines: list[StoredLine[E]] = []

    def observe(line: StoredLine[E], _: Sealed) -> None:
        lines.append(line)

    events = EventLog(space, definition)
    log = await events.check(log_of(of), observe)
    states: _States[S] | None = None
    for seq, line in enumerate(lines, 1):
        if line.seq != seq:
            break
        try:
            state = await events.after(log_of(of), states.last if states else None, line.event, line.head)
        except DoesNotFollow as error:
            log.wrong.insert(0, (seq, error.reason))
            break
        is_later = kept.head is not None and seq > kept.head.seq
        states = _States(states.kept if states is not None and is_later else state, state)
    return log, states


def _against_head(definition: Summarized[S, E, M], kept: Kept, log: CheckedLog, *, has_findings: bool) -> list[Finding]:
    if len(log.chain) < kept.floor and not has_findings:
        words = f"the log ends at {len(log.chain)}, and {definition.keeping.name} tells of {kept.floor} events"
        return [Finding("", 0, words)]
    return [] if kept.head is None else against_head("", kept.head, log.chain)


def _unchecked(definition: Summarized[S, E, M], kept: Kept, log: CheckedLog) -> list[Unchecked]:
    unchecked: list[Unchecked] = []
    if log.unknown:
        first = log.unknown[0]
        words = f"from event {first} on: a newer version has written what this one cannot read"
        unchecked.append(Unchecked("content", "", len(log.lines) - first + 1, words))
    vouched = 0 if kept.head is None else kept.head.seq
    if not vouched or vouched < len(log.chain):
        words = f"{definition.keeping.name} has no head of these: a log written anew from there on would not be seen"
        unchecked.append(Unchecked("heads", "", len(log.chain) - vouched, words))
    return unchecked


def _against_summary(
    definition: Summarized[S, E, M], kept: Kept, summary: Fact
) -> tuple[list[Finding], list[Unchecked]]:
    name = definition.keeping.name
    if kept.text is None:
        words = f"{name} is not there, or was being written; what is shown is from the log"
        return [], [Unchecked("summary", "", 1, words)]
    try:
        return [Finding("", 0, f"{name} {words}") for words in against(kept.text, summary)], []
    except ValueError:
        return [Finding("", 0, f"{name} does not read: what it says is in the log")], []


async def verify_lost(storage: Storage) -> list[Finding]:
    """The tasks that are told of, and are not there."""
    return [
        Finding(task_id, 0, "a task of this id had events, and its log is gone: put it back from a copy")
        for task_id in await storage.space(TASKS.space).lost_jobs()
    ]
