"""Who did something that only a person, or somebody from outside, may do."""

from __future__ import annotations

import unicodedata

from pydantic import ConfigDict, Field, field_validator

from perstack.core.base import Fact, falsy

_LONGEST = 200


class By(Fact):
    """Who gave an answer, and through which door.

    A name is what somebody said of themselves, and proves nothing. It has at most 200 characters, and no control
    characters.
    """

    model_config = ConfigDict(frozen=True)

    user: str = Field(default="", exclude_if=falsy)
    """Of the operating system; empty where it is not known, as of a caller over a network."""
    door: str = "python"
    """`cli`, `start`, `mcp`, `acp`, `http` or `python`; `recording` for one that is played."""
    client: str = Field(default="", exclude_if=falsy)
    """The program that it was said to: the name and version of an MCP client, or of an editor."""
    source: str = Field(default="", exclude_if=falsy)
    """Of the event from outside, if it was not a person."""

    @field_validator("user", "door", "client", "source", mode="before")
    @classmethod
    def _clean(cls, value: object) -> object:
        return cleaned(value) if isinstance(value, str) else value

    def bringing(self, source: str) -> By:
        """The same for an event from outside, that was handed in by this one."""
        return By(user=self.user, door=self.door, client=self.client, source=source)

    def __str__(self) -> str:
        """As people are shown it: `alice, mcp, an-editor 1.0`."""
        return ", ".join(part for part in (self.source, self.user, self.door, self.client) if part)


def cleaned(text: str) -> str:
    """One line, short, without what could change how a terminal or a page shows the rest."""
    kept = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text[: 10 * _LONGEST])
    return " ".join(kept.split())[:_LONGEST]
