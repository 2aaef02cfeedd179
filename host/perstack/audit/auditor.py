"""Verify logs: of a task, a series, a schedule, a Job, or everything in a storage.

All checks read and report; nothing is written. A fault is a `Finding`, an impossible check an
`Unchecked`; both are in a `Report`, so one damaged log does not end the check of a store.

- A log is checked against its hash chain and by folding its events; then its end is compared with heads kept in
  other places (the index entry or job.json, checkpoints, results of delegates), because a chain alone does not show
  that the log was cut or rewritten.
- Derived data (summaries, settings, checkpoints) is compared with what the logs say, if the logs are right.
- Caches are read before logs. Logs only grow, so a head found in a cache must be in the log that is read later.

Tasks, series and schedules have a single log each, which `_verify_single_log` checks from their log definition. A Job
has several logs, blobs and snapshots; `verify` checks it. `replay` repeats the decisions of a Job from its logs;
`anchor_comparison` compares logs with an anchor.

A new place that keeps a head of a log, or a new event that names a blob, has to be added to `verify`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.audit.cache_comparison import cache_differences
from perstack.audit.trail import AnchoredTrail
from perstack.audit.verification_report import Checked, Finding, Report, Unchecked, compare_with_head
from perstack.audit.verify import verify_job
from perstack.core.base.chain import Head, SealedLine, with_head
from perstack.core.base.ids import By, OwnerKind, place_of
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project
from perstack.core.jobs.job import Job
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.reader import JobReader
from perstack.engine.log.event_log import CheckedLog, E, EventLog, InvalidTransition, S, StoredLine, job_ids, run_ids
from perstack.engine.log.storage_access import log_of, space_of
from perstack.errors import NotFound, StorageError
from perstack.feature_logs.indexed_log import IndexedLogFormat, M, StoredSummary
from perstack.iterations.series_driver import SERIES
from perstack.ports.storage import Storage
from perstack.schedules.schedules import SCHEDULES
from perstack.system.user import this_user
from perstack.tasks.task_log import TASKS

if TYPE_CHECKING:
    from perstack.audit.event_redaction import Redaction
    from perstack.audit.rule_testing import BacktestResult
    from perstack.core.permissions.policy_calls import PolicyCall


async def _verify_single_log(definition: IndexedLogFormat[S, E, M], storage: Storage, owner_id: str) -> Report:
    """Check the log of a task, a series or a schedule, and its stored summary against it. Raises NotFound."""
    space, ref, name = space_of(storage, definition.kind), log_of(owner_id), definition.store.name
    # The summary is read before the log, which may grow meanwhile: its head must then be in the log.
    stored = await definition.store.read(space, owner_id)
    extra_run_ids = [run_id for run_id in await run_ids(space, owner_id) if run_id != ref.run_id]
    findings = [Finding(run_id, 0, "this log does not belong here") for run_id in extra_run_ids]
    events = EventLog(space, definition)
    state_at_head: tuple[S, Head] | None = None

    def observe(line: StoredLine[E], _: SealedLine, state: S | None) -> None:
        nonlocal state_at_head
        if state is not None and (stored.head is None or line.seq == stored.head.seq):
            state_at_head = state, line.head

    log = await events.check(ref, observe)
    if isinstance(log.first_invalid, InvalidTransition):  # `log.wrong` has problems of all other kinds
        log.wrong.append((log.first_invalid.seq, log.first_invalid.reason))
    if log.damage is not None:
        findings.append(Finding("", log.damage.readable + 1, str(log.damage)))
    findings += [Finding("", seq, message) for seq, message in sorted(log.wrong)]
    if len(log.chain) < stored.min_length and not findings:
        message = f"the log ends at {len(log.chain)}, but {name} says it had {stored.min_length} events"
        findings.append(Finding("", 0, message))
    elif stored.head is not None:
        findings += compare_with_head("", stored.head, log.chain)
    unchecked = _report_unchecked(name, stored, log)
    summary_count = 0
    if log.state is not None and not findings and not log.unknown:
        # A process that was killed right after an append leaves the summary of the previous state.
        summary_count = int(stored.text is not None)
        if stored.text is None or state_at_head is None:
            message = f"{name} is missing, or was being written; the log is shown instead"
            unchecked.append(Unchecked("summary", "", 1, message))
        else:
            state, head = state_at_head
            findings += _compare_with_summary(name, stored, with_head(definition.summary(state).to_json(), head))
        unchecked += await _report_missing_jobs(storage, definition.jobs(log.state))
    checked = Checked(len(log.chain), int(stored.head is not None or stored.min_length > 0), summary_count)
    return Report(owner_id, 1, len(log.chain), tuple(findings), tuple(unchecked), checked, definition.kind)


def _report_unchecked(name: str, stored: StoredSummary, log: CheckedLog[S]) -> list[Unchecked]:
    unchecked: list[Unchecked] = []
    if log.unknown:
        first_unknown_seq = log.unknown[0]
        message = f"from event {first_unknown_seq} on: a newer version wrote events that this one cannot read"
        unchecked.append(Unchecked("content", "", len(log.lines) - first_unknown_seq + 1, message))
    covered_count = 0 if stored.head is None else stored.head.seq
    if not covered_count or covered_count < len(log.chain):
        message = f"{name} has no head of these events: nobody would notice if they were rewritten"
        unchecked.append(Unchecked("heads", "", len(log.chain) - covered_count, message))
    return unchecked


def _compare_with_summary(name: str, stored: StoredSummary, expected: bytes) -> list[Finding]:
    try:
        differences = cache_differences(stored.text or b"", expected)
    except ValueError:
        return [Finding("", 0, f"{name} cannot be parsed; its content is in the log too")]
    if stored.head is not None and stored.min_length not in (0, stored.head.seq):
        differences.append(f"is stored as that of event {stored.min_length}, but says it is that of {stored.head.seq}")
    return [Finding("", 0, f"{name} {difference}") for difference in differences]


async def _report_missing_jobs(storage: Storage, job_ids: Iterable[str]) -> list[Unchecked]:
    message = "it names Job {}, which does not exist: it was deleted, or never began"
    return [Unchecked("runs", "", 0, message.format(job_id)) for job_id in job_ids if not await storage.has_job(job_id)]


async def verify_lost(storage: Storage) -> list[Finding]:
    """Return a finding for each task that the storage has traces of but no log."""
    tasks = space_of(storage, "task")
    return [
        Finding(task_id, 0, "a task of this id had events, but its log is gone: put it back from a copy")
        for task_id in await tasks.lost_jobs()
    ]


# Checks of any id, and of a whole store.

_CHECKS: Mapping[OwnerKind, Callable[[Storage, str], Awaitable[Report]]] = {
    "job": verify_job,
    "iterations": partial(_verify_single_log, SERIES),
    "task": partial(_verify_single_log, TASKS),
    "schedule": partial(_verify_single_log, SCHEDULES),
}
"""The check of each kind of owner, in the order in which a store is checked."""


async def verify_any(storage: Storage, owner_id: str) -> Report:
    """Check the Job, series, task or schedule of this id. Raises NotFound."""
    for kind, verify in _CHECKS.items():
        if await space_of(storage, kind).has_job(owner_id):
            return await verify(storage, owner_id)
    return await verify_job(storage, owner_id)


async def verify_store(storage: Storage) -> AsyncGenerator[Report]:
    """Check everything in a storage; yield a report for each owner, even an unreadable one, and for lost tasks."""
    for kind, verify in _CHECKS.items():
        # sorted and each once: an owner that is written to during the listing changes its place in the list
        for owner_id in sorted(set(await job_ids(space_of(storage, kind)))):
            try:
                yield await verify(storage, owner_id)
            except StorageError as error:
                yield Report(owner_id, 0, 0, (Finding("", 0, str(error)),), kind=kind)
    lost = await verify_lost(storage)
    if lost:
        yield Report(storage.location, 0, 0, tuple(lost), kind="store")


# Operations of a Host on its logs.


class Auditor:
    """Verification, receipts, replay and redaction of the logs in a Host's storage."""

    def __init__(self, source: SetupSource, reader: JobReader, trail: AnchoredTrail) -> None:
        """Audit the logs of the reader's storage with the context in force, and the project's `trail`."""
        self._trail = trail
        self._source = source
        self._reader = reader

    @property
    def is_signing(self) -> bool:
        """True if the project has a key, with which receipts are signed. Raises UsageError if it cannot be read."""
        return self._trail.signer is not None

    async def verify(
        self, job_id: str | None = None, *, key: str | Path | None = None, anchor: str | None = None
    ) -> Report:
        """Verify a Job, series, task or schedule: its log, and everything derived from it. Raises NotFound.

        The logs are compared with the project's anchor, or `anchor`. `key` is the file of a public key for its records.
        """
        from perstack.audit.receipts import read_public_key

        public = None if key is None else read_public_key(Path(key))
        comparing = (self._trail if anchor is None else self._trail.with_anchor(anchor)).comparing(public)
        owner_id = await self._reader.id_or_latest(job_id)
        try:
            report = await verify_any(self._reader.storage, owner_id)
        except NotFound:
            missing_report = None if comparing is None else await comparing.missing(owner_id)
            if missing_report is None:
                raise
            return missing_report
        return report if comparing is None else await comparing.compared(report)

    async def verify_all(self, *, key: str | Path | None = None, anchor: str | None = None) -> AsyncGenerator[Report]:
        """Verify everything in the storage, then report what task entries or the anchor name but the storage lost."""
        from perstack.audit.receipts import read_public_key

        public = None if key is None else read_public_key(Path(key))
        comparing = (self._trail if anchor is None else self._trail.with_anchor(anchor)).comparing(public, whole=True)
        async for report in verify_store(self._reader.storage):
            yield report if comparing is None else await comparing.compared(report)
        missing_report = None if comparing is None else await comparing.missing_owners()
        if missing_report is not None:
            yield missing_report

    async def backtest(
        self, project: Project, workspace: Path, *, rules: tuple[str, Permissions] | None = None, since: int = 0
    ) -> AsyncGenerator[BacktestResult]:
        """Yield what the rules of a project decide about all calls since `since` (milliseconds since 1970).

        The most recently written Job comes first. `rules`, with the name of their file, replace the project's own.
        """
        from perstack.audit.rule_testing import Backtest

        async for result in Backtest(project, self._source.setup.plugins.skills, workspace, rules).run(
            self._reader.storage, since
        ):
            yield result

    async def verify_receipt(
        self, receipt: bytes, job_id: str | None = None, *, key: str | Path | None = None, anchor: str | None = None
    ) -> Report:
        """Verify the Job of a receipt, and compare its logs with it. Raises UsageError for a receipt of another Job."""
        from perstack.audit.receipts import read_public_key

        async def check(job: str) -> Report:
            return await self.verify(job, key=key, anchor=anchor)

        public = None if key is None else read_public_key(Path(key))
        return await self._trail.compared_with_receipt(receipt, public, check, job_id)

    async def receipt(self, job_id: str | None = None) -> bytes:
        """Return a receipt over the heads of a Job's logs: DSSE, signed with the project's key, if any."""
        return await self._trail.receipt(await self._reader.id_or_latest(job_id))

    async def replay(self, job_id: str | None = None) -> Report:
        """Drive a Job again from its logs, without a model or a tool, and compare every decision."""
        from perstack.audit.replay import replay_job

        return await replay_job(
            self._reader.storage,
            await self._reader.id_or_latest(job_id),
            self._source.setup.plugins.skills,
            self._source.setup.workspace,
        )

    async def calls(self, job_id: str | None = None) -> tuple[PolicyCall, ...]:
        """Return a Job's calls as permission rules see them, without refused, denied and unapproved calls.

        Raises NotFound, Damaged, and StorageError for a line that cannot be parsed.
        """
        from perstack.recordings.recorded_calls import calls_of_logs

        return calls_of_logs(
            await self._reader.logs(job_id), self._source.setup.plugins.skills, self._source.setup.workspace
        )

    async def redact(
        self, event_id: str, fields: Sequence[str] = (), *, reason: str, by: By | None = None
    ) -> Redaction:
        """Remove what a person, a model or a tool wrote in an event from the log, caches and blobs, for good.

        See `redact_event`. `by` None means this process's user. Returns the event that records it, with the copies
        found.
        """
        from perstack.audit.redact import redact_event

        job = Job(place_of(event_id)[0])
        async with self._trail.anchored(job):
            redaction = await redact_event(
                self._reader.storage,
                event_id,
                fields=fields,
                reason=reason,
                by=by or this_user(),
                clock=self._source.setup.clock,
            )
            job.stored.update((await self._reader.load(job.id)).stored)
        return redaction
