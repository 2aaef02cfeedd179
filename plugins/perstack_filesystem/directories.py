"""Directories as open handles.

Everything is opened relative to a handle and never through a symbolic link, so that nothing put into the state
directory can lead a read or a write out of it, not even between a check and its use.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from perstack.errors import StorageError
from perstack.ports import durable
from perstack.ports.state_folder import FILE_MODE, FOLDER_MODE

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK = 1 << 20


def explained(error: OSError, path: Path) -> StorageError:
    """The error that names the file, and what is to be done."""
    reason = (error.strerror or str(error)).lower()
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        reason = "a symbolic link or a file stands where a directory of this storage belongs; remove it"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += ": free some space, then resume"
    return StorageError(f"{path}: {reason}")


class Folder:
    """One open directory. Use as a context manager; `path` is only for messages."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path

    @classmethod
    def top(cls, path: Path) -> Folder | None:
        """The state directory itself, which alone may be reached through a link; None if it is not there."""
        try:
            return cls(os.open(path, _DIRECTORY), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explained(error, path) from error

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.fd)

    def find(self, name: str) -> Folder | None:
        """The directory of that name in this one; None if it is not there."""
        path = self.path / name
        try:
            return Folder(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explained(error, path) from error

    def make(self, name: str) -> Folder:
        """The directory of that name in this one, made if need be."""
        for _ in range(3):
            found = self.find(name)
            if found is not None:
                return found
            self.add(name)
        raise StorageError(f"{self.path / name}: it is removed as often as it is made")

    def add(self, name: str) -> bool:
        """Make a directory whose name survives power loss; False if something of that name is there."""
        try:
            os.mkdir(name, FOLDER_MODE, dir_fd=self.fd)
        except FileExistsError:
            return False
        except OSError as error:
            raise explained(error, self.path / name) from error
        self.sync()
        return True

    def entries(self) -> list[os.DirEntry[str]]:
        """What is in it, in no order."""
        try:
            with os.scandir(self.fd) as found:
                return list(found)
        except OSError as error:
            raise explained(error, self.path) from error

    def stat(self, name: str) -> os.stat_result | None:
        """Of the thing itself, not of what it may link to; None if it is not there."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explained(error, self.path / name) from error

    def open(self, name: str, flags: int) -> int | None:
        """A descriptor; None if the file is not there."""
        try:
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explained(error, self.path / name) from error

    def open_log(self, name: str) -> int | None:
        """A descriptor to read and append, or only to read where nothing may be written; None if it is not there."""
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                return os.open(name, flags | os.O_RDWR | os.O_APPEND, dir_fd=self.fd)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                return os.open(name, flags | os.O_RDONLY, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explained(error, self.path / name) from error

    def read(self, name: str) -> bytes | None:
        """A file's content; None if it is not there."""
        fd = self.open(name, os.O_RDONLY)
        if fd is None:
            return None
        try:
            with open(fd, "rb", buffering=0) as file:  # noqa: PTH123 - relative to a handle
                return file.read()
        except OSError as error:
            raise explained(error, self.path / name) from error

    def replace(self, name: str, data: bytes, *, sync: bool, modified_ns: int | None = None) -> None:
        """Put a file in place of that name in one moment: a reader sees the old or the new, never a part.

        With `sync` its content survives power loss when this returns (its name after `sync()`). `modified_ns` is a
        time of change finer than the kernel's clock ticks.
        """
        temporary = self.write_aside(name, data, sync=sync, modified_ns=modified_ns)
        try:
            self.put_in_place(temporary, name)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self.fd)
            raise

    def write_aside(self, name: str, data: bytes, *, sync: bool, modified_ns: int | None = None) -> str:
        """Write what shall have that name, as in `replace`; returns the name that it has until `put_in_place`."""
        temporary = f".{name}.{os.getpid()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, FILE_MODE, dir_fd=self.fd)
            try:
                write_all(fd, data)
                if modified_ns is not None:
                    os.utime(fd, ns=(modified_ns, modified_ns))
                if sync:
                    durable.sync(fd)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=self.fd)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise explained(error, self.path / name) from error
        return temporary

    def put_in_place(self, temporary: str, name: str) -> None:
        """Give a file its name, in place of what has it."""
        try:
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            raise explained(error, self.path / name) from error

    def remove(self, name: str) -> bool:
        """Remove a file; False if it is not there."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explained(error, self.path / name) from error
        return True

    def lock(self) -> None:
        """Nobody else who locks it is at work in it, until this handle is closed."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except OSError as error:
            raise explained(error, self.path) from error

    def sync(self) -> None:
        """Make the names in this directory survive power loss."""
        try:
            durable.sync(self.fd)
        except OSError as error:
            raise explained(error, self.path) from error


def read_below(folder: Folder, name: str, file: str) -> bytes | None:
    """A file in the directory of that name in a folder; None if either is not there. Quick, for long lists."""
    at = name
    try:
        below = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder.fd)
        try:
            at = f"{name}/{file}"
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
        finally:
            os.close(below)
        try:
            return _read_all(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explained(error, folder.path / at) from error


def _read_all(fd: int) -> bytes:
    pieces: list[bytes] = []
    while piece := os.read(fd, _CHUNK):
        pieces.append(piece)
    return b"".join(pieces)


def write_all(fd: int, data: bytes) -> None:
    """Write everything; one system call unless the medium takes less at a time."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written : written + _CHUNK])
