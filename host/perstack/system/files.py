"""Durable writes, locks on files, and reading of regular files only. Every storage uses these functions.

On macOS `fsync` only hands data to the disk, which may keep it in a cache; F_FULLFSYNC empties that cache.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from perstack.errors import Conflict, NotFound

_UNSUPPORTED_ERRORS = (errno.EINVAL, errno.ENOTTY, errno.ENOTSUP, errno.EOPNOTSUPP)  # errors of network file systems


def sync(fd: int) -> None:
    """Make the content and metadata of an open file, or a directory's entries, survive power loss. Raises OSError."""
    if sys.platform == "darwin":
        _sync_to_the_medium(fd)
    else:
        os.fsync(fd)


def sync_data(fd: int) -> None:
    """Make the content of an open file survive power loss, and the metadata needed to read it. Raises OSError."""
    if sys.platform == "linux":
        os.fdatasync(fd)
    else:
        sync(fd)


if sys.platform == "darwin":

    def _sync_to_the_medium(fd: int) -> None:
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _UNSUPPORTED_ERRORS:
                raise
            os.fsync(fd)


# Small files that are replaced as a whole.

FOLDER_MODE = 0o700
FILE_MODE = 0o600  # state contains requests to models and results of tools, so only its owner may read it


def replace_private_file(path: Path, content: bytes, folder: int | None = None, *, mode: int = FILE_MODE) -> None:
    """Replace a file atomically and durably, readable only by its owner unless `mode` says more. Raises OSError.

    `folder`: the open folder in which `path` is a name, so that no other folder can take its place. Without it the
    folder of `path` must exist.
    """
    if folder is None:
        handle = os.open(path.parent, FOLDER)
        try:
            replace_private_file(Path(path.name), content, handle, mode=mode)
        finally:
            os.close(handle)
        return
    name = f".{os.urandom(8).hex()}.tmp"
    file = open_regular(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder)
    try:
        with os.fdopen(file, "wb") as stream:
            os.fchmod(file, mode)
            stream.write(content)
            stream.flush()
            sync(file)
        os.rename(name, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    sync(folder)


# For storages that keep files: a folder that only its owner may read and that git ignores.


def make_state_folder(path: Path) -> bool:
    """Create the folder and its parents durably; False, without change, if it exists. Raises OSError."""
    if path.is_dir():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    (path / ".gitignore").write_text("*\n")
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make a directory's entries survive power loss. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


# Leases of storages whose users share a machine: an OS lock (`flock`) on an open file. The kernel frees the lock when
# the last descriptor of that opening closes, so the death of the holder frees it at once. Child programs do not
# inherit descriptors that Python opens, so they never keep a lease alive.
_LOCK_ATTEMPTS = 5
_MAX_HOLDER_BYTES = 1000  # maximum bytes of the text about a holder that a lock file keeps


@asynccontextmanager
async def hold_file_lock(open_file: Callable[[], int], holder: str, job_id: str) -> AsyncGenerator[None]:
    """Hold the lock on the file that `open_file` opens for reading and writing, and write `holder` into it.

    Raises Conflict, naming the holder, if another opening of the file has the lock, and NotFound if the file was
    deleted meanwhile.
    """
    fd = open_file()
    try:
        await _lock(fd, job_id)
        if os.fstat(fd).st_nlink == 0:
            raise NotFound(f"Job {job_id} was deleted")
        _write_holder(fd, holder)
        try:
            yield
        finally:
            _write_holder(fd, "")
    finally:
        os.close(fd)


def lock_holder(fd: int) -> str | None:
    """Return the text that the holder of the lock on this open file wrote; None if nobody holds it."""
    if try_lock(fd, shared=True):
        fcntl.flock(fd, fcntl.LOCK_UN)
        return None
    return os.pread(fd, _MAX_HOLDER_BYTES, 0).decode(errors="replace") or "another process"


def _write_holder(fd: int, holder: str) -> None:
    # ignore errors: the lock works without the text, and a full disk must not end a Job
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, holder.encode()[:_MAX_HOLDER_BYTES], 0)


