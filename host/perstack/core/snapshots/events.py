"""Snapshots as they stand in a log, and what a Run is started with."""

from typing import Literal

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.run_event import RunEvent
from perstack.core.snapshots.tree import Reason

MAX_FILE_SIZE = 16 << 20
"""Bytes of a file that is recorded, if nobody says another limit."""
MOST_NAMED = 20
"""So many of what is left out are named in an event."""


class SnapshotPolicy(Fact):
    """That the workspace is recorded, and how."""

    max_file_size: int = MAX_FILE_SIZE
    """Bytes: a larger file is named, and not recorded."""


class NotRecorded(Fact):
    """Something in the workspace that a snapshot has not."""

    path: str
    """From the workspace's folder, spelled as in trees."""
    reason: Reason
    size: int | None = None


class RecordSnapshot(RunEvent):
    """The files of the workspace as they are now: at the Run's beginning, and after calls that may have changed some.

    Its blobs are on disk before it is.
    """

    type: Literal["recordSnapshot"] = "recordSnapshot"
    tree: str | None = None
    """The digest of the tree, a blob of the Job; None: it could not be taken, and `problem` says why."""
    base: str | None = None
    """The tree of the Run's snapshot before this one, which the counts are seen from; None: there was none."""
    files: int = 0
    """How many files and links there are."""
    added: int | None = None
    removed: int | None = None
    changed: int | None = None
    """Files and links that differ from `base`; None: not known."""
    lines_added: int | None = None
    lines_removed: int | None = None
    """Lines of text that are in one and not in the other; None: not known, or too many to count."""
    left_out: tuple[NotRecorded, ...] = Field(default=(), exclude_if=falsy)
    """What is there and not recorded, the first of it."""
    left_out_count: int = Field(default=0, exclude_if=falsy)
    """How much there is of that."""
    problem: str = Field(default="", exclude_if=falsy)
