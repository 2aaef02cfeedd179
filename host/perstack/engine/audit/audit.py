"""Verify logs: of a task, a series, a schedule, a Job, or everything in a storage.

All checks read and report; nothing is written. What is wrong is a `Finding`, what could not be checked is an
`Unchecked`, and both are in a `Report`, so one damaged log does not end the check of a store.

- A log is checked against its hash chain and by folding its events; then its end is compared with heads kept in
  other places (the index entry or job.json, checkpoints, results of delegates), because a chain alone does not show
  that the log was cut or rewritten.
- Derived data (summaries, settings, checkpoints) is compared with what the logs say, if the logs are right.
- Caches are read before logs. Logs only grow, so a head found in a cache must be in the log that is read later.

Tasks, series and schedules have a single log each, and are checked here by `_verify` from their log definition. A Job
has several logs, blobs and snapshots; `verify` checks it. `replay` repeats the decisions of a Job from its logs;
comparisons with anchors are in `engine.anchors`.

A new place that keeps a head of a log, or a new event that names a blob, has to be added to `verify`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import partial

from perstack.core.audit.verification import Checked, Finding, Report, Unchecked, against, against_head
from perstack.core.base.chain import Sealed
from perstack.core.base.ids import OwnerKind
from perstack.core.base.records import Fact
from perstack.engine.audit.verify import verify_job
from perstack.engine.iterations.series_log import SERIES
from perstack.engine.log.event_log import CheckedLog, E, EventLog, InvalidTransition, S, StoredLine, job_ids, run_ids
from perstack.engine.log.indexed_log import IndexedLogFormat, M
from perstack.engine.log.storage import StoredSummary, log_of, space_of
from perstack.engine.schedules.schedule_log import SCHEDULES
from perstack.engine.tasks.task_log import TASKS
from perstack.errors import StorageError
from perstack.ports.storage import Storage


async def _verify(definition: IndexedLogFormat[S, E, M], storage: Storage, of: str) -> Report:
    """Check the log of a task, a series or a schedule, and its stored summary against it. Raises NotFound."""
    space, ref, name = space_of(storage, definition.kind), log_of(of), definition.store.name
    kept = await definition.store.read(space, of)  # before the log, which may grow meanwhile
    others = [run_id for run_id in await run_ids(space, of) if run_id != ref.run_id]
    findings = [Finding(run_id, 0, "a log that is not part of it") for run_id in others]
    events = EventLog(space, definition)
    then: S | None = None

    def observe(line: StoredLine[E], _: Sealed, state: S | None) -> None:
        nonlocal then
        if kept.head is None or line.seq == kept.head.seq:
            then = state

    log = await events.check(ref, observe)
    if isinstance(log.first_invalid, InvalidTransition):  # other problems are in `log.wrong` already
        log.wrong.append((log.first_invalid.seq, log.first_invalid.reason))
    if log.damage is not None:
        findings.append(Finding("", log.damage.readable + 1, str(log.damage)))
    findings += [Finding("", seq, words) for seq, words in sorted(log.wrong)]
    if len(log.chain) < kept.floor and not findings:
        words = f"the log ends at {len(log.chain)}, and {name} names {kept.floor} events"
        findings.append(Finding("", 0, words))
    elif kept.head is not None:
        findings += against_head("", kept.head, log.chain)
    unchecked = _unchecked(name, kept, log)
    compared = 0
    if log.state is not None and not findings and not log.unknown:
        # a process that was killed right after an append leaves the summary of the previous state
        compared = int(kept.text is not None)
        if kept.text is None or then is None:
            words = f"{name} is not there, or was being written; what is shown is from the log"
            unchecked.append(Unchecked("summary", "", 1, words))
        else:
            findings += _against_summary(name, kept.text, definition.summary(then))
        unchecked += await _missing_jobs(storage, definition.jobs(log.state))
    checked = Checked(len(log.chain), int(kept.head is not None or kept.floor > 0), compared)
    return Report(of, 1, len(log.chain), tuple(findings), tuple(unchecked), checked, definition.kind)


def _unchecked(name: str, kept: StoredSummary, log: CheckedLog[S]) -> list[Unchecked]:
    unchecked: list[Unchecked] = []
    if log.unknown:
        first = log.unknown[0]
        words = f"from event {first} on: a newer version has written what this one cannot read"
        unchecked.append(Unchecked("content", "", len(log.lines) - first + 1, words))
    vouched = 0 if kept.head is None else kept.head.seq
    if not vouched or vouched < len(log.chain):
        words = f"{name} has no head of these: a log rewritten from there on would not be seen"
        unchecked.append(Unchecked("heads", "", len(log.chain) - vouched, words))
    return unchecked


def _against_summary(name: str, kept: bytes, summary: Fact) -> list[Finding]:
    try:
        return [Finding("", 0, f"{name} {words}") for words in against(kept, summary)]
    except ValueError:
        return [Finding("", 0, f"{name} does not read: what it says is in the log")]


async def _missing_jobs(storage: Storage, job_ids: Iterable[str]) -> list[Unchecked]:
    words = "it names Job {}, which is not there: it was deleted, or never began"
    return [Unchecked("runs", "", 0, words.format(one)) for one in job_ids if not await storage.has_job(one)]


async def verify_lost(storage: Storage) -> list[Finding]:
    """Return a finding for each task that the storage has traces of but no log."""
    tasks = space_of(storage, "task")
    return [
        Finding(task_id, 0, "a task of this id had events, and its log is gone: put it back from a copy")
        for task_id in await tasks.lost_jobs()
    ]


# Checks of any id, and of a whole store.

_CHECKS: Mapping[OwnerKind, Callable[[Storage, str], Awaitable[Report]]] = {
    "job": verify_job,
    "iterations": partial(_verify, SERIES),
    "task": partial(_verify, TASKS),
    "schedule": partial(_verify, SCHEDULES),
}
"""The check of each kind of owner, in the order in which a store is checked."""


async def verify_any(storage: Storage, of: str) -> Report:
    """Check the Job, series, task or schedule of this id. Raises NotFound."""
    for kind, verify in _CHECKS.items():
        if await space_of(storage, kind).has_job(of):
            return await verify(storage, of)
    return await verify_job(storage, of)


async def verify_store(storage: Storage) -> AsyncGenerator[Report]:
    """Check every Job, series, task and schedule; yield a report for each, and last one for lost tasks.

    Something that cannot be read at all is a report with that finding, and does not end the check.
    """
    for kind, verify in _CHECKS.items():
        # sorted and each once: an owner that is written to during the listing changes its place in the list
        for of in sorted(set(await job_ids(space_of(storage, kind)))):
            try:
                yield await verify(storage, of)
            except StorageError as error:
                yield Report(of, 0, 0, (Finding("", 0, str(error)),), kind=kind)
    lost = await verify_lost(storage)
    if lost:
        yield Report(storage.location, 0, 0, tuple(lost), kind="store")
