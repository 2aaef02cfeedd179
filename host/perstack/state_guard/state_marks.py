"""Marks of state: the proof that this user's installation made a folder or file of state.

State decides what a resumed Job runs, so it is acted upon only if its user made it. A mark is a file in the state's
folder (or next to its file) with a random id and a MAC of the id and of the folder's identity on its file system. The
key of the MAC is in the user's state directory, where no repository can put one.

- The identity is the inode number with its generation. A mark that was published, in a clone or a copy, does not fit
  the folder that it arrives in. Moving a folder within a file system keeps both numbers.
- A mark is only made for state that is created here, under a lock on its folder, or by a person's agreement
  (`perstack trust --state`). A folder that exists with any content is somebody's.
- An invalid mark is no mark: nothing about it is reported.
- A mark with `logs` says that each log that its user's installation began has a mark too (`log_marks`). One without,
  of an earlier version or a new agreement, covers all logs that are there when the host acts on the state next.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from struct import unpack_from

from pydantic import ValidationError

from perstack.core.base.records import Record
from perstack.errors import StorageError
from perstack.ports.environment import STATE_KEY
from perstack.ports.storage import LocalState
from perstack.system.files import (
    FILE_MODE,
    FOLDER_MODE,
    locked_folder,
    make_state_folder,
    open_regular,
    read_rest,
    sync,
)
from perstack.system.user import user_directory
from perstack.trust.git_index import tracked_digest

_MIN_KEY_CHARACTERS = 32
_MAX_FILE_BYTES = 1000
_REMEDY = f"make it writable, name the state in PERSTACK_TRUST, or set {STATE_KEY}"


class StateKey:
    """The user's key for marks: 32 random bytes in a file that only its owner may read, or PERSTACK_STATE_KEY."""

    def __init__(self, path: Path, from_environment: str = "") -> None:
        self.path = path
        self._from_environment = from_environment

    @classmethod
    def of_user(cls, environ: Mapping[str, str] = os.environ) -> StateKey:
        """Return the key of the user's state directory, or of the environment. Raises StorageError without a home."""
        from_environment = environ.get(STATE_KEY, "")
        return cls(Path() if from_environment else user_directory("state", environ) / "state.key", from_environment)

    def read(self) -> bytes | None:
        """Return the key; None if there is none yet. Raises StorageError for an unusable key."""
        if self._from_environment:
            return self._parse_key(self._from_environment)
        try:
            with _open_file(self.path) as file:
                status = os.fstat(file)
                if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise StorageError(f"{self.path} is open to other users: chmod 600 {self.path}")
                key = read_rest(file, _MAX_FILE_BYTES).strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"{self.path}: {_reason(error)}: the key of your state cannot be read there; {_REMEDY}"
            raise StorageError(message) from error
        if len(key) < _MIN_KEY_CHARACTERS:
            raise StorageError(f"{self.path}: this is not a key: remove it, and agree to your state again")
        return key

    def read_or_create(self) -> bytes:
        """Return the key, creating it if there is none. Concurrent processes get the same key. Raises StorageError."""
        key = self.read()
        if key is not None:
            return key
        try:
            self.path.parent.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            new = self.path.with_name(f".{self.path.name}.{os.urandom(8).hex()}")
            file = open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            try:
                os.write(file, os.urandom(32).hex().encode() + b"\n")
                sync(file)
                with suppress(FileExistsError):  # the key of another process, which is read below
                    os.link(new, self.path)
            finally:
                os.close(file)
                new.unlink(missing_ok=True)
        except OSError as error:
            message = f"{self.path}: {_reason(error)}: the key of your state cannot be kept there; {_REMEDY}"
            raise StorageError(message) from error
        key = self.read()
        if key is None:
            raise StorageError(f"{self.path}: it was removed at the same moment; try again")
        return key

    @staticmethod
    def _parse_key(text: str) -> bytes:
        if len(text.strip()) < _MIN_KEY_CHARACTERS:
            raise StorageError(f"{STATE_KEY} has fewer than {_MIN_KEY_CHARACTERS} characters: use a random secret")
        return text.strip().encode()


class _Mark(Record):
    """Content of a mark."""

    id: str
    mac: str
    logs: bool = False


