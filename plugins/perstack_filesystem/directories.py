"""Directories as open handles.

Everything is opened relative to a handle and never through a symbolic link. So nothing placed in the state directory
can redirect a read or write outside it, not even between a check and its use.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import OrderedDict
from contextlib import ExitStack, suppress
from pathlib import Path
from stat import S_ISDIR
from threading import Lock, RLock
from types import TracebackType

from typing_extensions import override

from perstack.errors import StorageError
from perstack.system import files
from perstack.system.files import FILE_MODE, FOLDER_MODE, make_state_folder, open_regular, system_reason

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20


def explain(error: OSError, path: Path) -> StorageError:
    """Return a StorageError that names the file and the action to take."""
    reason = system_reason(error)
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        reason = "there is a symbolic link or file in place of a directory of this storage; remove it"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += ": free some space, then resume"
    return StorageError(f"{path}: {reason}")


class OpenDirectory:
    """An open directory. As a context manager it closes the handle; `path` is used only in messages."""

    def __init__(self, fd: int, path: Path) -> None:
        """Take ownership of the descriptor `fd`."""
        self.fd = fd
        self.path = path

    @classmethod
    def top(cls, path: Path) -> OpenDirectory | None:
        """Open the state directory, which alone may be reached through a link. None if it does not exist."""
        try:
            return cls(os.open(path, _DIRECTORY), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, path) from error

    def __enter__(self) -> OpenDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.fd)

    def find(self, name: str) -> OpenDirectory | None:
        """Open a subdirectory; None if it does not exist."""
        path = self.path / name
        try:
            return OpenDirectory(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, path) from error

    def make(self, name: str) -> OpenDirectory:
        """Open a subdirectory, creating it if it is missing."""
        for _ in range(3):
            folder = self.find(name)
            if folder is not None:
                return folder
            self.add(name)
        raise StorageError(f"{self.path / name}: another process removes it each time it is created")

    def add(self, name: str) -> bool:
        """Create a subdirectory durably. Return False if the name is taken."""
        try:
            os.mkdir(name, FOLDER_MODE, dir_fd=self.fd)
        except FileExistsError:
            return False
        except OSError as error:
            raise explain(error, self.path / name) from error
        self.sync()
        return True

    def entries(self) -> list[os.DirEntry[str]]:
        """Return the directory entries in no particular order."""
        try:
            with os.scandir(self.fd) as entries:
                return list(entries)
        except OSError as error:
            raise explain(error, self.path) from error

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of an entry without following a link; None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, self.path / name) from error

    def open(self, name: str, flags: int) -> int | None:
        """Open a regular file and return its descriptor; None if it does not exist."""
        try:
            return open_regular(name, flags, FILE_MODE, folder=self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, self.path / name) from error

    def open_log(self, name: str) -> int | None:
        """Open a log, read-only without write permission; None if it does not exist."""
        try:
            try:
                return open_regular(name, os.O_RDWR | os.O_APPEND, folder=self.fd)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                return open_regular(name, folder=self.fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, self.path / name) from error

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""
        fd = self.open(name, os.O_RDONLY)
        if fd is None:
            return None
        try:
            with open(fd, "rb", buffering=0) as file:  # noqa: PTH123 - relative to a handle
                return file.read()
        except OSError as error:
            raise explain(error, self.path / name) from error

    def replace(self, name: str, data: bytes, *, sync: bool, modified_ns: int | None = None) -> None:
        """Replace a file atomically. With `sync` its content survives power loss; its name does after `sync()`.

        `modified_ns` sets a modification time finer than the kernel's clock ticks.
        """
        temporary = self.write_aside(name, data, sync=sync, modified_ns=modified_ns)
        try:
            self.put_in_place(temporary, name)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self.fd)
            raise

    def write_aside(self, name: str, data: bytes, *, sync: bool, modified_ns: int | None = None) -> str:
        """Write the new content of `name` to a temporary file, as `replace` does, and return the temporary name."""
        temporary = f".{name}.{os.getpid()}.tmp"
        try:
            fd = open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE, folder=self.fd)
            try:
                write_all(fd, data)
                if modified_ns is not None:
                    os.utime(fd, ns=(modified_ns, modified_ns))
                if sync:
                    files.sync(fd)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=self.fd)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise explain(error, self.path / name) from error
        return temporary

    def put_in_place(self, temporary: str, name: str) -> None:
        """Rename a temporary file to its final name, replacing any file of that name."""
        self.rename(temporary, name, of=name)

    def rename(self, name: str, new: str, *, of: str = "") -> None:
        """Rename an entry. An error names `of`, or `name`."""
        try:
            os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            raise explain(error, self.path / (of or name)) from error

    def remove(self, name: str) -> bool:
        """Remove a file. Return False if it does not exist."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain(error, self.path / name) from error
        return True

    def lock(self) -> None:
        """Lock the directory exclusively (flock) until this handle is closed."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except OSError as error:
            raise explain(error, self.path) from error

    def sync(self) -> None:
        """Make the names in this directory survive power loss."""
        try:
            files.sync(self.fd)
        except OSError as error:
            raise explain(error, self.path) from error


def check_removable(folder: OpenDirectory) -> None:
    """Raise StorageError for an entry that cannot be removed: a mount point, or one in a read-only folder.

    Links, pipes and sockets can be removed: only the entry, never what it leads to.
    """
    device = os.fstat(folder.fd).st_dev
    with ExitStack() as opened:
        pending = [folder]
        while pending:
            current = pending.pop()
            entries = current.entries()
            if entries and not os.access(".", os.W_OK | os.X_OK, dir_fd=current.fd, effective_ids=_HAS_EFFECTIVE_IDS):
                raise StorageError(f"{current.path}: it is read-only; allow changes (chmod u+rwx), then delete again")
            for entry in entries:
                status = current.stat(entry.name)
                if status is not None and status.st_dev != device:
                    raise StorageError(f"{current.path / entry.name}: it is a mount point; unmount it")
                if status is not None and S_ISDIR(status.st_mode):
                    subfolder = current.find(entry.name)
                    pending += [] if subfolder is None else [opened.enter_context(subfolder)]


_HAS_EFFECTIVE_IDS = os.access in os.supports_effective_ids


def read_below(folder: OpenDirectory, name: str, file: str) -> bytes | None:
    """Return the content of `{name}/{file}`; None if either does not exist. Faster than `find`, for long lists."""
    current = name
    try:
        subfolder_fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder.fd)
        try:
            current = f"{name}/{file}"
            fd = open_regular(file, folder=subfolder_fd)
        finally:
            os.close(subfolder_fd)
        try:
            return _read_all(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain(error, folder.path / current) from error


def _read_all(fd: int) -> bytes:
    chunks: list[bytes] = []
    while chunk := os.read(fd, _CHUNK_BYTES):
        chunks.append(chunk)
    return b"".join(chunks)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, in one system call unless the medium accepts less at a time."""
    written_bytes = os.write(fd, data)
    while written_bytes < len(data):
        written_bytes += os.write(fd, memoryview(data)[written_bytes : written_bytes + _CHUNK_BYTES])


