"""Record the snapshots of one Job's workspace; the module that takes them is imported with the first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.core.runs.facts import Stamps
from perstack.core.runs.state import Run, may_have_unrecorded_changes
from perstack.errors import StorageError
from perstack.ports.storage import Storage

if TYPE_CHECKING:
    from perstack.core.runs.events.files import RecordSnapshot
    from perstack.engine.log.run_session import RunSession
    from perstack.snapshots.snapshots import WorkspaceSnapshots


class JobSnapshots:
    """Recorder of the workspace snapshots of one Job."""

    def __init__(self, storage: Storage, job_id: str, workspace: Path, excluded: Sequence[Path]) -> None:
        """Record this workspace without the files and folders in `excluded`."""
        self._arguments = storage, job_id, workspace, tuple(excluded)
        self._recorder: WorkspaceSnapshots | None = None

    async def record(self, run: Run, stamp: Stamps) -> RecordSnapshot:
        """Take a snapshot and return its event; its blobs are on disk. Raises StorageError."""
        if self._recorder is None:
            from perstack.snapshots.snapshots import WorkspaceSnapshots

            self._recorder = WorkspaceSnapshots(*self._arguments)
        return await self._recorder.record(run, stamp)

    async def record_unfinished_changes(self, session: RunSession, worker: str) -> None:
        """Record what unfinished calls changed when a worker leaves: the next worker may have other files.

        A failing storage is ignored: the worker leaves anyway.
        """
        if worker and may_have_unrecorded_changes(session.run):
            with suppress(StorageError):
                session.add(await self.record(session.run, session.stamp))
