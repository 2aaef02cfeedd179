"""A workspace folder for each Job that a worker drives, at one path on all workers: its model knows the path."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from perstack.core.base.ids import check_job_id, event_id_of
from perstack.core.jobs.summary import JobSummary
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.log.run_session import OnEvent
from perstack.errors import CannotServe, NotFound, PerstackError, UsageError
from perstack.snapshots.changes import snapshots_of
from perstack.snapshots.job_files import JobFiles
from perstack.system.concurrency import shield_until_done
from perstack.system.files import system_reason
from perstack.system.user import this_process
from perstack.workers.serving import JobServer

_MARKER_FILE = ".perstack-workspaces"  # marker file in a root that belongs to workers


class WorkerFolders:
    """The Jobs' folders below one root on this machine, which is used by workers only."""

    def __init__(self, jobs: Jobs, root: Path) -> None:
        """Create or open the root. Raises UsageError if that fails, or if it has files that are not workers'."""
        self._jobs = jobs
        self.root = root.absolute()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / _MARKER_FILE).exists() and any(self.root.iterdir()):
                raise UsageError(f"{root} is not empty: name an empty folder that only workers use")
            (self.root / _MARKER_FILE).touch()
        except OSError as error:
            raise _unusable_error(root, error) from error

    async def serve(
        self,
        job_id: str,
        *,
        worker: str,
        run_id: str | None = None,
        on_event: OnEvent | None = None,
        on_waiting: Callable[[bool], None] | None = None,
    ) -> JobSummary:
        """Drive a Job as `JobServer.serve` does, in its folder, together with all delegates: they need the files.

        The folder is removed afterwards, if its content is in a snapshot. Raises CannotServe for a delegate of a Job
        that another worker drives.
        """
        if run_id is not None:
            raise CannotServe("it works on its Job's files, which are not here: each Job has a folder of its own")
        folder = self.root / check_job_id(job_id)
        # under the lease, so that no other worker uses or prepares the folder
        async with self._jobs.storage.lease(job_id, this_process()):
            await self._prepare(job_id, folder)
        try:
            jobs = self._jobs.in_folder(folder)
            server = JobServer(jobs.source, jobs, jobs.runner, JobFiles(jobs.source, jobs))
            return await server.serve(job_id, worker=worker, on_event=on_event, apart=False)
        finally:
            with suppress(PerstackError):  # deleted, or leased by another worker: keep the folder
                await shield_until_done(self._remove_recorded(job_id, folder))

    async def remove_leftovers(self) -> tuple[str, ...]:
        """Remove the folders of Jobs that nobody drives, if a snapshot has their content; name the others."""
        foreign: list[str] = []
        for folder in await asyncio.to_thread(self._folders):
            try:
                await shield_until_done(self._remove_recorded(check_job_id(folder.name), folder))
            except (NotFound, UsageError):
                foreign.append(folder.name)
            except PerstackError:
                continue  # it is driven, or cannot be read
        return tuple(foreign)

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.root.iterdir() if path.is_dir() and not path.is_symlink())
        except OSError as error:
            raise _unusable_error(self.root, error) from error

    async def _remove_recorded(self, job_id: str, folder: Path) -> None:
        if not await self._jobs.storage.has_job(job_id):
            raise NotFound(f"there is no Job {job_id}")
        async with self._jobs.storage.lease(job_id, this_process()):
            jobs = self._jobs.in_folder(folder)
            if await JobFiles(jobs.source, jobs).is_recorded(job_id):
                await asyncio.to_thread(partial(shutil.rmtree, folder, ignore_errors=True))

    async def _prepare(self, job_id: str, folder: Path) -> None:
        points = snapshots_of(job_id, await self._jobs.logs(job_id))
        await shield_until_done(asyncio.to_thread(_clear if points else _make, folder))
        if points:
            files = JobFiles(self._jobs.source, self._jobs)
            await files.write_files(event_id_of(points[-1].run_id, points[-1].seq), folder, job_id=job_id)


def _clear(folder: Path) -> None:
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise _unusable_error(folder, error) from error
    _make(folder)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _unusable_error(folder, error) from error


def _unusable_error(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder}: {system_reason(error)}")
