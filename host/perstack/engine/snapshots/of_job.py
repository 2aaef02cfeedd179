"""The snapshots of one Job, made of what only Jobs import that have some."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.core.runs.snapshots import may_have_unrecorded
from perstack.core.runs.stamp import Stamps
from perstack.core.runs.state import Run
from perstack.core.snapshots.events import RecordSnapshot
from perstack.errors import StorageError
from perstack.ports.storage import Storage

if TYPE_CHECKING:  # rules of git, and threads: not for a Job whose workspace is not recorded
    from perstack.engine.session import Session
    from perstack.engine.snapshots.recording import Snapshots


class JobSnapshots:
    """Those that a Job's Runs record."""

    def __init__(self, storage: Storage, job_id: str, workspace: Path, keep_off: Sequence[Path]) -> None:
        self._given = storage, job_id, workspace, tuple(keep_off)
        self._made: Snapshots | None = None

    async def record(self, run: Run, stamp: Stamps) -> RecordSnapshot:
        """The fact of one more; its blobs are on disk. Raises StorageError."""
        if self._made is None:
            from perstack.engine.snapshots.recording import Snapshots

            self._made = Snapshots(*self._given)
        return await self._made.record(run, stamp)

    async def note_left(self, session: Session, worker: str) -> None:
        """Note what calls in hand have done to files, where a worker leaves: the next one may have other files.

        A storage that fails keeps nobody from leaving.
        """
        if worker and may_have_unrecorded(session.run):
            with suppress(StorageError):
                session.note(await self.record(session.run, session.stamp))
