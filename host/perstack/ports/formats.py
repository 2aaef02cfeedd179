"""The format port: read Jobs that another program wrote, in place, and export Jobs to that program's format.

A format only converts. The storage finds the other program's folders and stores appended events; the host writes
exported files.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from perstack.core.runs.events import StoredEvent


class ReadableFolder(Protocol):
    """A directory that is open for reading. Its names cannot lead out of it. Each method may raise StorageError."""

    @property
    def path(self) -> Path:
        """The directory's path, for messages only."""
        ...

    def entries(self) -> Sequence[os.DirEntry[str]]:
        """Return the directory's entries in no particular order."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        ...

    def find(self, name: str) -> AbstractContextManager[ReadableFolder] | None:
        """Open a subdirectory for the duration of the `with` block, or return None if it does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A Job of another program, converted to the events that the host would have recorded."""

    logs: Mapping[str, Sequence[StoredEvent]] = field(default_factory=dict[str, "Sequence[StoredEvent]"])  # by Run id
    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])  # images and files of messages, by hex sha256
    checkpoints: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # this host's ids of checkpoints, by the ids of the other program


class JobFormat(ABC):
    """Format of another program's Jobs, registered by a plugin."""

    name: str  # the value of `perstack export --format`
    writer: str  # the name of the other program, for people

    @abstractmethod
    def read(self, job_id: str, runs: ReadableFolder, names: Sequence[str]) -> ForeignJob:
        """Convert the Job in the folders `names` of `runs`, none of which the host wrote.

        Return a ForeignJob without logs if the folders have another format. The same folders must give the same events
        every time. Raises StorageError, naming the file, if a file of this format cannot be read.
        """

    @abstractmethod
    def write(self, logs: Mapping[str, Sequence[StoredEvent]], blobs: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the files of a Job by relative path, all below one folder that only this Job uses.

        `logs` are the events of each Run by id, in the order of the Run numbers. `blobs` are the contents that their
        messages refer to, by sha256, without lost ones.
        """
