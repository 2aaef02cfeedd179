"""Blob directories of Jobs, and the pool through which Jobs share blobs.

The pool is `{root}/.blobs/{ab}/{sha256}`; each file is a hard link to the file of that name in every Job that has it. A
Job never depends on the pool: its own links keep its blobs, even if the pool is removed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from hashlib import sha256 as new_sha256
from pathlib import Path

from perstack.core.base.ids import check_id, check_job_id
from perstack.support.storage import no_job
from perstack.system.concurrency import shield_until_done
from perstack.system.files import FOLDER_MODE
from perstack_filesystem.directories import OpenDirectory, OpenFolders, explain

_BLOB = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = re.compile(r"\..*\.tmp")
"""Temporary names of `OpenDirectory.replace`. A killed process leaves such files behind."""


def blob_names(blobs: OpenDirectory) -> tuple[str, ...]:
    """Return the names of the files in a blob directory whose names are SHA-256 digests."""
    return tuple(entry.name for entry in blobs.entries() if _BLOB.fullmatch(entry.name))


def remove_unfinished(folder: OpenDirectory) -> None:
    """Remove temporary files of interrupted writes from a Job's directory and everything below it."""
    has_any = False
    for entry in folder.entries():
        if entry.is_dir(follow_symlinks=False):
            subfolder = folder.find(entry.name)
            if subfolder is not None:
                with subfolder:
                    remove_unfinished(subfolder)
        elif _UNFINISHED.fullmatch(entry.name):
            has_any = folder.remove(entry.name) or has_any
    if has_any:
        folder.sync()


POOL = ".blobs"
_MAX_SINGLE_SYNCS = 8  # maximum files that are synced one by one; more are synced at once with `syncfs`


def keep_all(root: Path, blobs: OpenDirectory, contents: Mapping[str, bytes]) -> None:
    """Store contents in a Job's blob directory durably. A file gets its name when its content is on disk."""
    missing = {name: data for name, data in contents.items() if not _has_blob(blobs, name, len(data))}
    with ExitStack() as opened:
        pool = _Pool(root, opened)
        new_contents = {name: data for name, data in missing.items() if not pool.link_into_job(name, data, blobs)}
        _write_blobs(blobs, new_contents)
        for name in new_contents:
            pool.add(name, blobs)
    if missing:
        blobs.sync()


def free_blobs(root: Path, blobs: OpenDirectory, names: tuple[str, ...]) -> None:
    """Remove from the pool the blobs that no other Job has.

    Call it before this Job loses its links: a crash leaks none.
    """
    with ExitStack() as opened:
        pool = _Pool(root, opened)
        for name in names:
            pool.free_blob(name, blobs)


class _Pool:
    """The pool of shared blobs, `.blobs`."""

    def __init__(self, root: Path, opened: ExitStack) -> None:
        """Open nothing yet; `opened` closes the directories that are opened later."""
        self._root = root
        self._stack = opened
        self._top: OpenDirectory | None = None
        self._parts: dict[str, OpenDirectory] = {}

    def link_into_job(self, name: str, data: bytes, blobs: OpenDirectory) -> bool:
        """Link a pool file into the Job's directory. Return False if the pool lacks it or its content is damaged."""
        part = self._open_part(name, make=False)
        if part is None or part.read(name) != data:
            return False
        try:
            os.link(name, name, src_dir_fd=part.fd, dst_dir_fd=blobs.fd, follow_symlinks=False)
        except FileExistsError:
            return False  # replace the Job's incomplete file of that name
        except OSError:
            return False  # the file system supports no hard links, or no more
        return True

    def add(self, name: str, blobs: OpenDirectory) -> None:
        """Link a Job's blob into the pool, if the file system supports it."""
        part = self._open_part(name, make=True)
        if part is None:
            return
        with suppress(OSError):
            try:
                os.link(name, name, src_dir_fd=blobs.fd, dst_dir_fd=part.fd, follow_symlinks=False)
            except FileExistsError:
                part.remove(name)  # the pool's file is damaged
                os.link(name, name, src_dir_fd=blobs.fd, dst_dir_fd=part.fd, follow_symlinks=False)

    def free_blob(self, name: str, blobs: OpenDirectory) -> None:
        part = self._open_part(name, make=False)
        pooled, job_file = None if part is None else part.stat(name), blobs.stat(name)
        if part is not None and pooled is not None:
            links = 1 if job_file is None or job_file.st_ino != pooled.st_ino else 2
            # Another process may link the file right now: it keeps its link, and adds the file to the pool again.
            if pooled.st_nlink <= links:
                part.remove(name)

    def _open_part(self, name: str, *, make: bool) -> OpenDirectory | None:
        """Return the pool's subdirectory for a name; None if it is missing or, with `make`, unsupported."""
        start = name[:2]
        if start not in self._parts:
            if self._top is None:
                top = self._stack.enter_context(_open_pool(self._root))
                pool = _make_folder(top, POOL) if make else top.find(POOL)
                if pool is None:
                    return None
                self._top = self._stack.enter_context(pool)
            part = _make_folder(self._top, start) if make else self._top.find(start)
            if part is None:
                return None
            self._parts[start] = self._stack.enter_context(part)
        return self._parts[start]


