"""The folders of one space, and of the Jobs in it, by their open handles."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from perstack.core.ids import check_job_id
from perstack.errors import NotFound
from perstack_filesystem.folders import Folder
from perstack_filesystem.handles import OpenFolders


class JobFolders:
    """Finds and makes them. What is found stays open as long as `opened` is."""

    def __init__(self, root: Path, space: str, folders: OpenFolders | None = None) -> None:
        self._root = root
        self._folders = folders or OpenFolders(root)
        self._space = space

    def _jobs(self, opened: ExitStack) -> Folder | None:
        """The folder of the space, open as long as `opened` is; None if it is not there."""
        jobs = self._folders.find(self._space)
        return None if jobs is None else opened.enter_context(jobs)

    def _find(self, opened: ExitStack, job_id: str, *below: str) -> Folder | None:
        """The folder of a Job, or one below it; None if it is not there. Open as long as `opened` is."""
        folder = self._folders.find(self._space, check_job_id(job_id), *below[:1])
        for name in below[1:]:
            folder = None if folder is None else opened.enter_context(folder).find(name)
        return None if folder is None else opened.enter_context(folder)

    def _job(self, opened: ExitStack, job_id: str) -> Folder:
        return self._there(self._find(opened, job_id), job_id)

    def _made(self, opened: ExitStack, job_id: str, name: str) -> Folder:
        """A folder in that of a Job, which is made if need be."""
        return opened.enter_context(self._there(self._folders.make(self._space, check_job_id(job_id), name), job_id))

    def _there(self, folder: Folder | None, job_id: str) -> Folder:
        if folder is None:
            raise NotFound(f"there is no Job {job_id} in {self._root}")
        return folder