# Cache of open directories: the root, its namespaces, the Jobs in use and their subdirectories.
#
# Each use compares the cached handle with the directory that has its name now. A directory that another process
# removed, replaced or linked is opened again or reported as missing. The comparison by inode number is safe because no
# other directory can get that number while the handle is open.

_MAX_OPEN = 16
"""Directories below the namespaces that stay open when the cache is trimmed; it is trimmed at twice this number."""

Names = tuple[str, ...]  # path from the root: empty, or a namespace, then a Job, then a subdirectory such as `runs`


class KeptFolder(OpenDirectory):
    """An open directory that several uses share."""

    def __init__(self, fd: int, path: Path, turn: RLock) -> None:
        """Take ownership of `fd`; `turn` guards the use count."""
        super().__init__(fd, path)
        status = os.fstat(fd)
        self.number = (status.st_dev, status.st_ino)
        self.users = 0  # number of current uses, possibly in threads; the handle stays open until it is 0
        self._is_retired = False
        self._turn = turn
        self._listing = Lock()

    @override
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._turn:
            self.users -= 1
            if self._is_retired and not self.users:
                os.close(self.fd)

    @override
    def entries(self) -> list[os.DirEntry[str]]:
        with self._listing:  # scandir moves the handle's file offset and resets it only at the end
            return super().entries()

    def retire(self) -> None:
        """Close the handle as soon as its use count is 0."""
        self._is_retired = True
        if not self.users:
            os.close(self.fd)


