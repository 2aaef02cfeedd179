"""What a rewind is about to do, on disk before it does it: so that whoever comes next finishes one that was killed.

It is named by the workspace, so that whether there is one is seen without reading anything.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from perstack.core.base import Fact, falsy
from perstack.errors import StorageError
from perstack.ports.durable import sync
from perstack.ports.state_folder import FILE_MODE, FOLDER_MODE, sync_directory

_MOST_BYTES = 1 << 30


class Step(Fact):
    """One change of a place in the workspace."""

    act: Literal["remove", "rmdir", "mkdir", "put"]
    path: str
    """As names are spelled in trees."""
    number: int
    """What it is called in the staging folder: `new-7` is put there, `old-7` was there."""
    replaces: bool = Field(default=False, exclude_if=falsy)
    """A file or a link was there."""
    digest: str = Field(default="", exclude_if=falsy)
    """Of the file that is put there; empty for a link."""
    mode: int = 0
    """Of a folder that is removed."""


class Rewound(Fact):
    """What is recorded of a rewind once it is done."""

    job_id: str
    run_id: str
    start: str
    """Its `startRewind`."""
    files: int
    kept: int = 0


class Journal(Fact):
    """A rewind of one workspace, as far as it has come."""

    workspace: str
    staging: str
    phase: Literal["clearing", "forward", "back"]
    """`clearing`: nothing has been touched, or all is done: the staging folder goes. `forward`: the steps are made that
    are not made yet. `back`: those that were made are taken back."""
    is_made: bool = Field(default=False, exclude_if=falsy)
    """The files are those of then, and that is recorded."""
    steps: tuple[Step, ...] = ()
    rewound: Rewound | None = None


class JournalFile:
    """Where the journal of a workspace is."""

    def __init__(self, path: Path, workspace: Path) -> None:
        self.path = path
        self.folder = path.parent
        self._new = path.with_suffix(".new")
        self.workspace = workspace

    def is_there(self) -> bool:
        """Whether a rewind of the workspace has not come to its end. One look at a folder if none has been made."""
        return self.path.exists()

    def read(self) -> Journal | None:
        """None if there is none. Raises StorageError."""
        try:
            if self.path.stat().st_size > _MOST_BYTES:
                raise StorageError(f"{self.path}: no rewind writes a journal this large; remove it")
            journal = Journal.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            words = "is not the journal of a rewind" if isinstance(error, ValidationError) else error.strerror
            raise StorageError(
                f"{self.path}: {words}: a rewind may have been cut short; check the files, and remove this"
            ) from error
        if journal.workspace != str(self.workspace):
            raise StorageError(f"{self.path}: it is the journal of a rewind of {journal.workspace}; remove it")
        return journal

    def write(self, journal: Journal) -> None:
        """Put it in the place of what was there; it survives power loss when this returns. Raises OSError."""
        if not self.folder.is_dir():
            self.folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            sync_directory(self.folder.parent)
        # always the same name, for nobody else writes it: one that a killed process has left is overwritten
        handle = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            rest = memoryview(journal.to_json())
            while rest:
                rest = rest[os.write(handle, rest) :]
            sync(handle)
        finally:
            os.close(handle)
        self._new.replace(self.path)
        sync_directory(self.folder)

    def remove(self) -> None:
        """The rewind has come to its end. Raises OSError."""
        for path in (self.path, self._new):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # one of another workspace is there
            self.folder.rmdir()
