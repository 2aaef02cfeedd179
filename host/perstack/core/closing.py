"""Closing a Job for good: the fact, and what it comes to."""

from typing import Literal

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.by import By
from perstack.core.run_event import RunEvent


class CloseRun(RunEvent):
    """Somebody has closed the Run for good: where it stands it stays, and nothing of it continues."""

    type: Literal["closeRun"] = "closeRun"
    by: By
    reason: str = Field(default="", exclude_if=falsy)


class Closed(Fact):
    """Who closed a Job for good, and when."""

    by: By
    reason: str = Field(default="", exclude_if=falsy)
    at: int
    """Milliseconds since 1970."""
