"""The actor behind an answer, an approval or another action from outside a Run."""

from __future__ import annotations

import unicodedata

from pydantic import ConfigDict, Field, field_validator

from perstack.core.base.records import Fact, falsy

_LONGEST = 200


class By(Fact):
    """The actor of an event, as the caller claims: names are cut to 200 characters, without control characters."""

    model_config = ConfigDict(frozen=True)

    user: str = Field(default="", exclude_if=falsy)  # operating-system user; empty if unknown, as over a network
    door: str = "python"  # `cli`, `start`, `mcp`, `acp`, `http` or `python`; `recording` if a recording is played
    client: str = Field(default="", exclude_if=falsy)  # name and version of the client program, such as an editor
    source: str = Field(default="", exclude_if=falsy)  # source of the event from outside; empty for a person

    @field_validator("user", "door", "client", "source", mode="before")
    @classmethod
    def _clean(cls, value: object) -> object:
        return cleaned(value) if isinstance(value, str) else value

    def bringing(self, source: str) -> By:
        """Return this actor as the one who delivered an event from `source`."""
        return By(user=self.user, door=self.door, client=self.client, source=source)

    def __str__(self) -> str:
        """Return the actor as shown to people: `alice, mcp, an-editor 1.0`."""
        return ", ".join(part for part in (self.source, self.user, self.door, self.client) if part)


def cleaned(text: str) -> str:
    """Return the text as one short line without characters that affect how a terminal or page shows the rest."""
    kept = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text[: 10 * _LONGEST])
    return " ".join(kept.split())[:_LONGEST]
