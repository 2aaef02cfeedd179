"""The format port: Jobs as another program keeps them, read where they stand, and written as its files.

A format turns the one into the other and does nothing else: a storage that may have such folders finds them and keeps
what is added, and the host exports.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import Protocol, runtime_checkable

from perstack.core.events import StoredEvent
from perstack.dataclass import dataclass
from perstack.ports.storage import Storage


class Folder(Protocol):
    """A directory that is open for reading. Nothing in it leads out of it. Each method may raise StorageError."""

    @property
    def path(self) -> Path:
        """For messages only."""
        ...

    def entries(self) -> Sequence[os.DirEntry[str]]:
        """What is in it, in no order."""
        ...

    def read(self, name: str) -> bytes | None:
        """A file's content; None if it is not there."""
        ...

    def find(self, name: str) -> AbstractContextManager[Folder] | None:
        """The directory of that name in this one, open for as long as the block lasts; None if it is not there."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignJob:
    """A Job of another program as the host would have recorded it."""

    logs: Mapping[str, Sequence[StoredEvent]] = field(default_factory=dict[str, Sequence[StoredEvent]])
    """The events of each Run, by ids of ours (`{jobId}-{n}`)."""
    blobs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Images and files that stood in messages, by their sha256 in hex."""
    checkpoints: Mapping[str, str] = field(default_factory=dict[str, str])
    """Our ids of checkpoints, by those of the other program."""


class JobFormat(Protocol):
    """What a format plugin registers."""

    @property
    def name(self) -> str:
        """The word after `perstack export --format`."""
        ...

    @property
    def writer(self) -> str:
        """For people: the program that keeps Jobs so."""
        ...

    def read(self, job_id: str, runs: Folder, names: Sequence[str]) -> ForeignJob:
        """The Job in the folders of these names in `runs`, which are none of the host's; without logs if they are of
        another form. The same folders make the same events. Raises StorageError, naming the file, if one of this form
        cannot be read.
        """
        ...

    def write(self, logs: Mapping[str, Sequence[StoredEvent]], blobs: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The files of a Job by their relative path: all below one folder, which is this Job's alone.

        `logs` are the events of each Run by its id, in the order of their numbers; `blobs` what their messages refer
        to, by sha256, without those that were lost.
        """
        ...


@runtime_checkable
class OpensForeign(Protocol):
    """What a storage's factory can do besides, if its folders may hold Jobs that another program has written."""

    def open_with(self, location: str, workspace: Path, formats: Sequence[JobFormat]) -> Storage:
        """As `StorageFactory.open`: a storage that shows the Jobs of these formats as well. The first that reads a
        folder counts."""
        ...


@runtime_checkable
class ShowsForeign(Protocol):
    """What a storage can do besides that shows Jobs which another program has written."""

    async def foreign_checkpoint(self, job_id: str, checkpoint_id: str) -> str | None:
        """Our id of a checkpoint of another program; None if the Job has none of that id."""
        ...

    async def unsealed_runs(self, job_id: str) -> Mapping[str, str]:
        """The Runs that only another program wrote, and which one: sealed as they are read, so that no edit of them is
        seen. Raises NotFound for an unknown Job.
        """
        ...
