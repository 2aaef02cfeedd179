"""Compare and rewind the files of Jobs whose workspaces were recorded in snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.core.base.ids import By, check_id, is_place, job_of_run, place_of
from perstack.core.base.text import REDACTED
from perstack.core.definitions.instruction import names_directory
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.reader import JobReader
from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases
from perstack.errors import Conflict, StorageError, UsageError
from perstack.next_steps import Inspect, SetOption
from perstack.snapshots.rewind_lock import lease_without_rewind
from perstack.state_guard.guarded_state import require_own_state
from perstack.support.storage import every_id
from perstack.system.user import notice, this_user

if TYPE_CHECKING:
    from perstack.core.runs.start import StartRun

if TYPE_CHECKING:  # driving a Job needs none of these
    from perstack.snapshots.rewind import Rewind, Rewinder
    from perstack.snapshots.tree_diff import Change, FileDiff, RewindScope

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class FilesDiff:
    """File changes by a Job, a Run or a step, or from one snapshot to another."""

    job_id: str
    of: str  # description of what made the changes
    files: tuple[FileDiff, ...]


class JobFiles:
    """Files of Jobs whose workspaces were recorded."""

    def __init__(self, source: SetupSource, reader: JobReader) -> None:
        """Compare and rewind files in the workspace of the context in force."""
        self._source = source
        self._reader = reader

    async def diff(self, job_id: str | None = None, what: str | None = None, *, run_id: str | None = None) -> FilesDiff:
        """Return the file changes of a Job; with `run_id` only those of that Run, without its delegates.

        `what` is a step of the Run (by default of the latest Coordinator's), a checkpoint, which means the step that it
        ends, or two checkpoints with `..` between. An omitted first one is the beginning of the Run, an omitted second
        one the current files. Raises UsageError if there is no snapshot, NotFound and StorageError.
        """
        from perstack.snapshots.changes import file_diffs
        from perstack.snapshots.stored_trees import Trees

        job_id = (
            job_of_run(run_id) if job_id is None and run_id is not None else await self._reader.id_or_latest(job_id)
        )
        if what is not None and ".." in what:
            subject, changes = await self._diff_range(job_id, *_split_range(what), run_id)
        else:
            subject, changes = await self._find_changes(job_id, what, run_id)
        return FilesDiff(job_id, subject, await file_diffs(Trees(self._reader.storage, job_id), changes))

    async def plan_rewind(
        self,
        job_id: str,
        checkpoint_id: str,
        *,
        only: Sequence[str] = (),
        keep_added: bool = False,
        elsewhere: bool = False,
    ) -> Rewind:
        """Return what a rewind of this workspace to a checkpoint would change; change and record nothing.

        `only` are globs of paths. With `keep_added` files stay that were added since. A Job that worked in another
        folder is refused unless `elsewhere`. Raises UsageError if there is no snapshot, Conflict while a Job is driven
        in the workspace, NotFound and StorageError.
        """
        run = await self._run_at_checkpoint(job_id, checkpoint_id, elsewhere=elsewhere)
        await self.settle_rewind()
        return await self._rewinder().preview(job_id, run, checkpoint_id, _rewind_scope(only, keep_added=keep_added))

    async def rewind(
        self,
        job_id: str,
        checkpoint_id: str,
        *,
        only: Sequence[str] = (),
        keep_added: bool = False,
        expected: str | None = None,
        elsewhere: bool = False,
        by: By | None = None,
    ) -> Rewind:
        """Restore the files of this workspace to a checkpoint: all of them or, after an error, none.

        The current files are recorded first: `undo` of the result names them. `expected` is the `digest` of the plan:
        any other change is refused. Raises as `plan_rewind`.
        """
        run = await self._run_at_checkpoint(job_id, checkpoint_id, elsewhere=elsewhere)
        author = by or this_user()
        await self.settle_rewind()
        scope = _rewind_scope(only, keep_added=keep_added)
        return await self._rewinder().rewind(job_id, run, checkpoint_id, scope, author, expected)

    async def write_files(self, checkpoint_id: str, folder: str | Path, *, job_id: str | None = None) -> int:
        """Write a checkpoint's files to a new or empty folder; return their number.

        Raises UsageError, NotFound and StorageError.
        """
        job_id = place_of(checkpoint_id)[0] if job_id is None else job_id
        run = await self._reader.state_at(checkpoint_id, job_id)
        return await self._rewinder(_make_folder(Path(folder))).write(job_id, run, checkpoint_id)

    async def is_recorded(self, job_id: str) -> bool:
        """Return whether the latest snapshot has all current files that are not ignored.

        Raises NotFound and StorageError.
        """
        from perstack.snapshots.changes import snapshots_of

        points = snapshots_of(job_id, await self._reader.logs(job_id))
        if not points:
            return False
        latest = (await self._reader.events(points[-1].run_id))[points[-1].seq - 1].event
        if latest.type != "recordSnapshot" or latest.left_out_count:
            return False
        return await self._read_tree(job_id) == latest.tree

    async def check_present(self, job_id: str) -> None:
        """Raise UsageError if this workspace has none of a Job's changes to its files, or none of its files.

        A file that merely differs does not show a wrong workspace: the Jobs of a worker share one. Raises NotFound and
        StorageError.
        """
        from perstack.snapshots.changes import snapshots_of
        from perstack.snapshots.stored_trees import Trees
        from perstack.snapshots.trees import File, Link

        points = snapshots_of(job_id, await self._reader.logs(job_id))
        if not points:
            return
        try:
            now = await self._read_tree(job_id)
        except StorageError:
            return  # too many files, which the next snapshot reports, or a storage whose next write fails too
        trees, latest = Trees(self._reader.storage, job_id), points[-1].tree
        # a Job that has changed nothing yet is recognized by the files that it began with
        changes = await trees.changes(points[0].tree, latest) or await trees.changes(None, latest)
        file_changes = [
            change
            for change in changes
            if isinstance(change.old, File | Link | None) and isinstance(change.new, File | Link | None)
        ]
        differing_count = {change.path: change.old for change in await trees.changes(now, latest)}
        missing_paths = [
            c for c in file_changes if c.path in differing_count and differing_count[c.path] in (None, c.old)
        ]
        if file_changes and len(missing_paths) == len(file_changes):
            name = missing_paths[0].path.decode("utf-8", "replace")
            more = f" and of {len(missing_paths) - 1:,} more" if len(missing_paths) > 1 else ""
            raise UsageError(
                f"the files of Job {job_id} are not in {self._workspace}: none has {name!r}{more} as the Job left it",
                next_steps=(SetOption("workspaces"),),
            )

    async def settle_rewind(self) -> None:
        """Finish or undo a killed rewind of this workspace, with a notice.

        Raises Conflict while another process uses the workspace, NotAgreed, and StorageError.
        """
        await require_own_state(self._reader.storage)
        message = await self._rewinder().settle()
        if message is not None:
            notice(message)

    def without_rewind(
        self, lease: Callable[[], AbstractAsyncContextManager[None]]
    ) -> AbstractAsyncContextManager[None]:
        """Hold the lease of what is driven in this workspace, and prevent rewinds of its files. Raises NotAgreed."""
        check = partial(require_own_state, self._reader.storage)
        return lease_without_rewind(self._workspace, check, self.settle_rewind, lease)

    def _rewinder(self, workspace: Path | None = None) -> Rewinder:
        from perstack.snapshots.rewind import Rewinder

        context = self._source.setup
        return Rewinder(
            context.storage,
            context.workspace if workspace is None else workspace,
            context.audit,
            context.clock,
            context.emitter(),
            context.snapshots,
            self._check_not_driven,
        )

    @property
    def _workspace(self) -> Path:
        return self._source.setup.workspace

    async def _run_at_checkpoint(self, job_id: str, checkpoint_id: str, *, elsewhere: bool) -> Run:
        run = await self._reader.state_at(checkpoint_id, job_id)
        if not elsewhere and not _works_in(run.start, self._workspace):
            raise UsageError(
                f"Job {job_id} did not work in {self._workspace}: change to its folder, or name it as the workspace"
            )
        return run

    async def _check_not_driven(self) -> None:
        """Raise Conflict, naming the Job, while one is driven in this workspace, or may be."""
        for job_id in await every_id(lambda after: self._reader.storage.jobs(limit=_PAGE, after=after)):
            if await self._reader.storage.lease_info(job_id) is not None and await self._works_in_workspace(job_id):
                raise Conflict(f"Job {job_id} is driven in {self._workspace}: cancel it, or wait for its end")
        for run_id in await DelegateLeases(self._reader.storage).driven_delegates():
            if await self._works_in_workspace(job_of_run(run_id)):
                problem = f"{run_id}, a delegate, is driven in {self._workspace}"
                raise Conflict(f"{problem}: cancel Job {job_of_run(run_id)}, or wait for its end")

    async def _works_in_workspace(self, job_id: str) -> bool:
        try:
            return _works_in((await self._reader.load(job_id)).coordinator.start, self._workspace)
        except (StorageError, UsageError, LookupError):
            return True  # it is about to begin, or cannot be read

    async def _find_changes(self, job_id: str, what: str | None, run_id: str | None) -> tuple[str, tuple[Change, ...]]:
        from perstack.snapshots.changes import changes_in, deltas_of, snapshots_of
        from perstack.snapshots.stored_trees import Trees

        logs = await self._reader.logs(job_id)
        points = snapshots_of(job_id, logs)
        if not points:
            raise _no_snapshot(f"Job {job_id}")
        subject, step = f"Job {job_id}", None
        if run_id is not None and run_id not in {log.run_id for log in logs}:
            await self._reader.logs(job_id, run_id=check_id(run_id, "run"))  # raises an error that lists the Runs
        if what is not None and is_place(what):
            run = await self._reader.state_at(what, job_id)
            run_id, step = run.id, run.step
        elif what is not None:
            if not what.isdigit():
                raise UsageError(f"{what} is neither a step nor a checkpoint", next_steps=(Inspect("log", job_id),))
            run_id, step = run_id or (await self._reader.job(job_id)).coordinator_run_id, int(what)
        if run_id is not None:
            subject = f"Run {run_id}" if step is None else f"step {step} of {run_id}"
        selected = [
            delta
            for delta in deltas_of(points)
            if delta.point.by is not None and run_id in (None, delta.point.by[0]) and step in (None, delta.point.by[1])
        ]
        return subject, await changes_in(Trees(self._reader.storage, job_id), selected)

    async def _diff_range(
        self, job_id: str, first: str, last: str, run_id: str | None
    ) -> tuple[str, tuple[Change, ...]]:
        from perstack.snapshots.changes import snapshots_of
        from perstack.snapshots.stored_trees import Trees

        if first and last:
            old, new = await self._recorded_tree(job_id, first), await self._recorded_tree(job_id, last)
        elif first:
            old, new = await self._recorded_tree(job_id, first), await self._read_tree(job_id)
        else:
            run_id = run_id or (place_of(last)[1] if last else (await self._reader.job(job_id)).coordinator_run_id)
            points = [
                point for point in snapshots_of(job_id, await self._reader.logs(job_id)) if point.run_id == run_id
            ]
            if not points:
                raise _no_snapshot(f"Run {run_id}")
            old, new = (
                points[0].tree,
                await self._recorded_tree(job_id, last) if last else await self._read_tree(job_id),
            )
        subject = f"{first or 'the beginning'} to {last or 'now'}"
        return subject, await Trees(self._reader.storage, job_id).changes(old, new)

    async def _recorded_tree(self, job_id: str, checkpoint_id: str) -> str:
        tree = (await self._reader.state_at(checkpoint_id, job_id)).snapshot
        if tree is None:
            raise _no_snapshot(checkpoint_id)
        return tree

    async def _read_tree(self, job_id: str) -> str:
        return await self._rewinder().store_present_tree(job_id)


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {(error.strerror or str(error)).lower()}") from error
    return folder


def _split_range(what: str) -> tuple[str, str]:
    first, _, last = what.partition("..")
    return first.strip(), last.strip(".").strip()


def _works_in(start: StartRun, workspace: Path) -> bool:
    instruction = start.instruction
    return instruction == REDACTED or names_directory(instruction, str(workspace))


def _no_snapshot(owner_id: str) -> UsageError:
    return UsageError(
        f"there is no snapshot of the files of {owner_id}; to have them of later Runs, set"
        ' `workspace = { path = ".", snapshots = true }` in perstack.toml'
    )


def _rewind_scope(only: Sequence[str], *, keep_added: bool) -> RewindScope:
    from perstack.snapshots.tree_diff import RewindScope  # what driving a Job does not need

    return RewindScope(tuple(only), keep_added)


def workspace_lease(
    source: SetupSource, reader: JobReader, lease: Callable[[], AbstractAsyncContextManager[None]]
) -> AbstractAsyncContextManager[None]:
    """Hold a lease of what is driven in the workspace of the context, and prevent rewinds of its files meanwhile."""
    return JobFiles(source, reader).without_rewind(lease)
