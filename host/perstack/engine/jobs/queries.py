"""Jobs as they stand: everything about them that can be asked without driving one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, overload

from perstack.core.base import JsonObject
from perstack.core.chain import open_line
from perstack.core.definitions import Project
from perstack.core.events import StartRun, StoredEvent, parse_event
from perstack.core.ids import is_place, place_of
from perstack.core.job import RunSummary
from perstack.core.owners import OwnerKind
from perstack.core.policy.permissions import Permissions
from perstack.core.run_facts import ContinuedFrom
from perstack.core.runs.state import Run
from perstack.core.taking_up import due_of
from perstack.engine.audit import Auditing
from perstack.engine.logs.log import StoredLine
from perstack.engine.logs.runs import load_run
from perstack.engine.plugins import Plugins
from perstack.engine.read import JobPage, JobReader
from perstack.engine.typed_ids import whole_id
from perstack.errors import NotFound, StorageError
from perstack.ports.storage import RunRef, Storage, StorageCheck

if TYPE_CHECKING:
    from perstack.core.policy.calls import PolicyCall
    from perstack.core.recording.model import Recording
    from perstack.core.run_tree import PlacedRun
    from perstack.core.verification import Report
    from perstack.engine.backtest import Tested
    from perstack.engine.disk_usage import DiskUsage
    from perstack.engine.storage_copy import Copied


class JobQueries(JobReader):
    """What a Host says of the Jobs in its storage, beside what is read of them. Nothing here changes a log."""

    def __init__(
        self,
        storage: Storage,
        audit: Auditing,
        plugins: Plugins,
        workspace: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(storage)
        self._env = env or {}
        self.audit = audit
        self.plugins = plugins
        self._workspace = workspace

    async def list(
        self, *, limit: int = 100, after: str | None = None, labels: Mapping[str, str] | None = None
    ) -> JobPage:
        """Jobs, the one written to last first; `after` is the `next` of the page before.

        With `labels` only those that have all of them; such a page may have more than `limit`.
        """
        return await self._page(limit=limit, after=after, labels=labels)

    async def __call__(
        self, *, limit: int = 100, after: str | None = None, labels: Mapping[str, str] | None = None
    ) -> JobPage:
        """The older name of `list`."""
        return await self.list(limit=limit, after=after, labels=labels)

    @overload
    async def find(self, typed: str, kinds: Sequence[OwnerKind] = ...) -> str: ...
    @overload
    async def find(self, typed: str | None, kinds: Sequence[OwnerKind] = ...) -> str | None: ...
    async def find(self, typed: str | None, kinds: Sequence[OwnerKind] = ("job",)) -> str | None:
        """The id that a person means by what was typed: whole, a beginning that only one has, `@last` or `@last~N`.

        None stays None. Raises UsageError that lists all that a beginning fits.
        """
        return None if typed is None else await whole_id(self.storage, typed, kinds)

    async def run_state(self, job_id: str, run_id: str) -> Run | None:
        """A Run at the end of its log; None if it has none. Raises Damaged and StorageError."""
        return await load_run(self.storage, RunRef(job_id, run_id))

    async def watch(
        self,
        job_id: str | None = None,
        *,
        queued: bool = False,
        after: Mapping[str, int] | None = None,
        on_caught_up: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[StoredLine[StoredEvent]]:
        """Every stored event of a Job, whoever drives it, until nobody does and all was shown.

        `queued`: one that waits for a worker, or was left by one that ended, is waited for. `after` is how many of each
        Run have been seen already. `on_caught_up` is called each time that all there is was shown.
        """
        from perstack.engine.watch import watch_job

        watched = await self._job_id(job_id)

        async def is_over() -> bool:
            job = await self.job(watched)
            return job.status not in ("queued", "running") if job.queued is None else await self._is_seen_to(watched)

        is_seen_to = is_over if queued else None
        async for line in watch_job(self.storage, watched, is_seen_to, after=after, on_caught_up=on_caught_up):
            yield line

    async def _is_seen_to(self, job_id: str) -> bool:
        """Whether no worker has anything to do with a Job that nobody drives; one that is at work was just taken."""
        job = await self.job(job_id)
        if job.closed is not None or job.status not in ("queued", "running", "stoppedByInterrupt"):
            return True
        if job.status != "stoppedByInterrupt" or job.pause_reason == "rate_limit":
            return False
        loaded = await self.load(job_id)
        return due_of(loaded.runs[loaded.job.coordinator.start.run_id], 0) is None

    async def tree(self, job_id: str | None = None) -> tuple[PlacedRun, ...]:
        """The Runs of a Job, each after the one that it follows from: delegates, continuations and branches."""
        from perstack.core.run_tree import tree_of

        job = await self.job(job_id)
        return tree_of(job.runs, {run.id: await self._place(job.id, run) for run in job.runs if run.continued_from})

    async def _place(self, job_id: str, run: RunSummary) -> ContinuedFrom:
        """Where a Run continues another one, as its log says; as far as its summary does, if that does not read."""
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
        """Check a Job, a series of iterations or a task: its log, heads kept elsewhere, and all that is derived; a Job
        also against the project's anchor, or the one that is named.

        With `key`, the file of a public key, every record in an anchor has to be signed by that. Writes nothing. Raises
        NotFound.
        """
        from perstack.engine.signing import read_public_key
        from perstack.engine.verify_store import verify_any

        public = None if key is None else read_public_key(Path(key))
        comparing = (self.audit if anchor is None else self.audit.naming(anchor)).comparing(public)
        of = await self._job_id(job_id)
        try:
            report = await verify_any(self.storage, of)
        except NotFound:
            absent = None if comparing is None else await comparing.absent(of)
            if absent is None:
                raise
            return absent
        return report if comparing is None else await comparing.compared(report)

    async def verify_all(self, *, key: str | Path | None = None, anchor: str | None = None) -> AsyncGenerator[Report]:
        """The same for every Job, series and task; one that cannot be read is a report with that finding.

        Last comes what is told of and is not there, by entries of tasks and by the anchor.
        """
        from perstack.engine.signing import read_public_key
        from perstack.engine.verify_store import verify_store

        public = None if key is None else read_public_key(Path(key))
        comparing = (self.audit if anchor is None else self.audit.naming(anchor)).comparing(public, whole=True)
        async for report in verify_store(self.storage):
            yield report if comparing is None else await comparing.compared(report)
        lost = None if comparing is None else await comparing.lost()
        if lost is not None:
            yield lost

    async def backtest(
        self, project: Project, workspace: Path, *, rules: tuple[str, Permissions] | None = None, since: int = 0
    ) -> AsyncGenerator[Tested]:
        """What the rules of a project decide about all calls that were made since then (milliseconds since 1970).

        Job by Job, the one written to last first. `rules`, with the name of their file, take the place of the
        project's own. It costs no token, and changes nothing.
        """
        from perstack.engine.backtest import Backtest

        async for tested in Backtest(project, self.plugins.skills, workspace, rules).of(self.storage, since):
            yield tested

    async def verify_receipt(
        self, receipt: bytes, job_id: str | None = None, *, key: str | Path | None = None, anchor: str | None = None
    ) -> Report:
        """Check the Job that a receipt is of, and compare its logs with that receipt.

        Raises UsageError for what is not a receipt, or one of another Job than `job_id`.
        """
        from perstack.engine.signing import read_public_key

        async def check(job: str) -> Report:
            return await self.verify(job, key=key, anchor=anchor)

        public = None if key is None else read_public_key(Path(key))
        return await self.audit.compared_with_receipt(receipt, public, check, job_id)

    async def receipt(self, job_id: str | None = None) -> bytes:
        """A statement over the heads of a Job's logs, in JSON, to be kept elsewhere: in a DSSE envelope that the
        project's key has signed, or alone if it has none."""
        return await self.audit.receipt(await self._job_id(job_id))

    async def copy_to(
        self, target: Storage, ids: Sequence[str] = (), since: int | None = None
    ) -> AsyncGenerator[Copied]:
        """Copy Jobs, tasks and series to another storage, as they are; only those of `ids`, or whose last event is not
        older than `since` (milliseconds since 1970). What is there already is continued, never changed.

        Raises NotFound, and UsageError if it is the same storage.
        """
        from perstack.engine.storage_copy import copy_storage

        async with aclosing(copy_storage(self.storage, target, ids, since)) as copied:
            async for one in copied:
                yield one

    async def check_storage(self) -> Sequence[StorageCheck]:
        """Whether the storage can be reached, and has what it needs. Makes no Job; what is wrong is no error."""
        from perstack.engine.storage_checks import storage_checks

        return await storage_checks(self.storage)

    async def disk_usage(self, ids: Sequence[str] = ()) -> DiskUsage:
        """How many bytes Jobs, tasks and series take, the largest first; only those of `ids`, if some are given.

        Raises NotFound, and UsageError for a storage that cannot measure.
        """
        from perstack.engine.disk_usage import disk_usage

        return await disk_usage(self.storage, ids)

    async def replay(self, job_id: str | None = None) -> Report:
        """Drive a Job again from its logs, without a model or a tool, and compare every decision."""
        from perstack.engine.replay import replay_job

        return await replay_job(self.storage, await self._job_id(job_id), self.plugins.skills, self._workspace)

    async def calls(self, job_id: str | None = None) -> tuple[PolicyCall, ...]:
        """The calls that a Job's Runs have made, Run by Run, as permission rules see them.

        One that was refused, denied or not approved was not made. Raises NotFound, Damaged, and StorageError for a
        line that does not read.
        """
        from perstack.engine.seen_calls import calls_made

        return calls_made(await self.logs(job_id), self.plugins.skills, self._workspace)

    async def record(self, job_id: str | None = None) -> Recording:
        """A Job as far as it got, for the provider `recorded` to play: replies, results, answers, approvals, delegates.

        What looks like a secret, and the values of this Host's secret variables, are taken out. Raises NotFound,
        Damaged, and UsageError for a Job with a redacted event, or one that is more than a recording holds.
        """
        from perstack.engine.recording import record_job

        return await record_job(self.storage, await self._job_id(job_id), self._env)

    async def document(self, job_id: str | None = None) -> JsonObject:
        """A Job as one JSON document: `job`, `runs`, `checkpoints`, and each Run's `messages` once."""
        from perstack.engine.export import job_document

        return await job_document(self.storage, await self.job(job_id))

    async def export(self, form: str, job_id: str | None = None) -> Mapping[str, bytes]:
        """The files of a Job as another program keeps them, by their relative path: `form` is what a plugin calls it.

        Raises UsageError that lists the forms there are.
        """
        from perstack.engine.export import foreign_files

        return await foreign_files(self.storage, await self._job_id(job_id), self.plugins.format(form))

    async def original_files(self, job_id: str | None = None) -> Mapping[str, bytes]:
        """The older name of `export("perstack")`."""
        return await self.export("perstack", job_id)
