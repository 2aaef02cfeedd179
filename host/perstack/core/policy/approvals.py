"""A person's approval of one call: what it is bound to, how far it goes, and what a model is told of it."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from pydantic import Field, JsonValue

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.canonical import canonical_json

VERSION = "v1"
"""Of the form that is hashed. Another form has another version."""

UNATTENDED = "unattended"
"""The door of a decision that nobody made, because nobody is there."""

ApprovalDecision = Literal["once", "job", "no"]
"""`once`: this call. `job`: this Job's calls with the same digest, or those that a rule names. `no`: it is not run."""

DECISION_WORDS: dict[ApprovalDecision, str] = {"once": "yes", "job": "yes, for the whole Job", "no": "no"}
"""Each as people are shown it."""


class Approval(Fact):
    """What a person said to a call that waits for approval."""

    decision: ApprovalDecision
    rule: str = Field(default="", exclude_if=falsy)
    """For `job`: the rule that was chosen; empty for calls with the same digest."""
    text: str = Field(default="", exclude_if=falsy)
    """Words beside it, for the model."""

    @property
    def denies(self) -> bool:
        """Whether the call is not to be run."""
        return self.decision == "no"


class Standing(Fact):
    """An approval that holds for a whole Job."""

    id: str
    """That of the event which gave it."""
    call_digest: str
    leads_to: tuple[str, ...] = ()
    """Where the paths of that call led."""
    rule: str = ""


def call_digest(skill_name: str, tool_name: str, args: JsonObject) -> str:
    """The digest of a call: of its skill, its tool and its arguments, in whatever order their keys came.

    >>> call_digest("s", "t", {"a": 1, "b": 2}) == call_digest("s", "t", {"b": 2, "a": 1})
    True
    """
    return f"{VERSION}:{sha256(canonical_json([skill_name, tool_name, _sorted(args)])).hexdigest()}"


def refusal(rule: str, text: str, *, is_unattended: bool) -> str:
    """What the model is told of a call that was not approved."""
    if is_unattended:
        return f"Not run: it needs a person's approval ({rule}), and nobody is there to give it."
    said = f": {text}" if text else "."
    return f"Not run: a person did not approve this call{said}"


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value
