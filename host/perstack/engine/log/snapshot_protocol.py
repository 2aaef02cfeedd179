"""Snapshots of a Job's workspace; `perstack.snapshots` takes them, for Jobs that record their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perstack.ports.parts import Part
from perstack.ports.storage import Storage

if TYPE_CHECKING:
    from perstack.core.runs.events.files import RecordSnapshot
    from perstack.core.runs.facts import Stamps
    from perstack.core.runs.state import Run
    from perstack.engine.log.run_session import RunSession


class SnapshotRecorder(Protocol):
    """Recorder of the workspace snapshots of one Job."""

    async def record(self, run: Run, stamp: Stamps) -> RecordSnapshot:
        """Take a snapshot and return its event; its blobs are on disk. Raises StorageError."""
        ...

    async def record_unfinished_changes(self, session: RunSession, worker: str) -> None:
        """Record a snapshot if a worker leaves while calls are unfinished: the next worker may have other files."""
        ...


SNAPSHOTS: Part[Callable[[Storage, str, Path, Sequence[Path]], SnapshotRecorder]] = Part("snapshots")
"""Returns the recorder of a Job in a storage, of a workspace without the given files and folders."""
