"""Marks of logs: the proof, for each log in marked state, that this user's installation began it.

The mark of a folder says who made the folder. An archive that is unpacked over it, a copy or a pull adds Jobs, tasks,
series and schedules of others without changing it. So each log has a mark of its own: a MAC of the state's id, the
log's name and the hash of its first record, by a key that is derived from the user's. A first record contains a time
and ids, so nobody else can write one with the same hash.

- The marks of one owner (a Job, a task, a series, a schedule) are the lines `{runId} {MAC}` of one file next to the
  state's own mark. A line is appended before the log begins, in one write.
- They are not synced: after a power failure, a log that began in the last seconds may need its user's agreement.
- A log that its user has published, and that comes back with more records, has a valid mark.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from perstack.errors import StorageError
from perstack.ports.storage import LocalState
from perstack.system.files import FILE_MODE, FOLDER_MODE, REAL_FOLDER, open_regular, read_rest

_MAX_FILE_BYTES = 1 << 26


class LogMarks:
    """Marks of the logs in one space of a state. The key is `StateMark.log_key`."""

    def __init__(self, state: LocalState, space: str, key: bytes) -> None:
        self._folder = state.log_marks
        self._space = space
        self._key = key

    def unmarked(self, owner_id: str, first_hashes: Mapping[str, str]) -> Collection[str]:
        """Return the Runs of an owner that have no valid mark; `first_hashes`: hash of each log's first record."""
        lines = set(self._read_marks(owner_id).splitlines())
        return [run for run, first in first_hashes.items() if self._mark_line(owner_id, run, first) not in lines]

    def add(self, owner_id: str, first_hashes: Mapping[str, str]) -> None:
        """Mark logs. Raises StorageError."""
        if not first_hashes:
            return
        # a line break first: the last line may be the torn one of a power failure
        data = b"".join(b"\n" + self._mark_line(owner_id, run, first) for run, first in first_hashes.items()) + b"\n"
        path = self._marks_path(owner_id)
        try:
            self._folder.mkdir(FOLDER_MODE, exist_ok=True)
            folder = os.open(self._folder, REAL_FOLDER)
            try:
                file = open_regular(path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE, folder=folder)
                try:
                    os.write(file, data)
                finally:
                    os.close(file)
            finally:
                os.close(folder)
        except OSError as error:
            raise StorageError(f"{path}: {(error.strerror or str(error)).lower()}") from error

    def forget(self, owner_id: str) -> None:
        """Remove the marks of a deleted owner. Marks that stay are harmless: no other log has that first record."""
        with suppress(OSError):
            self._marks_path(owner_id).unlink()

    def _read_marks(self, owner_id: str) -> bytes:
        try:
            folder = os.open(self._folder, REAL_FOLDER)
            try:
                file = open_regular(self._marks_path(owner_id).name, folder=folder)
                try:
                    return read_rest(file, _MAX_FILE_BYTES)
                finally:
                    os.close(file)
            finally:
                os.close(folder)
        except OSError:
            return b""

    def _mark_line(self, owner_id: str, run_id: str, first_hash: str) -> bytes:
        from hmac import digest

        text = f"{self._space} {owner_id} {run_id} {first_hash}"
        return f"{run_id} {digest(self._key, text.encode(), sha256).hex()}".encode()

    def _marks_path(self, owner_id: str) -> Path:
        return self._folder / f"{self._space}.{owner_id}"
