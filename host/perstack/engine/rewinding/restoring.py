"""Putting files in readiness, then in their places: all of them, or after an error none.

What is to be there is written beside the files first, in a folder of its own on their file system. A full disk fails
then, when nothing has been touched. What follows is renames alone, by a journal.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress

from perstack.core.snapshots.names import STAGING, unspelled
from perstack.core.snapshots.tree import digest_of
from perstack.engine.rewinding.below import FOLDER, open_root, parent_of, read_file, write_file
from perstack.engine.rewinding.journal import Journal, JournalFile, Rewound, Step
from perstack.engine.rewinding.steps import make, take_back
from perstack.errors import StorageError
from perstack.ports.durable import sync

_MOST_BYTES = 1 << 40


class Restorer:
    """One rewind of a workspace that is under way. A context manager: at its end the handles are closed.

    The caller keeps everybody else who would change files there from it, and calls in this order: `begin`, `ready` for
    each file and link, `put_in_place`, and `finish`, or `undo` in its place. `resume` takes up one that was killed.
    """

    def __init__(self, journal: JournalFile) -> None:
        self._file = journal
        self._journal: Journal | None = None
        self._root = open_root(journal.workspace)
        self._staging: int | None = None

    def __enter__(self) -> Restorer:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in (self._staging, self._root):
            if handle is not None:
                os.close(handle)
        self._staging = None

    @property
    def root(self) -> int:
        """The workspace, open."""
        return self._root

    def begin(self) -> None:
        """Make the staging folder. Raises OSError."""
        name = STAGING + secrets.token_hex(6)
        self._write(Journal(workspace=str(self._file.workspace), staging=name, phase="clearing"))
        os.mkdir(name, 0o700, dir_fd=self._root)
        self._staging = os.open(name, FOLDER, dir_fd=self._root)

    def ready(self, files: Iterable[tuple[Step, bytes, int]], links: Iterable[tuple[Step, bytes]] = ()) -> None:
        """Put files, with content and permissions, and links, with their targets, in readiness. Raises OSError."""
        for step, content, mode in files:
            write_file(self._at_hand, b"new-%d" % step.number, content, mode)
        for step, target in links:
            os.symlink(target, b"new-%d" % step.number, dir_fd=self._at_hand)

    def put_in_place(self, steps: tuple[Step, ...], rewound: Rewound | None = None) -> None:
        """Make all steps; `rewound` is to be recorded then. If a step fails, all are taken back: StorageError."""
        sync(self._at_hand)
        self._write(self._now.model_copy(update={"phase": "forward", "steps": steps, "rewound": rewound}))
        self._forward()

    def finish(self) -> None:
        """It is done, and recorded. Raises OSError."""
        self._end(is_made=True)

    def undo(self) -> None:
        """Take back what was done. Raises OSError: the next one who comes goes on with it then."""
        if self._now.phase == "clearing":
            return self._clear()
        if self._now.phase == "forward":
            with suppress(OSError):  # on a full disk; killed now, it would be made to its end by the next one who comes
                self._write(self._now.model_copy(update={"phase": "back"}))
        for step in reversed(self._now.steps):
            take_back(self._root, self._at_hand, step)
        self._sync()
        self._end(is_made=False)
        return None

    def resume(self) -> Journal | None:
        """Go on with the rewind that a journal tells of: the journal, if it is made to its end. What it has to record
        is to be recorded then, and `finish` called. None if all is as before it.

        Raises StorageError and OSError.
        """
        self._journal = journal = self._file.read()
        if journal is None:
            return None
        try:
            self._staging = os.open(journal.staging, FOLDER, dir_fd=self._root)
        except OSError as error:
            if journal.phase == "clearing" and error.errno == errno.ENOENT:
                self._file.remove()
                return journal if journal.is_made else None
            self._file.remove()
            raise StorageError(
                f"{self._file.workspace}: a rewind was cut short here, and {journal.staging}, where its files were"
                " in readiness, is gone: see what is there, and rewind again"
            ) from error
        if journal.phase != "forward" or not self._is_whole():
            self.undo()
            return journal if journal.is_made else None
        self._forward()
        return journal

    def _forward(self) -> None:
        try:
            for step in self._now.steps:
                make(self._root, self._at_hand, step)
            self._sync()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            self.undo()
            raise StorageError(
                f"{self._file.workspace}: {reason}: nothing is rewound, the files are as they were"
            ) from error

    def _is_whole(self) -> bool:
        """Whether the files in readiness are what they were when they were put there."""
        for step in self._now.steps:
            if step.act == "put" and step.digest:
                try:
                    content = read_file(self._at_hand, b"new-%d" % step.number, _MOST_BYTES)
                except FileNotFoundError:
                    continue  # it is in its place
                except OSError:
                    return False
                if content is None or digest_of(content) != step.digest:
                    return False
        return True

    def _sync(self) -> None:
        """Make the names of all that was changed survive power loss."""
        done: set[bytes] = set()
        for step in self._now.steps:
            path = unspelled(step.path)
            above = path.rpartition(b"/")[0]
            if above in done:
                continue
            done.add(above)
            with suppress(OSError), parent_of(self._root, path) as (folder, _):
                sync(folder)

    def _end(self, *, is_made: bool) -> None:
        ended = {"phase": "clearing", "is_made": is_made, "steps": (), "rewound": None}
        try:
            self._write(self._now.model_copy(update=ended))
        except OSError:  # a full disk: without a journal nobody goes on with it either
            self._file.remove()
        self._clear()

    def _clear(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._now.staging, dir_fd=self._root)
        self._file.remove()

    def _write(self, journal: Journal) -> None:
        self._file.write(journal)
        self._journal = journal

    @property
    def _now(self) -> Journal:
        if self._journal is None:
            raise RuntimeError("no rewind is under way")
        return self._journal

    @property
    def _at_hand(self) -> int:
        if self._staging is None:
            raise RuntimeError("no rewind is under way")
        return self._staging