async def _lock(fd: int, job_id: str) -> None:
    """Lock an open file. Raises Conflict, naming the holder, if another opening has the lock."""
    import asyncio

    # several attempts, because a process in `lock_holder` has the lock for a moment
    for attempt in range(_LOCK_ATTEMPTS):
        if try_lock(fd):
            return
        await asyncio.sleep(0.001 * attempt)
    holder = os.pread(fd, _MAX_HOLDER_BYTES, 0).decode(errors="replace") or "another process"
    raise Conflict(f"Job {job_id} is being driven by {holder}: wait until it ends, or stop it")


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting. Return False if another opening of the file has a conflicting lock."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Regular files, never a pipe, a device or a folder. A plain `open` of a named pipe blocks until its other end opens,
# and no signal interrupts the blocked thread; a device may be endless. Anyone who can write to a folder can put one
# there under a name that we use. So all our files, and all files that a definition or a model names, are opened here:
# without blocking, and only if the opened file is regular. Reads are limited.

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # flags to open a folder
REAL_FOLDER = FOLDER | os.O_NOFOLLOW  # flags to open a folder that must not be a link
_SAFE_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20


class NotRegular(OSError):
    """Error of a name that belongs to a folder, a pipe, a socket or a device instead of a file."""


class FileTooLarge(OSError):
    """Error of a file that exceeds its size limit."""


def system_reason(error: Exception) -> str:
    """Return why an operation failed, as a part of a sentence: the system's text in lower case, or the error's own.

    An error's own text may contain names and paths, so its case stays.
    """
    reason = error.strerror if isinstance(error, OSError) else None
    return reason.lower() if reason else str(error) or type(error).__name__


def open_regular(
    name: str | bytes | Path,
    flags: int = os.O_RDONLY,
    mode: int = 0o600,
    *,
    folder: int | None = None,
    follow: bool = False,
) -> int:
    """Open a regular file, below `folder` if given; `follow`: it may be a link. Raises OSError, NotRegular."""
    links = 0 if follow else os.O_NOFOLLOW
    try:
        fd = os.open(name, flags | links | _SAFE_FLAGS, mode, dir_fd=folder)
    except OSError as error:
        # ENXIO: a socket, a pipe without a reader, a device without a driver. EISDIR: a folder opened for writing.
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise _not_regular(name) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _not_regular(name)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def open_for_reading(name: str | bytes | Path, folder: int | None = None, *, follow: bool = False) -> Generator[int]:
    """Open a regular file for reading, as `open_regular` does, during the block. Raises OSError."""
    file = open_regular(name, folder=folder, follow=follow)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def locked_folder(folder: Path) -> Generator[int]:
    """Open the folder, and exclude other processes that lock it, during the block. Raises OSError."""
    handle = os.open(folder, FOLDER)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return a file's content; it may be a link. Raises OSError, NotRegular, and FileTooLarge above `max_bytes`."""
    with open_for_reading(path, follow=True) as file:
        return read_rest(file, max_bytes)


def read_below(folder: Path, path: str, max_bytes: int) -> bytes:
    """Return a file's content; no link below the folder is followed. Raises OSError (NotRegular, FileTooLarge)."""
    *above, name = path.split("/")
    if ".." in above or name in ("", ".", ".."):
        raise _not_regular(path)
    handle = os.open(folder, FOLDER)
    try:
        for part in above:
            subfolder = os.open(part, REAL_FOLDER, dir_fd=handle)
            os.close(handle)
            handle = subfolder
        with open_for_reading(name, handle) as file:
            return read_rest(file, max_bytes)
    finally:
        os.close(handle)


def read_rest(file: int, max_bytes: int) -> bytes:
    """Return the rest of an open file. Raises FileTooLarge if that is more than `max_bytes`."""
    data = bytearray()
    while len(data) <= max_bytes and (chunk := os.read(file, min(_CHUNK_BYTES, max_bytes + 1 - len(data)))):
        data += chunk
    if len(data) > max_bytes:
        raise FileTooLarge(errno.EFBIG, f"it has more than {max_bytes:,} bytes")
    return bytes(data)


def _not_regular(name: str | bytes | Path) -> NotRegular:
    return NotRegular(errno.EINVAL, "it is not a regular file", name)