class StateMark:
    """The mark of one folder or file of state.

    The file of a database is never opened here: closing it would release the locks that this process has on it.
    """

    def __init__(self, state: LocalState, key: StateKey | None = None) -> None:
        """Read nothing yet. `key`: None for the user's."""
        self.state = state
        self._given_key = key
        self._valid: _Mark | None = None

    def validate(self) -> bool:
        """Read the mark, and return whether this user's installation made the state.

        Raises StorageError for an unusable key.
        """
        try:
            with _open_file(self.state.mark) as file:
                mark = _Mark.model_validate_json(read_rest(file, _MAX_FILE_BYTES))
            identity = _identity_of_state(self.state)
        except (OSError, ValidationError):
            self._valid = None
            return False
        from hmac import compare_digest  # storages on servers need neither it nor the key

        key = self._key.read()
        is_valid = key is not None and compare_digest(_mac(key, mark, identity).encode(), mark.mac.encode())
        self._valid = mark if is_valid else None
        return is_valid

    @property
    def covers_each_log(self) -> bool:
        """True if each log has a mark too. Read it only of a valid mark."""
        return self._valid is not None and self._valid.logs

    def log_key(self) -> bytes:
        """Return the key of the marks of logs. Raises StorageError unless the mark was valid."""
        from hmac import digest

        key = None if self._valid is None else self._key.read()
        if self._valid is None or key is None:
            raise StorageError(f"{self.state.mark} is not valid: agree to this state again")
        return digest(key, f"log marks {self._valid.id}".encode(), sha256)

    def confirm_logs(self) -> None:
        """Record that each log has a mark now, unless another process has agreed meanwhile. Raises StorageError."""
        agreed = self._valid
        try:
            with locked_folder(self.state.mark.parent):
                if self.validate() and agreed is not None and self._valid is not None and self._valid.id == agreed.id:
                    self._write(agreed.id, logs=True)
        except OSError as error:
            raise StorageError(f"{self.state.mark}: {_reason(error)}") from error

    def is_missing(self) -> bool:
        """Return whether there is no state yet that a reader could change: no file, or no content in a folder."""
        return self.is_absent() and not (self.state.is_file and os.path.lexists(self.state.path))

    def is_absent(self) -> bool:
        """Return whether there is no state yet: no folder or file, or one without any content."""
        state = self.state
        try:
            if state.is_file:
                return not any(map(os.path.lexists, state.companions)) and state.path.stat().st_size == 0
            with os.scandir(state.path) as entries:
                return {entry.name for entry in entries} <= {".gitignore", state.mark.name, self._new_path.name}
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def claim(self) -> bool:
        """Return whether the state is this user's, after marking it if there was none. Raises StorageError."""
        if self.validate():
            return True
        if not self.is_absent():
            return False
        self._key.read_or_create()  # before anything else is made
        try:
            make_state_folder(self.state.mark.parent)
            with locked_folder(self.state.mark.parent):
                # checked again: another process may have made the state meanwhile
                if self.validate():
                    return True
                if not self.is_absent():
                    return False
                if self.state.is_file and not os.path.lexists(self.state.path):
                    os.close(open_regular(self.state.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))
                self._write(os.urandom(16).hex(), logs=True)
        except OSError as error:
            raise StorageError(f"{self.state.path}: {_reason(error)}") from error
        return True

    def agree(self) -> None:
        """Mark state that its user has agreed to, with all logs in it. Raises StorageError."""
        try:
            with locked_folder(self.state.mark.parent):
                self._write(os.urandom(16).hex(), logs=False)
        except OSError as error:
            raise StorageError(f"{self.state.mark}: {_reason(error)}") from error

    def remove(self) -> bool:
        """Remove the mark; return whether there was one. Raises StorageError."""
        try:
            self.state.mark.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"{self.state.mark}: {_reason(error)}") from error
        return True

    def _write(self, name: str, *, logs: bool) -> None:
        mark = _Mark(id=name, mac="", logs=logs)
        mac = _mac(self._key.read_or_create(), mark, _identity_of_state(self.state))
        mark = _Mark(id=name, mac=mac, logs=logs)
        # a fixed name, because the folder is locked: a file that a killed process left is replaced
        self._new_path.unlink(missing_ok=True)
        file = open_regular(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        try:
            os.write(file, mark.to_json())
            sync(file)
        finally:
            os.close(file)
        self._new_path.replace(self.state.mark)
        self._valid = mark

    @cached_property
    def _key(self) -> StateKey:
        return self._given_key or StateKey.of_user()

    @property
    def _new_path(self) -> Path:
        return self.state.mark.with_name(f".{self.state.mark.name}.new")


def _mac(key: bytes, mark: _Mark, identity: str) -> str:
    from hmac import digest

    text = f"state mark {mark.id} {identity}" + (" logs" if mark.logs else "")
    return digest(key, text.encode(), sha256).hex()


def _identity_of_state(state: LocalState) -> str:
    """Return what identifies a folder or file on its file system. Raises OSError.

    An inode number is used again after its folder was removed; the time of its creation, which no program can set,
    then differs. The device is left out: its number may change when the machine starts. What git tracks there counts:
    a pull puts files of others into a folder that stays the same.
    """
    status = state.path.stat()
    if state.is_file != stat.S_ISREG(status.st_mode):
        raise NotADirectoryError(state.path)
    tracked = "".join(map(tracked_digest, (state.path, *state.companions)))
    return f"{status.st_ino} {_created_at(state.path)} {tracked}"


if sys.platform == "linux":
    _BIRTH = 0x800  # STATX_BTIME
    _BIRTH_OFFSET = 80  # offset of stx_btime in `struct statx`
    _CURRENT_FOLDER = -100

    def _created_at(path: Path) -> str:
        """Return the time of creation; empty on a file system that keeps none."""
        import ctypes  # every command has imported it

        status = ctypes.create_string_buffer(256)
        try:
            failed = ctypes.CDLL(None).statx(_CURRENT_FOLDER, os.fsencode(path), 0, _BIRTH, status)
        except AttributeError:  # an old C library
            return ""
        mask, (seconds, nanoseconds) = *unpack_from("I", status), unpack_from("qI", status, _BIRTH_OFFSET)
        return "" if failed or not mask & _BIRTH else f"{seconds}.{nanoseconds}"

else:

    def _created_at(path: Path) -> str:
        return str(getattr(path.stat(), "st_birthtime", ""))


@contextmanager
def _open_file(path: Path) -> Generator[int]:
    file = open_regular(path)
    try:
        yield file
    finally:
        os.close(file)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