class OpenFolders:
    """A cache of the open directories of one storage. Safe to call from any thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cache: OrderedDict[Names, KeptFolder] = OrderedDict()
        self._turn = RLock()

    def find(self, *names: str) -> OpenDirectory | None:
        """Return the directory with this path as a context manager; None if it does not exist."""
        with self._turn:
            folder = self._open_current((), None)
            for depth in range(1, len(names) + 1):
                if folder is None:
                    return None
                folder = self._open_current(names[:depth], folder)
            if folder is not None:
                folder.users += 1
            return folder

    def make(self, *names: str) -> OpenDirectory | None:
        """Return the directory like `find`, creating the last component if it is missing. None without its parent."""
        with self._turn:
            parent = self.find(*names[:-1])
            if parent is None:
                return None
            with parent:
                folder = self._open_current(names, parent)
                if folder is None:
                    parent.add(names[-1])
                    folder = self._open_current(names, parent)
            if folder is None:
                raise StorageError(f"{self._root.joinpath(*names)}: it was removed at the same time")
            folder.users += 1
            return folder

    def make_space(self, space: str) -> OpenDirectory:
        """Return the directory of a namespace like `find`, creating it and the root if they are missing."""
        try:
            make_state_folder(self._root)
        except OSError as error:
            raise explain(error, self._root) from error
        folder = self.make(space)
        if folder is None:
            raise StorageError(f"{self._root}: it was removed at the same time")
        return folder

    def close(self) -> None:
        """Close all handles. Later calls open directories again."""
        with self._turn:
            while self._cache:
                self._cache.popitem()[1].retire()

    def _open_current(self, names: Names, parent: OpenDirectory | None) -> KeptFolder | None:
        """Return the directory that has this name now, from the cache if still valid. The root has no parent."""
        cached = self._cache.get(names)
        status = self._stat_root() if parent is None else parent.stat(names[-1])
        if cached is not None and status is not None and cached.number == (status.st_dev, status.st_ino):
            self._cache.move_to_end(names)
            return cached
        if cached is not None:
            self._retire_below(names)
        if status is None:
            return None
        folder = OpenDirectory.top(self._root) if parent is None else parent.find(names[-1])
        return None if folder is None else self._keep_open(names, folder)

    def _stat_root(self) -> os.stat_result | None:
        try:
            return self._root.stat()  # only the root may be a link
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain(error, self._root) from error

    def _keep_open(self, names: Names, folder: OpenDirectory) -> KeptFolder:
        cached = self._cache[names] = KeptFolder(folder.fd, folder.path, self._turn)
        if len(self._cache) > 2 * _MAX_OPEN:  # only rarely, because trimming visits all entries
            inner = [key for key in self._cache if len(key) > 1]
            unused = [key for key in inner if key != names[: len(key)] and not self._cache[key].users]
            for key in unused[: max(0, len(inner) - _MAX_OPEN)]:
                self._retire_below(key)
        return cached

    def _retire_below(self, names: Names) -> None:
        for key in [key for key in self._cache if key[: len(names)] == names]:
            self._cache.pop(key).retire()
