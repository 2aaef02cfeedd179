"""Keys of the user for all projects, in one file of the user's configuration folder.

The file is read as the source of lowest precedence, by every project of the user. Each line is `NAME=VALUE`, without
quotes. Nobody but its owner may read or write it: it is refused if that is not so, or if it or its folder is a link, so
that no other user can choose the key that is sent, or the file that is written.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perstack.errors import StorageError, UsageError
from perstack.system.files import FOLDER_MODE, REAL_FOLDER, FileTooLarge, open_regular, read_rest, replace_private_file
from perstack.system.user import user_directory

_FILE_NAME = "keys.env"
_MAX_FILE_BYTES = 64 << 10
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_VALUE = re.compile(r"[!-~]{1,4096}")  # printable ASCII without spaces


class KeyStore:
    """Store of the user's keys, by the name of the variable that each replaces."""

    def __init__(self, folder: Path) -> None:
        """Keep the keys in `folder`, which may not exist."""
        self._folder = folder
        self.path = folder / _FILE_NAME

    @classmethod
    def of_user(cls, environ: Mapping[str, str] = os.environ) -> KeyStore:
        """Return the store in the user's configuration folder; no `.env` can change where that is."""
        return cls(user_directory("config", environ))

    def read(self) -> Mapping[str, str]:
        """Return the keys; none without a file. Raises UsageError for a file that others may read or write."""
        try:
            with self._open_folder() as folder:
                return self._read(folder)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {_reason(error)}") from error

    def put(self, name: str, value: str) -> None:
        """Store a key, in place of an earlier one. Raises UsageError if the value cannot be a key, and StorageError."""
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise UsageError(f"{name}: this is not a key: it contains spaces, or characters that no key has")
        self._update_file({name: value})

    def remove(self, name: str) -> bool:
        """Remove a key, and return whether there was one. Raises StorageError."""
        return name in self.read() and self._update_file({name: None})

    def _update_file(self, changes: Mapping[str, str | None]) -> bool:
        try:
            self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            with self._open_folder() as folder:
                try:
                    keys = self._read(folder)
                except FileNotFoundError:
                    keys = {}
                kept = {name: value for name, value in {**keys, **changes}.items() if value is not None}
                text = "".join(f"{name}={value}\n" for name, value in sorted(kept.items()))
                replace_private_file(Path(_FILE_NAME), text.encode(), folder)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {_reason(error)}") from error
        return True

    @contextmanager
    def _open_folder(self) -> Generator[int]:
        folder = os.open(self._folder, REAL_FOLDER)
        try:
            self._check(folder, self._folder, stat.S_IWGRP | stat.S_IWOTH)
            yield folder
        finally:
            os.close(folder)

    def _read(self, folder: int) -> dict[str, str]:
        file = open_regular(_FILE_NAME, folder=folder)
        try:
            self._check(file, self.path, stat.S_IRWXG | stat.S_IRWXO)
            lines = read_rest(file, _MAX_FILE_BYTES).decode("utf-8", "replace").splitlines()
        finally:
            os.close(file)
        pairs = (line.strip().partition("=") for line in lines)
        return {name: value for name, _, value in pairs if _NAME.fullmatch(name) and _VALUE.fullmatch(value)}

    def _check(self, handle: int, path: Path, forbidden: int) -> None:
        status = os.fstat(handle)
        sudo = os.environ.get("SUDO_UID", "")
        if status.st_uid != os.geteuid() and not (os.geteuid() == 0 and sudo == str(status.st_uid)):
            raise UsageError(f"{path} belongs to another user, so no key is read from it: remove it")
        if status.st_mode & forbidden:
            mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
            raise UsageError(f"{path} is open to other users, so no key is read from it: chmod {mode} {path}")


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it or its folder is a link, or its folder is not a folder; use the file itself"
    if isinstance(error, FileTooLarge):
        return f"it has more than {_MAX_FILE_BYTES >> 10} KiB"
    return (error.strerror or str(error)).lower()
