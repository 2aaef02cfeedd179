"""Define the events of the workspace's files: snapshots, and rewinds with their intent and outcome."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import EMPTIED, Record, Text, falsy
from perstack.core.base.text import count
from perstack.core.runs.commands import Command, Snapshot
from perstack.core.runs.events.base import (
    LaterEvent,
    Repetition,
    unexpected_event,
)
from perstack.core.runs.log_rows import EventContext, LogRow, author_rows
from perstack.core.runs.state import Run, may_have_unrecorded_changes
from perstack.dataclass import replace

SkipReason = Literal["tooLarge", "tooDeep", "unreadable", "changing", "special"]
"""Reason why an entry is not recorded: it is larger than the limit, nested too deep, cannot be read (no permission or a
failing medium), kept changing while it was read, or is neither file, link nor folder."""

MAX_LISTED_FILES = 20


class NotRecorded(Record):
    """An entry of the workspace that a snapshot leaves out."""

    path: str  # relative to the workspace, spelled as in trees
    reason: SkipReason
    size: int | None = None


class RecordSnapshot(LaterEvent):
    """A snapshot of the workspace, at the start and after calls that may change files; its blobs are on disk before."""

    is_progress = False
    type: Literal["recordSnapshot"] = "recordSnapshot"
    tree: str | None = None  # digest of the tree, a blob of the Job; None if it failed, see `problem`
    base: str | None = None  # tree of the Run's previous snapshot, which the counts compare with; None for the first
    files: int = 0
    added: int | None = None
    removed: int | None = None
    changed: int | None = None  # files and links that differ from `base`; None if unknown
    lines_added: int | None = None
    lines_removed: int | None = None  # lines of text that only one of the two has; None if unknown or too many to count
    # the first `MAX_LISTED_FILES` entries that are left out
    left_out: Annotated[tuple[NotRecorded, ...], EMPTIED] = Field(default=(), exclude_if=falsy)
    left_out_count: int = Field(default=0, exclude_if=falsy)
    problem: Text = Field(default="", exclude_if=falsy)

    @property
    def named_tree(self) -> str | None:
        return self.tree

    @override
    def repetitions(self, run: Run) -> Iterator[Repetition]:
        if self.base is not None:
            yield Repetition("the snapshot before", self.base, run.snapshot)

    def fold(self, run: Run) -> Run:
        """Keep the tree. After a failure the next snapshot is due only when files may have changed again."""
        return replace(run, snapshot=self.tree or run.snapshot, snapshot_due="no")

    def difference(self, run: Run, command: Command | None) -> str | None:
        """Compare `base` with the previous snapshot. A worker that exits during calls records a snapshot, too."""
        if command is None or not (isinstance(command, Snapshot) or may_have_unrecorded_changes(run)):
            return unexpected_event(self, run, command)
        return None if self.base in (None, run.snapshot) else "recordSnapshot whose `base` is not the last snapshot"

    def describe(self, context: EventContext) -> list[LogRow]:
        """Return the number of changes; an unchanged workspace on request."""
        if self.problem:
            return [LogRow("snapshot", f"not taken: {self.problem}", "red")]
        files = sum(filter(None, (self.added, self.removed, self.changed)))
        if not files:
            return [LogRow("snapshot", count(self.files, "file"))] if context.full else []
        lines = "" if self.lines_added is None else f"+{self.lines_added} −{self.lines_removed} in "
        return [LogRow("snapshot", f"{lines}{count(files, 'file')}")]


class StartRewind(LaterEvent):
    """The intent to restore files of the workspace. It is on disk before any file is touched."""

    is_decided = False
    is_progress = False
    type: Literal["startRewind"] = "startRewind"
    to_checkpoint: str  # event id of the snapshot in a log of the Job whose files are restored
    tree: str  # tree of the files before the rewind: rewinding to this event undoes it
    only: tuple[str, ...] = Field(default=(), exclude_if=falsy)  # globs of the paths to restore; empty for all
    keeps_added: bool = Field(default=False, exclude_if=falsy)  # True: what was added since stays
    by: By

    @property
    def named_tree(self) -> str | None:
        """The tree before the rewind."""
        return self.tree

    def fold(self, run: Run) -> Run:
        return replace(run, snapshot=self.tree or run.snapshot)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        only = f", only {' '.join(self.only)}" if self.only else ""
        return [LogRow("rewinds", f"the files to {self.to_checkpoint}{only}", "yellow"), *author_rows(self.by)]


class FinishRewind(LaterEvent):
    """The completion of a rewind. If it is missing after `startRewind`, nothing was changed."""

    is_decided = False
    is_progress = False
    type: Literal["finishRewind"] = "finishRewind"
    start: str
    tree: str | None = None  # tree of the files after the rewind; None if it could not be recorded
    files: int
    kept: int = Field(default=0, exclude_if=falsy)  # number of files that differ from the snapshot and were left alone

    @property
    def named_tree(self) -> str | None:
        """The tree after the rewind."""
        return self.tree

    def fold(self, run: Run) -> Run:
        return replace(run, snapshot=self.tree or run.snapshot)

    @override
    def describe(self, context: EventContext) -> list[LogRow]:
        kept = f", {self.kept} left alone" if self.kept else ""
        # the id comes first: users copy it, so it must not be cut off
        return [LogRow("rewound", f"undo with {self.start}: {count(self.files, 'change')}{kept}", "yellow")]


FileEvent = RecordSnapshot | StartRewind | FinishRewind
