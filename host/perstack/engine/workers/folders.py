"""A folder for each Job that a worker drives, with the files that the Job had when it was snapshotted last.

The folder has the same path wherever the Job is driven, as far as workers name the same root: its model knows it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from perstack.core.ids import check_job_id, event_id_of
from perstack.core.job import JobSummary
from perstack.engine.emit import OnEvent
from perstack.engine.jobs import Jobs
from perstack.engine.snapshots_of import shots_of
from perstack.engine.who import this_process
from perstack.errors import CannotServe, NotFound, PerstackError, UsageError
from perstack.ports.uninterrupted import uninterrupted

_MARK = ".perstack-workspaces"
"""The file that says whose a root is."""


class JobFolders:
    """Those below one folder of this machine, which belongs to workers alone."""

    def __init__(self, jobs: Jobs, root: Path) -> None:
        """Raises UsageError for a root that cannot be made, and for one that has files of somebody else: folders in it
        are removed."""
        self._jobs = jobs
        self.root = root.absolute()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / _MARK).exists() and any(self.root.iterdir()):
                raise UsageError(f"{root} is not empty: name a folder that is for workers alone")
            (self.root / _MARK).touch()
        except OSError as error:
            raise _unusable(root, error) from error

    async def serve(
        self,
        job_id: str,
        *,
        worker: str,
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        on_waiting: Callable[[bool], None] | None = None,
    ) -> JobSummary:
        """As `Jobs.serve`, in the Job's own folder, with all its delegates: their files are there.

        The folder is removed afterwards, if all that is in it is snapshotted. Raises CannotServe for a delegate of a
        Job that another worker drives.
        """
        if run_id is not None:
            raise CannotServe("it works on its Job's files, which are not here: each Job has a folder of its own")
        folder = self.root / check_job_id(job_id)
        # nobody else is at work in it, and nobody else makes it ready
        async with self._jobs.storage.lease(job_id, this_process()):
            await self._make_ready(job_id, folder)
        try:
            jobs = self._jobs.in_folder(folder)
            return await jobs.serve(job_id, worker=worker, on_event=on_event, apart=False)
        finally:
            with suppress(PerstackError):  # deleted, or another worker has it: the folder stays
                await uninterrupted(self._remove_recorded(job_id, folder))

    async def look_through(self) -> tuple[str, ...]:
        """Remove the folders of Jobs that nobody drives, left by workers that were killed, if all that is in them is
        snapshotted. Returns the names of those that are no Job's of this storage, and stay.
        """
        strange: list[str] = []
        for folder in await asyncio.to_thread(self._folders):
            try:
                await uninterrupted(self._remove_recorded(check_job_id(folder.name), folder))
            except (NotFound, UsageError):
                strange.append(folder.name)
            except PerstackError:
                continue  # it is driven, or does not read
        return tuple(strange)

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.root.iterdir() if path.is_dir() and not path.is_symlink())
        except OSError as error:
            raise _unusable(self.root, error) from error

    async def _remove_recorded(self, job_id: str, folder: Path) -> None:
        """Remove a folder, if nobody drives the Job and each file is in its latest snapshot. Raises PerstackError."""
        if not await self._jobs.storage.has_job(job_id):
            raise NotFound(f"there is no Job {job_id}")
        async with self._jobs.storage.lease(job_id, this_process()):
            if await self._jobs.in_folder(folder).is_recorded(job_id):
                await asyncio.to_thread(partial(shutil.rmtree, folder, ignore_errors=True))

    async def _make_ready(self, job_id: str, folder: Path) -> None:
        """Put the files of the latest snapshot there, in place of what an earlier drive has left.

        Without a snapshot the folder stays as it is. Raises UsageError and StorageError.
        """
        shots = shots_of(job_id, await self._jobs.logs(job_id))
        await uninterrupted(asyncio.to_thread(_cleared if shots else _made, folder))
        if shots:
            await self._jobs.write_files(event_id_of(shots[-1].run_id, shots[-1].seq), folder, job_id=job_id)


def _cleared(folder: Path) -> None:
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    _made(folder)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder}: {(error.strerror or str(error)).lower()}")
