"""`[audit]`: where heads of logs are kept besides."""

from __future__ import annotations

from typing import Annotated

from perstack.core.base import Fact
from perstack.core.keys import NOT_EMPTY, Key, Rule
from perstack.core.rules import wrong_anchor, wrong_key


class Audit(Fact):
    """Where the heads of logs are kept out of reach of those who write the logs."""

    anchor: Annotated[
        str | tuple[Annotated[str, NOT_EMPTY], ...] | None,
        NOT_EMPTY,
        Rule(wrong_anchor),
        Key(
            "gets the heads of a Job, task or series when it stops: `file:PATH`, an `https://` address, or a program"
            " as a list"
        ),
    ] = None
    signing_key: Annotated[
        str | None,
        NOT_EMPTY,
        Rule(wrong_key),
        Key("the Ed25519 key, in PEM, that signs them: `file:PATH` or `env:NAME`"),
    ] = None
    """Where the key is, never the key itself."""
