"""What is done when the model's context is nearly full, as it stands in the log."""

from typing import Literal

from pydantic import AliasChoices, Field

from perstack.core.base import falsy
from perstack.core.run_event import RunEvent
from perstack.core.run_facts import ErrorInfo, ShrunkResult
from perstack.core.usage import Charge, Usage


class ShrinkResults(RunEvent):
    """The context is nearly full: of old results of read-only tools the model sees the ends from now on."""

    type: Literal["shrinkResults"] = "shrinkResults"
    results: tuple[ShrunkResult, ...]
    head: int
    """How many characters are left of the beginning of each."""
    tail: int
    """How many of its end."""


class StartCompaction(RunEvent):
    """A model is about to summarise a part of the history, for the context is nearly full."""

    type: Literal["startCompaction"] = "startCompaction"
    first: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "first"))
    """The event that the first message which is summarised came with."""
    through: str
    """That of the last."""
    model: str
    """`provider/model`."""
    reserved: Charge | None = None
    """With a budget: what this costs at most, as in `startGeneration`."""


class CompactHistory(RunEvent):
    """A text stands for a part of the history in what the model is shown from now on. The log keeps all of it."""

    type: Literal["compactHistory"] = "compactHistory"
    first: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "first"))
    """The event that the first message which is left out came with."""
    through: str
    """That of the last."""
    kept: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """The events between the two whose messages are shown as before."""
    text: str
    """What the model is shown in their place, as it is."""
    model: str = Field(default="", exclude_if=falsy)
    """`provider/model` of what has written the summary in it; empty if it is made without a model."""
    usage: Usage | None = None
    """What the summary cost."""
    assumed: Charge | None = None
    """With a budget: what counts besides, because nobody said what was used."""
    tokens_before: int = 0
    """About how many tokens the model would have been sent."""
    tokens_after: int = 0
    """About how many it is sent now."""
    duration_ms: int = Field(default=0, exclude_if=falsy)
    error: ErrorInfo | None = None
    """Why no model has written a summary, where one was asked to."""
