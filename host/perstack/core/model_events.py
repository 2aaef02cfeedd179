"""That another model generates from now on, as it stands in the log."""

from typing import Literal

from pydantic import AliasChoices, Field

from perstack.core.base import falsy
from perstack.core.run_event import RunEvent
from perstack.core.run_facts import ErrorInfo

SwitchReason = Literal[
    "overloaded",
    "rateLimit",
    "quota",
    "refusal",
    "timeout",
    "unreachable",
    "circuitOpen",
    "serverError",
    "notConfigured",
    "triedAgain",
]
"""Why another model generates; `triedAgain`: the first one has rested long enough."""


class SwitchModel(RunEvent):
    """Another model generates from now on: the next that stands in, or the first again."""

    type: Literal["switchModel"] = "switchModel"
    before: str = Field(serialization_alias="from", validation_alias=AliasChoices("from", "before"))
    """`provider/model` of the one that generated so far."""
    to: str
    """That of the one that generates from now on."""
    reason: SwitchReason
    error: ErrorInfo | None = Field(default=None, exclude_if=falsy)
    """What the model before it failed with, in its endpoint's own words."""
    context_window: int | None = Field(default=None, exclude_if=falsy)
    """How many tokens the context of the new one can hold, where that is known."""
    uncharged: bool = Field(default=False, exclude_if=falsy)
    """With a budget, and a try that failed: the endpoint refused it. Any other counts as what was reserved."""
