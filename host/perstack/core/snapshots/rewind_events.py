"""That the files of a workspace were made what they had been, as it stands in a log: its intent, and its effect."""

from typing import Literal

from pydantic import Field

from perstack.core.base import falsy
from perstack.core.by import By
from perstack.core.run_event import RunEvent


class StartRewind(RunEvent):
    """Somebody wants the files of the workspace to be what they were. On disk before any of them is touched."""

    type: Literal["startRewind"] = "startRewind"
    to_checkpoint: str
    """The place in a log of the Job whose files these were."""
    tree: str
    """What is there before: a rewind to this event takes the rewind back."""
    only: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """The globs of the paths that are asked for; empty: all."""
    by: By


class FinishRewind(RunEvent):
    """The files are what they were. One that is missing after a `startRewind`: nothing was changed."""

    type: Literal["finishRewind"] = "finishRewind"
    start: str
    """The `startRewind`."""
    tree: str | None = None
    """What is there now; None: it could not be recorded."""
    files: int
    """How many files, links and folders were changed."""
    kept: int = Field(default=0, exclude_if=falsy)
    """How many that the snapshots have differently were left alone."""
