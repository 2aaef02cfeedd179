"""`[permissions]` of perstack.toml: which calls run, which a person is asked about, and which never run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.keys import Key, Rule
from perstack.core.policy.rules import wrong_rule

Decision = Literal["allow", "ask", "deny"]

_Rules = tuple[Annotated[str, Rule(wrong_rule)], ...]


class Permissions(Fact):
    """Rules as they are written. Of several tables that hold for a call, the strictest decides."""

    default: Annotated[Decision, Key("what holds for calls that no rule is about: `allow`, `ask` or `deny`")] = "allow"
    deny: Annotated[_Rules, Field(exclude_if=falsy), Key("calls that never run (rules)")] = ()
    ask: Annotated[_Rules, Field(exclude_if=falsy), Key("calls that a person is asked about (rules)")] = ()
    allow: Annotated[
        _Rules, Field(exclude_if=falsy), Key("calls that run although a less particular rule, or `default`, asks")
    ] = ()


class RuleSet(Fact):
    """Permissions that are in force for a Run, and where they were written."""

    source: str
    """The file and its table, as people know them: `perstack.toml [permissions]`."""
    expert: str = Field(default="", exclude_if=falsy)
    """The key of the Expert whose table it is; empty for the project's, which alone opens protected paths."""
    permissions: Permissions
