"""Checking what is one log with a summary beside it: tasks, series of iterations and schedules."""

from __future__ import annotations

from collections.abc import Iterable

from perstack.core.base import Fact
from perstack.core.chain import Sealed
from perstack.core.verification import Checked, Finding, Report, Unchecked, against, against_head
from perstack.engine.logs.damage import DoesNotFollow
from perstack.engine.logs.kept import Kept, log_of
from perstack.engine.logs.lines import run_ids
from perstack.engine.logs.log import CheckedLog, E, EventLog, S, StoredLine
from perstack.engine.logs.schedules import SCHEDULES
from perstack.engine.logs.series import SERIES
from perstack.engine.logs.summarized import M, Summarized
from perstack.engine.logs.tasks import TASKS
from perstack.ports.storage import FindsLostJobs, Storage


async def verify_task(storage: Storage, task_id: str) -> Report:
    """Check the log of a task, and its entry against it. Raises NotFound."""
    return await _verify(TASKS, storage, task_id)


async def verify_series(storage: Storage, series_id: str) -> Report:
    """Check the log of a series of iterations, and job.json against it. Raises NotFound."""
    return await _verify(SERIES, storage, series_id)


async def verify_schedule(storage: Storage, name: str) -> Report:
    """Check the log of a schedule, and its entry against it. Raises NotFound."""
    return await _verify(SCHEDULES, storage, name)


async def _verify(definition: Summarized[S, E, M], storage: Storage, of: str) -> Report:
    space, ref, name = storage.space(definition.space), log_of(of), definition.keeping.name
    kept = await definition.keeping.read(space, of)  # before the log, which may only grow meanwhile
    others = [run_id for run_id in await run_ids(space, of) if run_id != ref.run_id]
    findings = [Finding(run_id, 0, "a log that is not part of it") for run_id in others]
    events = EventLog(space, definition)
    then: S | None = None

    def observe(line: StoredLine[E], _: Sealed, state: S | None) -> None:
        nonlocal then
        if kept.head is None or line.seq == kept.head.seq:
            then = state

    log = await events.check(ref, observe)
    if isinstance(log.misfit, DoesNotFollow):  # what else may be wrong the check has found
        log.wrong.append((log.misfit.seq, log.misfit.reason))
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
        # a process that was killed right after an event leaves the summary of the state before
        compared = int(kept.text is not None)
        if kept.text is None or then is None:
            words = f"{name} is not there, or was being written; what is shown is from the log"
            unchecked.append(Unchecked("summary", "", 1, words))
        else:
            findings += _against_summary(name, kept.text, definition.summary(then))
        unchecked += await _missing_jobs(storage, definition.jobs(log.state))
    checked = Checked(len(log.chain), int(kept.head is not None or kept.floor > 0), compared)
    return Report(of, 1, len(log.chain), tuple(findings), tuple(unchecked), checked, definition.kind)


def _unchecked(name: str, kept: Kept, log: CheckedLog[S]) -> list[Unchecked]:
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
    """The tasks that are told of, and are not there."""
    tasks = storage.space(TASKS.space)
    return [
        Finding(task_id, 0, "a task of this id had events, and its log is gone: put it back from a copy")
        for task_id in (await tasks.lost_jobs() if isinstance(tasks, FindsLostJobs) else ())
    ]
