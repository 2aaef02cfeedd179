"""Checking what is one log each: tasks and series of iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ValidationError

from perstack.core.base import Fact
from perstack.core.chain import EMPTY_LOG, BrokenSeal, Head, taken_out
from perstack.core.chain import check as check_line
from perstack.core.ids import run_id_of
from perstack.core.iteration_events import parse_series_event
from perstack.core.iterations import SeriesState, summary_of_series
from perstack.core.task_events import parse_task_event
from perstack.core.tasks import TaskState, summary_of
from perstack.core.verification import Checked, Finding, Kind, Report, Unchecked, against, against_head, head_in
from perstack.engine import series_log, task_log
from perstack.engine.load import readable, run_ids
from perstack.errors import UsageError
from perstack.ports.storage import RunRef, Storage

S = TypeVar("S")


@dataclass(frozen=True)
class _Sort(Generic[S]):
    """What is different between the two."""

    kind: Kind
    kept: str
    """What the summary is called that is kept beside the log."""
    fold: Callable[[S | None, bytes], S]
    """The state after one fact more, from its JSON. Raises ValidationError for one that this version does not know."""
    summary: Callable[[S], Fact]
    jobs: Callable[[S], list[str]]
    """The Jobs that are named."""


def _after_task(state: TaskState | None, payload: bytes) -> TaskState:
    return task_log.after(state, parse_task_event(payload))


def _after_series(state: SeriesState | None, payload: bytes) -> SeriesState:
    return series_log.after(state, parse_series_event(payload))


_TASK = _Sort[TaskState](
    "task", "its entry", _after_task, summary_of, lambda task: [] if task.job_id is None else [task.job_id]
)
_SERIES = _Sort[SeriesState](
    "iterations",
    "job.json",
    _after_series,
    summary_of_series,
    lambda series: [one.job_id for one in series.iterations],
)


async def verify_task(storage: Storage, task_id: str) -> Report:
    """Check the log of a task, and its entry against it. Raises NotFound."""
    space = storage.space(task_log.SPACE)
    entry = await space.entry(task_id)
    kept = None if entry is None or not entry[1] else entry[1]
    return await _verify(_TASK, storage, space, task_id, kept, task_log.floor(entry))


async def verify_series(storage: Storage, series_id: str) -> Report:
    """Check the log of a series of iterations, and job.json against it. Raises NotFound."""
    space = storage.space(series_log.SPACE)
    return await _verify(_SERIES, storage, space, series_id, await space.summary(series_id), 0)


async def _verify(sort: _Sort[S], storage: Storage, space: Storage, of: str, kept: bytes | None, floor: int) -> Report:
    """`floor`: how many facts there were, as is known from elsewhere."""
    ref = RunRef(of, run_id_of(of, 1))
    others = [run_id for run_id in await run_ids(space, of) if run_id != ref.run_id]
    findings = [Finding(run_id, 0, "a log that is no part of it") for run_id in others]
    unchecked: list[Unchecked] = []
    lines, damage = await readable(space, ref)
    state, chain, wrong, unread = _fold(sort.fold, lines)
    if damage is not None:
        findings.append(Finding("", damage.readable + 1, str(damage)))
    findings += wrong
    if unread:
        words = "a newer version has written what this one cannot read"
        unchecked.append(Unchecked("content", "", len(lines) - unread + 1, f"from event {unread} on: {words}"))
    head = None if kept is None else head_in(kept)
    if len(chain) < floor and not findings:
        findings.append(Finding("", 0, f"the log ends at {len(chain)}, and {sort.kept} tells of {floor} events"))
    elif head is not None:
        findings += against_head("", head, chain)
    if head is None or head.seq < len(chain):
        words = f"{sort.kept} has no head of these: a log written anew from there on would not be seen"
        unchecked.append(Unchecked("heads", "", len(chain) - (0 if head is None else head.seq), words))
    has_compared = False
    if state is not None and not findings and not unread:
        found, passed_over = _against_kept(sort, kept, sort.summary(state))
        findings += found
        unchecked += passed_over
        has_compared = kept is not None and not passed_over
        for job_id in sort.jobs(state):
            if not await storage.has_job(job_id):
                words = f"it names Job {job_id}, which is not there: it was deleted, or never began"
                unchecked.append(Unchecked("runs", "", 0, words))
    checked = Checked(len(chain), int(head is not None or floor > 0), int(has_compared))
    return Report(of, 1, len(chain), tuple(findings), tuple(unchecked), checked, sort.kind)


def _fold(
    fold: Callable[[S | None, bytes], S], lines: list[bytes]
) -> tuple[S | None, dict[int, str], list[Finding], int]:
    """The state, the hash at each place, what is wrong, and from which event on it cannot be read, if at all."""
    state: S | None = None
    chain: dict[int, str] = {}
    findings: list[Finding] = []
    head: Head = EMPTY_LOG
    unread = 0
    for line in lines:
        try:
            sealed, head = check_line(head, line)
        except BrokenSeal as error:
            return state, chain, [*findings, Finding("", head.seq + 1, str(error))], unread
        chain[head.seq] = head.hash
        if taken_out(sealed.payload) is not None:
            findings.append(Finding("", head.seq, "its content was taken out, which is not done here"))
        if findings or unread:
            continue
        try:
            state = fold(state, sealed.payload)
        except ValidationError:
            unread = head.seq
        except (ValueError, LookupError, UsageError) as error:
            words = f"it does not follow from what comes before it ({error})"
            findings.append(Finding("", head.seq, words))
    return state, chain, findings, unread


def _against_kept(sort: _Sort[S], kept: bytes | None, summary: Fact) -> tuple[list[Finding], list[Unchecked]]:
    if kept is None:
        words = f"{sort.kept} is not there, or was being written; what is shown is from the log"
        return [], [Unchecked("summary", "", 1, words)]
    try:
        return [Finding("", 0, f"{sort.kept} {words}") for words in against(kept, summary)], []
    except ValueError:
        return [Finding("", 0, f"{sort.kept} does not read: what it says is in the log")], []


async def verify_lost(storage: Storage) -> list[Finding]:
    """The tasks that are told of, and are not there."""
    space = storage.space(task_log.SPACE)
    return [
        Finding(task_id, 0, "a task of this id had events, and its log is gone: put it back from a copy")
        for task_id in await space.lost_jobs()
    ]
