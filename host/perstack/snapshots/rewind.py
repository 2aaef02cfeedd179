"""Rewind the files of a workspace to a checkpoint: `startRewind` is recorded before, `finishRewind` after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from pathlib import Path

from perstack.core.base.ids import By
from perstack.core.files.file_names import parse_spelling, spell
from perstack.core.jobs.job import Job
from perstack.core.runs.events.files import FinishRewind, StartRewind
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.context.audit_trail import AuditTrail
from perstack.engine.log.job_summary_file import JobSummaryFile
from perstack.engine.log.run_log import load_job, run_logs
from perstack.engine.log.run_session import Emitter, RunSession
from perstack.engine.log.snapshot_protocol import SnapshotRecorder
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.ports.storage import RunRef, Storage
from perstack.snapshots.changes import file_diffs
from perstack.snapshots.ignore_rules import IgnoreRules, rules_at
from perstack.snapshots.rewind_journal import JournalFile, Rewound, Step
from perstack.snapshots.rewind_lock import hold_rewind_lock, journal_path, lock_path
from perstack.snapshots.rewind_steps import RewindSteps, StagedRewind, mode_of
from perstack.snapshots.stored_trees import Trees
from perstack.snapshots.tree_diff import Change, FileDiff, KeptReason, RewindPlan, RewindScope, rewind_plan
from perstack.snapshots.trees import File, Link, Subfolder, TreeFolder
from perstack.system.clock import Clock
from perstack.system.concurrency import shield_until_done
from perstack.system.user import this_process

# Files that the ignore rules of an earlier tree excluded from it.

_RULES = (b".gitignore", b".perstackignore")


async def paths_ignored_by(trees: Trees, tree: str, changes: Sequence[Change]) -> frozenset[bytes]:
    """Return changed paths that the ignore rules of a tree excluded from it. Raises NotFound, StorageError."""
    if not any(change.path.rpartition(b"/")[2] in _RULES for change in changes):
        return frozenset()  # the same rules recorded both trees
    top = await trees.folder(tree)
    rules = rules_at(
        [(b"", await _read_content(trees, top, _RULES[0]))], perstackignore=await _read_content(trees, top, _RULES[1])
    )
    paths: set[bytes] = set()
    for change in changes:
        if change.new is None and await _is_ignored_by(trees, top, rules, change):
            paths.add(change.path)
    return frozenset(paths)


async def _is_ignored_by(trees: Trees, folder: TreeFolder, rules: IgnoreRules, change: Change) -> bool:
    *parents, name = change.path.split(b"/")
    for part in parents:
        if rules.ignores(part, is_folder=True):
            return True
        subfolder = next((entry for entry in folder.entries if entry.name == part), None)
        folder = await trees.folder(subfolder.digest) if isinstance(subfolder, Subfolder) else TreeFolder()
        rules = rules.for_subfolder(part, await _read_content(trees, folder, _RULES[0]))
    return rules.ignores(name, is_folder=isinstance(change.old, Subfolder))


async def _read_content(trees: Trees, folder: TreeFolder, name: bytes) -> bytes | None:
    entry = next((entry for entry in folder.entries if entry.name == name), None)
    return await trees.content(entry.digest) if isinstance(entry, File) else None


_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class KeptPath:
    """A path that a rewind leaves unchanged, though the snapshots differ."""

    path: str
    why: KeptReason


@dataclass(frozen=True, slots=True)
class Rewind:
    """Changes that a rewind makes, or has made."""

    job_id: str
    checkpoint_id: str
    workspace: str
    files: tuple[FileDiff, ...]  # differences from the current files to the restored ones
    kept: tuple[KeptPath, ...]
    digest: str
    """Identifies the changes and the files that they start from: a `rewind` given it makes these changes or none."""
    undo: str | None = None  # the checkpoint to rewind to in order to revert this rewind; None if nothing was changed


class Rewinder:
    """Rewinds one workspace, for Jobs of one storage."""

    def __init__(
        self,
        storage: Storage,
        workspace: Path,
        audit: AuditTrail,
        clock: Clock,
        emit: Emitter,
        snapshots: Callable[[str], SnapshotRecorder],
        check_not_driven: Callable[[], Awaitable[None]],
    ) -> None:
        """Rewind this workspace. `check_not_driven` raises Conflict while a Job is driven in it."""
        self._storage = storage
        self._workspace = workspace.resolve()
        self._audit = audit
        self._clock = clock
        self._emit = emit
        self._snapshots = snapshots
        self._check_not_driven = check_not_driven
        self._lock = lock_path(self._workspace)
        self._journal = JournalFile(journal_path(self._workspace), self._workspace)

    async def preview(self, job_id: str, run: Run, checkpoint_id: str, scope: RewindScope) -> Rewind:
        """Return what a rewind to a Run's snapshot would change. Raises UsageError, StorageError, Conflict."""
        await self._check_not_driven()
        job = await load_job(self._storage, job_id)
        present = await self._record_present_snapshot(job)
        changes, _, plan = await self._plan_steps(job_id, run, checkpoint_id, present, scope)
        return await self._build_result(job_id, checkpoint_id, present, changes, plan)

    async def rewind(
        self, job_id: str, run: Run, checkpoint_id: str, scope: RewindScope, by: By, expected: str | None
    ) -> Rewind:
        """Restore and record the files, or do neither. Raises as `preview`; Conflict unless the plan is `expected`."""
        with self._hold_lock():
            await self._check_not_driven()
            async with self._storage.lease(job_id, f"a rewind ({this_process()})"):
                return await shield_until_done(self._restore(job_id, run, checkpoint_id, scope, by, expected))

    async def store_present_tree(self, job_id: str) -> str:
        """Store the tree of the current files with the Job, and return its digest. Raises StorageError."""
        return await self._record_present_snapshot(await load_job(self._storage, job_id))

    async def write(self, job_id: str, run: Run, checkpoint_id: str) -> int:
        """Write the files of a Run's snapshot to this workspace, which must be empty. Returns their number.

        Records nothing. Raises UsageError, Conflict and StorageError.
        """
        with self._hold_lock():
            if any(self._workspace.iterdir()):
                raise UsageError(f"{self._workspace} is not empty: files of a snapshot are written to a new folder")
            trees = Trees(self._storage, job_id)
            changes = await trees.changes(None, _tree_of(run, checkpoint_id))
            steps = await asyncio.to_thread(self._check_steps, rewind_plan(changes, RewindScope(), frozenset()))
            await shield_until_done(self._perform_steps(steps.steps, steps.plan.changes, trees, None))
        return len(steps.plan.changes)

    async def settle(self) -> str | None:
        """Finish or undo a killed rewind of this workspace. Returns a message, or None if there was none.

        Raises RewindInProgress while another process uses the workspace, and StorageError.
        """
        journal = self._journal.read()
        if journal is None:
            return None
        if journal.storage != self._storage.location:
            raise StorageError(
                f"{self._workspace}: a rewind by Jobs in {journal.storage} was cut short here: rewind again there first"
            )
        with self._hold_lock():
            return await shield_until_done(self._finish_killed_rewind())

    async def _restore(
        self, job_id: str, run: Run, checkpoint_id: str, scope: RewindScope, by: By, expected: str | None
    ) -> Rewind:
        job = await load_job(self._storage, job_id)
        async with self._audit.anchored(job):
            session = self._session(job)
            tree = await self._record_present_snapshot(job)
            changes, steps, plan = await self._plan_steps(job_id, run, checkpoint_id, tree, scope)
            result = await self._build_result(job_id, checkpoint_id, tree, changes, plan)
            if expected is not None and result.digest != expected:
                raise Conflict("files have changed since you saw the plan: look at the new one")
            if not changes:
                return result
            await JobSummaryFile(self._storage, job).mark_stale()
            start_rewind = session.add(
                StartRewind(
                    **session.stamp(),
                    to_checkpoint=checkpoint_id,
                    tree=tree,
                    only=scope.only,
                    keeps_added=scope.keeps_added,
                    by=by,
                )
            )
            await session.flush()
            rewound = Rewound(
                job_id=job_id,
                run_id=session.ref.run_id,
                start=start_rewind.id,
                files=len(changes),
                kept=len(plan.kept),
            )
            trees = Trees(self._storage, job_id)

            async def record() -> None:
                await self._record_finish(rewound, job, session)

            try:
                await self._perform_steps(steps.steps, changes, trees, rewound, record)
            finally:
                await self._write_summary(job)
        return Rewind(
            result.job_id,
            result.checkpoint_id,
            result.workspace,
            result.files,
            result.kept,
            result.digest,
            undo=start_rewind.id,
        )

    async def _perform_steps(
        self,
        steps: tuple[Step, ...],
        changes: Sequence[Change],
        trees: Trees,
        rewound: Rewound | None,
        record: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        try:
            restorer = await asyncio.to_thread(StagedRewind, self._journal, self._storage.location)
        except OSError as error:
            raise self._storage_error(error) from error
        with restorer:
            try:
                await asyncio.to_thread(restorer.begin)
                await self._stage(restorer, steps, changes, trees)
                await asyncio.to_thread(restorer.put_in_place, steps, rewound)
                if record is not None:
                    await record()
            except BaseException as error:
                await self._undo(restorer)
                if isinstance(error, OSError):
                    raise self._storage_error(error) from error
                raise
            with suppress(OSError):  # done and recorded: the next opening of the workspace cleans up
                await asyncio.to_thread(restorer.finish)

    async def _undo(self, restorer: StagedRewind) -> None:
        with suppress(OSError):  # the next opening of the workspace continues
            await asyncio.to_thread(restorer.undo)

    async def _stage(
        self, restorer: StagedRewind, steps: Sequence[Step], changes: Sequence[Change], trees: Trees
    ) -> None:
        entries = {change.path: change.new for change in changes}
        files: list[tuple[Step, bytes, int]] = []
        links: list[tuple[Step, bytes]] = []
        size = 0
        for step in steps:
            path = parse_spelling(step.path)
            entry = entries.get(path)
            if step.act != "put":
                continue
            if isinstance(entry, Link):
                links.append((step, entry.target))
            elif isinstance(entry, File):
                content = await trees.content(entry.digest)
                files.append((step, content, mode_of(restorer.root, path, is_program=entry.is_program)))
                size += len(content)
            if size > _BATCH_BYTES:
                await asyncio.to_thread(restorer.stage, files, links)
                files, links, size = [], [], 0
        await asyncio.to_thread(restorer.stage, files, links)

    async def _plan_steps(
        self, job_id: str, run: Run, checkpoint_id: str, present: str, scope: RewindScope
    ) -> tuple[tuple[Change, ...], RewindSteps, RewindPlan]:
        trees, tree = Trees(self._storage, job_id), _tree_of(run, checkpoint_id)
        changes = await trees.changes(present, tree)
        ignored_then = await paths_ignored_by(trees, tree, changes)
        plan = rewind_plan(changes, scope, ignored_then)
        steps = await asyncio.to_thread(self._check_steps, plan)
        return steps.plan.changes, steps, steps.plan

    def _check_steps(self, plan: RewindPlan) -> RewindSteps:
        try:
            with StagedRewind(self._journal, self._storage.location) as restorer:
                return RewindSteps(restorer.root, plan)
        except OSError as error:
            raise self._storage_error(error) from error

    async def _build_result(
        self, job_id: str, checkpoint_id: str, present: str, changes: Sequence[Change], plan: RewindPlan
    ) -> Rewind:
        files = await file_diffs(Trees(self._storage, job_id), changes)
        kept = tuple(KeptPath(spell(item.path), item.why) for item in plan.kept)
        digest = sha256(repr((present, checkpoint_id, changes, plan.kept)).encode()).hexdigest()
        return Rewind(job_id, checkpoint_id, str(self._workspace), files, kept, digest)

    async def _record_present_snapshot(self, job: Job) -> str:
        session = self._session(job)
        event = await self._snapshots(job.id).record(session.run, session.stamp)
        if event.tree is None:
            raise StorageError(f"{event.problem}: the present files cannot be recorded, so nothing is rewound")
        return event.tree

    async def _record_finish(self, rewound: Rewound, job: Job, session: RunSession) -> None:
        snapshot = await self._snapshots(rewound.job_id).record(session.run, session.stamp)
        session.add(
            FinishRewind(
                **session.stamp(), start=rewound.start, tree=snapshot.tree, files=rewound.files, kept=rewound.kept
            )
        )
        await session.flush()

    async def _write_summary(self, job: Job) -> None:
        with suppress(StorageError):  # it is a cache
            await JobSummaryFile(self._storage, job).write(is_driven=False)

    async def _finish_killed_rewind(self) -> str | None:
        try:
            with await asyncio.to_thread(StagedRewind, self._journal, self._storage.location) as restorer:
                journal = await asyncio.to_thread(restorer.resume)
                if journal is None:
                    return f"a rewind of {self._workspace} was cut short, and is undone: its files are as before it"
                if journal.rewound is not None:
                    with suppress(NotFound):  # the Job was deleted meanwhile
                        await self._record_once(journal.rewound)
                await asyncio.to_thread(restorer.finish)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StorageError(
                f"{self._workspace}: {reason}: a rewind was cut short, and could not be repaired:"
                " the next command tries again"
            ) from error
        return f"a rewind of {self._workspace} was cut short, and has now been completed"

    async def _record_once(self, rewound: Rewound) -> None:
        async with self._storage.lease(rewound.job_id, f"a rewind ({this_process()})"):
            job = await load_job(self._storage, rewound.job_id)
            ref = RunRef(rewound.job_id, rewound.run_id)
            lines = (await run_logs(self._storage).read_intact(ref)).or_raise().lines
            if any(isinstance(line.event, FinishRewind) and line.event.start == rewound.start for line in lines):
                return
            async with self._audit.anchored(job):
                await self._record_finish(rewound, job, self._session(job))
                await self._write_summary(job)

    def _session(self, job: Job) -> RunSession:
        run = job.coordinator
        return RunSession.of(self._storage, job, run, self._emit, clock=self._clock)

    def _hold_lock(self) -> AbstractContextManager[None]:
        return hold_rewind_lock(self._workspace, self._lock)

    def _storage_error(self, error: OSError) -> StorageError:
        reason = (error.strerror or str(error)).lower()
        return StorageError(f"{self._workspace}: {reason}: nothing is rewound, the files are as they were")


def _tree_of(run: Run, checkpoint_id: str) -> str:
    if run.snapshot is None:
        raise UsageError(
            f"{checkpoint_id} has no snapshot of the files; to have them of later Runs, set"
            ' `workspace = { path = ".", snapshots = true }` in perstack.toml'
        )
    return run.snapshot