def _make_folder(folder: OpenDirectory, name: str) -> OpenDirectory | None:
    """Create and open a pool directory. Its name need not survive power loss: without it fewer blobs are shared."""
    with suppress(OSError):
        os.mkdir(name, FOLDER_MODE, dir_fd=folder.fd)
    return folder.find(name)


def _open_pool(root: Path) -> OpenDirectory:
    folder = OpenDirectory.top(root)
    if folder is None:
        raise explain(FileNotFoundError(2, "it was removed at the same moment"), root)
    return folder


def _has_blob(blobs: OpenDirectory, name: str, size: int) -> bool:
    status = blobs.stat(name)
    return status is not None and status.st_size == size


def _write_blobs(blobs: OpenDirectory, contents: Mapping[str, bytes]) -> None:
    """Write the files under temporary names, sync them, then rename each. Removes unfinished ones after an error."""
    syncs_each = len(contents) <= _MAX_SINGLE_SYNCS or not _has_syncfs()
    pending: list[tuple[str, str]] = []
    try:
        for name, data in contents.items():
            pending.append((blobs.write_aside(name, data, sync=syncs_each), name))
        if not syncs_each:
            _sync_all(blobs)
        while pending:
            blobs.put_in_place(*pending[-1])
            pending.pop()
    except BaseException:
        for temporary, _ in pending:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=blobs.fd)
        raise


@cache
def _libc_with_syncfs() -> ctypes.CDLL | None:
    try:
        system = ctypes.CDLL(None, use_errno=True)
        return system if hasattr(system, "syncfs") else None
    except OSError:
        return None


def _has_syncfs() -> bool:
    return _libc_with_syncfs() is not None


def _sync_all(folder: OpenDirectory) -> None:
    system = _libc_with_syncfs()
    if system is None or system.syncfs(folder.fd):
        number = ctypes.get_errno()
        raise explain(OSError(number, os.strerror(number)), folder.path)


class JobDirectories:
    """Directories of one namespace and its Jobs. Handles stay open until `opened` is closed."""

    def __init__(self, root: Path, space: str, folders: OpenFolders | None = None) -> None:
        """Use the open directories `folders` of another namespace of this root, if given."""
        self._root = root
        self._folders = folders or OpenFolders(root)
        self._space = space

    def _find_jobs(self, opened: ExitStack) -> OpenDirectory | None:
        jobs_folder = self._folders.find(self._space)
        return None if jobs_folder is None else opened.enter_context(jobs_folder)

    def _find(self, opened: ExitStack, job_id: str, *below: str) -> OpenDirectory | None:
        folder = self._folders.find(self._space, check_job_id(job_id), *below[:1])
        for name in below[1:]:
            folder = None if folder is None else opened.enter_context(folder).find(name)
        return None if folder is None else opened.enter_context(folder)

    def _require_job(self, opened: ExitStack, job_id: str) -> OpenDirectory:
        return self._require_folder(self._find(opened, job_id), job_id)

    def _make_subfolder(self, opened: ExitStack, job_id: str, name: str) -> OpenDirectory:
        return opened.enter_context(
            self._require_folder(self._folders.make(self._space, check_job_id(job_id), name), job_id)
        )

    def _require_folder(self, folder: OpenDirectory | None, job_id: str) -> OpenDirectory:
        if folder is None:
            raise no_job(job_id, self._root)
        return folder


class BlobFolders(JobDirectories):
    """Blobs of Jobs: each is a file in the Job's directory, which several Jobs may share through hard links."""

    async def put_blob(self, job_id: str, data: bytes) -> str:
        """Store a blob durably and return its SHA-256 in hex. Stored bytes are not stored again."""
        name = new_sha256(data).hexdigest()
        with ExitStack() as opened:
            blobs = self._make_subfolder(opened, job_id, "blobs")
            if blobs.read(name) != data:
                blobs.replace(name, data, sync=True)
            blobs.sync()
        return name

    async def put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        """Store many blobs durably, each content once for all Jobs, and return their SHA-256 names."""
        return await shield_until_done(asyncio.to_thread(self._put_blobs, job_id, blobs))

    def _put_blobs(self, job_id: str, blobs: Sequence[bytes]) -> tuple[str, ...]:
        names = tuple(new_sha256(data).hexdigest() for data in blobs)
        with ExitStack() as opened:
            keep_all(self._root, self._make_subfolder(opened, job_id, "blobs"), dict(zip(names, blobs, strict=True)))
        return names

    async def blobs(self, job_id: str) -> tuple[str, ...]:
        with ExitStack() as opened:
            self._require_job(opened, job_id)
            folder = self._find(opened, job_id, "blobs")
            return () if folder is None else blob_names(folder)

    async def remove_blob(self, job_id: str, sha256: str) -> None:
        """Remove a blob. Does nothing if it does not exist."""
        with ExitStack() as opened:
            folder = self._find(opened, job_id, "blobs")
            if folder is not None:
                free_blobs(self._root, folder, (check_id(sha256, "blob"),))
                if folder.remove(sha256):
                    folder.sync()

    def _free_blobs(self, job_folder: OpenDirectory) -> None:
        blobs = job_folder.find("blobs")
        if blobs is not None:
            with blobs:
                free_blobs(self._root, blobs, blob_names(blobs))
