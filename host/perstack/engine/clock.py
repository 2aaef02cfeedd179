"""Where the engine takes time, chance and names from."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Literal


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def now_iso(timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """The instant for people and models: `2026-11-21T02:08:22Z`."""
    return datetime.now(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def new_ulid() -> str:
    """A ULID, 26 characters that sort by time."""
    from ulid import ULID  # 20 ms of imports that a resume never needs

    return str(ULID())
