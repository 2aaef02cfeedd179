"""Moments, as a person writes them: a date, or how long ago."""

from __future__ import annotations

import re
from datetime import datetime

from perstack.engine.clock import SYSTEM
from perstack.errors import UsageError

_SPAN = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def moment(text: str) -> int:
    """What `--since` says, in milliseconds since 1970. Raises UsageError."""
    ago = _SPAN.fullmatch(text)
    if ago is not None:
        return SYSTEM.now() - int(ago[1]) * _SECONDS[ago[2]] * 1000
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--since {text}: write a date such as 2026-11-30, or a time ago such as 7d") from error
