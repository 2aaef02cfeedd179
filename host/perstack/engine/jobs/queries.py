"""Queries about Jobs: lists, watching, verification, exports and storage checks, all without driving one.

Most methods import the part that does the work, so that a command imports only what it uses. No method changes a log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, overload

from perstack.core.base.chain import open_line
from perstack.core.base.ids import OwnerKind, is_place, place_of
from perstack.core.base.records import JsonObject
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Project
from perstack.core.jobs.resuming import due_of
from perstack.core.jobs.summary import RunSummary
from perstack.core.runs.events import StartRun, StoredEvent, parse_event
from perstack.core.runs.facts import ContinuedFrom
from perstack.core.runs.state import Run
from perstack.engine.anchors.trail import AuditTrail
from perstack.engine.jobs.reader import JobPage, JobReader
from perstack.engine.log.event_log import StoredLine
from perstack.engine.log.run_log import load_run
from perstack.engine.log.storage import resolve_id
from perstack.engine.plugins.registry import Plugins
from perstack.errors import NotFound, StorageError
from perstack.ports.storage import RunRef, Storage, StorageCheck

if TYPE_CHECKING:
    from perstack.core.audit.verification import Report
    from perstack.core.jobs.summary import PlacedRun
    from perstack.core.permissions.calls import PolicyCall
    from perstack.core.recordings.model import Recording
    from perstack.engine.audit.storage_admin import Copied, DiskUsage
    from perstack.engine.permissions.rule_testing import BacktestResult


class JobQueries(JobReader):
    """Queries about the Jobs in a Host's storage, in addition to plain reads. Nothing here changes a log."""

    def __init__(
        self,
        storage: Storage,
        audit: AuditTrail,
        plugins: Plugins,
        workspace: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Create the queries of a storage. `env` has the secret variables that recordings must not contain."""
        super().__init__(storage)
        self._env = env or {}
        self.audit = audit
        self.plugins = plugins
        self._workspace = workspace

    async def list(
        self, *, limit: int = 100, after: str | None = None, labels: Mapping[str, str] | None = None
    ) -> JobPage:
        """Return a page of Jobs, most recently written first. `after` is the `next` of the page before.

        With `labels` only Jobs that have all of them; such a page may have more than `limit`.
        """
        return await self._page(limit=limit, after=after, labels=labels)

    @overload
    async def find(self, typed: str, kinds: Sequence[OwnerKind] = ...) -> str: ...
    @overload
    async def find(self, typed: str | None, kinds: Sequence[OwnerKind] = ...) -> str | None: ...
    async def find(self, typed: str | None, kinds: Sequence[OwnerKind] = ("job",)) -> str | None:
        """Return the id for what a person typed: a complete id, an unambiguous prefix, `@last` or `@last~N`.

        None stays None. Raises UsageError that lists all matches of an ambiguous prefix.
        """
        return None if typed is None else await resolve_id(self.storage, typed, kinds)

    async def run_state(self, job_id: str, run_id: str) -> Run | None:
        """Return a Run's state at the end of its log; None without events. Raises Damaged and StorageError."""
        return await load_run(self.storage, RunRef(job_id, run_id))

    async def watch(
        self,
        job_id: str | None = None,
        *,
        queued: bool = False,
        after: Mapping[str, int] | None = None,
        on_caught_up: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[StoredLine[StoredEvent]]:
        """Yield every stored event of a Job, in whichever process it is driven, until it is not driven any more.

        `queued`: also wait for a Job that is queued, or was left by a worker that ended. `after`: the number of events
        of each Run that are known already. `on_caught_up` is called each time all stored events were yielded.
        """
        from perstack.engine.log.run_log import watch_job

        watched = await self._job_id(job_id)

        async def is_over() -> bool:
            job = await self.job(watched)
            return job.status not in ("queued", "running") if job.queued is None else await self._is_seen_to(watched)

        is_seen_to = is_over if queued else None
        async for line in watch_job(self.storage, watched, is_seen_to, after=after, on_caught_up=on_caught_up):
            yield line

    async def _is_seen_to(self, job_id: str) -> bool:
        """Return whether no worker will drive a Job that is not driven now; a «running» one was just claimed."""
        job = await self.job(job_id)
        if job.closed is not None or job.status not in ("queued", "running", "stoppedByInterrupt"):
            return True
        if job.status != "stoppedByInterrupt" or job.pause_reason == "rate_limit":
            return False
        loaded = await self.load(job_id)
        return due_of(loaded.coordinator, 0) is None

    async def tree(self, job_id: str | None = None) -> tuple[PlacedRun, ...]:
        """Return the Runs of a Job, each after the Run that it follows from: delegates, continuations and branches."""
        from perstack.core.jobs.summary import tree_of

        job = await self.job(job_id)
        return tree_of(job.runs, {run.id: await self._place(job.id, run) for run in job.runs if run.continued_from})

    async def _place(self, job_id: str, run: RunSummary) -> ContinuedFrom:
        """Return where a Run continues another one, from its log, or from its summary if the log cannot be read."""
        with suppress(StorageError, ValueError):
            for line in await self.storage.read(RunRef(job_id, run.id), limit=1):
                start = parse_event(open_line(line).payload)
                if isinstance(start, StartRun) and start.continued_from is not None:
                    return start.continued_from
        place = run.continued_from or ""
        return ContinuedFrom(run_id=place_of(place)[1] if is_place(place) else "", checkpoint_id=place)

    async def verify(
        self, job_id: str | None = None, *, key: str | Path | None = None, anchor: str | None = None
    ) -> Report:
        """Verify a Job, a series of iterations or a task: its log, and everything derived from it.

        The log is also compared with heads kept outside of the storage; a Job also with the project's anchor, or the
        one named. With `key`, the file of a public key, every record in an anchor must be signed by it. Writes nothing.
        Raises NotFound.
        """
        from perstack.engine.anchors.receipts import read_public_key
        from perstack.engine.audit.audit import verify_any

        public = None if key is None else read_public_key(Path(key))
        comparing = (self.audit if anchor is None else self.audit.with_anchor(anchor)).comparing(public)
        of = await self._job_id(job_id)
        try:
            report = await verify_any(self.storage, of)
        except NotFound:
            absent = None if comparing is None else await comparing.missing(of)
            if absent is None:
                raise
            return absent
        return report if comparing is None else await comparing.compared(report)

    async def verify_all(self, *, key: str | Path | None = None, anchor: str | None = None) -> AsyncGenerator[Report]:
        """Verify every Job, series and task; one that cannot be read yields a report with that finding.

        The last report lists what entries of tasks, or the anchor, name and the storage does not have.
        """
        from perstack.engine.anchors.receipts import read_public_key
        from perstack.engine.audit.audit import verify_store

        public = None if key is None else read_public_key(Path(key))
        comparing = (self.audit if anchor is None else self.audit.with_anchor(anchor)).comparing(public, whole=True)
        async for report in verify_store(self.storage):
            yield report if comparing is None else await comparing.compared(report)
        lost = None if comparing is None else await comparing.missing_owners()
        if lost is not None:
            yield lost

    async def backtest(
        self, project: Project, workspace: Path, *, rules: tuple[str, Permissions] | None = None, since: int = 0
    ) -> AsyncGenerator[BacktestResult]:
        """Yield what the rules of a project decide about all calls since `since` (milliseconds since 1970).

        Job by Job, most recently written first. `rules`, with the name of their file, replace the project's own. It
        uses no tokens, and changes nothing.
        """
        from perstack.engine.permissions.rule_testing import Backtest

        async for tested in Backtest(project, self.plugins.skills, workspace, rules).of(self.storage, since):
            yield tested

    async def verify_receipt(
        self, receipt: bytes, job_id: str | None = None, *, key: str | Path | None = None, anchor: str | None = None
    ) -> Report:
        """Verify the Job of a receipt, and compare its logs with the receipt.

        Raises UsageError for an invalid receipt, or one of another Job than `job_id`.
        """
        from perstack.engine.anchors.receipts import read_public_key

        async def check(job: str) -> Report:
            return await self.verify(job, key=key, anchor=anchor)

        public = None if key is None else read_public_key(Path(key))
        return await self.audit.compared_with_receipt(receipt, public, check, job_id)

    async def receipt(self, job_id: str | None = None) -> bytes:
        """Return a receipt, to be kept outside of the storage: a JSON statement over the heads of a Job's logs.

        It is in a DSSE envelope signed with the project's key, or unsigned if the project has none.
        """
        return await self.audit.receipt(await self._job_id(job_id))

    async def copy_to(
        self, target: Storage, ids: Sequence[str] = (), since: int | None = None
    ) -> AsyncGenerator[Copied]:
        """Copy Jobs, tasks and series unchanged to another storage, and yield each copy.

        Only those of `ids`, or whose last event is not older than `since` (milliseconds since 1970). Existing copies
        are continued, never changed. Raises NotFound, and UsageError if it is the same storage.
        """
        from perstack.engine.audit.storage_admin import copy_storage

        async with aclosing(copy_storage(self.storage, target, ids, since)) as copied:
            async for one in copied:
                yield one

    async def check_storage(self) -> Sequence[StorageCheck]:
        """Check that the storage can be reached and has what it needs. Creates no Job, and returns failures."""
        from perstack.engine.audit.storage_admin import storage_checks

        return await storage_checks(self.storage)

    async def disk_usage(self, ids: Sequence[str] = ()) -> DiskUsage:
        """Measure the bytes that Jobs, tasks and series use, largest first; only those of `ids`, if some are given.

        Raises NotFound, and UsageError for a storage that cannot measure.
        """
        from perstack.engine.audit.storage_admin import disk_usage

        return await disk_usage(self.storage, ids)

    async def replay(self, job_id: str | None = None) -> Report:
        """Drive a Job again from its logs, without a model or a tool, and compare every decision."""
        from perstack.engine.audit.replay import replay_job

        return await replay_job(self.storage, await self._job_id(job_id), self.plugins.skills, self._workspace)

    async def calls(self, job_id: str | None = None) -> tuple[PolicyCall, ...]:
        """Return the calls that a Job's Runs have made, Run by Run, as permission rules see them.

        Refused, denied and unapproved calls are not included. Raises NotFound, Damaged, and StorageError for a line
        that cannot be parsed.
        """
        from perstack.engine.permissions.recorded_calls import calls_made

        return calls_made(await self.logs(job_id), self.plugins.skills, self._workspace)

    async def record(self, job_id: str | None = None) -> Recording:
        """Record a Job, as far as it has got, for the provider `recorded` to play.

        A recording has replies, results, answers, approvals and delegates, without what looks like a secret and the
        values of this Host's secret variables. Raises NotFound, Damaged, and UsageError for a Job with a redacted
        event, or one that is too large for a recording.
        """
        from perstack.engine.jobs.export import record_job

        return await record_job(self.storage, await self._job_id(job_id), self._env)

    async def document(self, job_id: str | None = None) -> JsonObject:
        """Return a Job as one JSON document: `job`, `runs`, `checkpoints`, and each Run's `messages` once."""
        from perstack.engine.jobs.export import job_document

        return await job_document(self.storage, await self.job(job_id))

    async def export(self, form: str, job_id: str | None = None) -> Mapping[str, bytes]:
        """Return the files of a Job in the format of another program, by relative path.

        `form` is the name that a plugin gives the format. Raises UsageError that lists the installed formats.
        """
        from perstack.engine.jobs.export import foreign_files

        return await foreign_files(self.storage, await self._job_id(job_id), self.plugins.format(form))
