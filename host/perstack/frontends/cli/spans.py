"""Lengths of time as they are typed."""

from __future__ import annotations

from perstack.core.spans import milliseconds
from perstack.errors import UsageError
from perstack.frontends.shared.words import shorten

_SHOWN = 40
"""Cells of what was typed, in an error."""


def read_span(text: str | None, what: str) -> int | None:
    """Milliseconds from `90s`, `5m`, `2h`, `7d`. Raises UsageError."""
    if text is None:
        return None
    try:
        return milliseconds(text)
    except ValueError as error:
        raise UsageError(f"{what} {shorten(text, _SHOWN)}: give a time such as 90s, 5m, 2h or 7d") from error
