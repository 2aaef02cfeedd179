"""Spans of time as people write them: `90s`, `5m`, `2h`, `7d`."""

from __future__ import annotations

import re

_SPAN = r"([0-9]{1,15})(ms|s|m|h|d)?"
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int:
    """How many it is; a number without a unit is of milliseconds. Raises ValueError."""
    found = re.fullmatch(_SPAN, text)
    if found is None:
        raise ValueError("must be a time such as 90s, 5m, 2h or 7d")
    return int(found[1]) * _UNITS[found[2] or "ms"]


def wrong_span(text: str) -> str | None:
    """What is wrong with one, in words that follow its name."""
    try:
        milliseconds(text)
    except ValueError as error:
        return str(error)
    return None
