"""The system clock, and the formatting of points in time. No other module reads the time of day from the system."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final, Literal, Protocol

# A Host decides and records by the Clock that it was given, and never reads the time of day from the system.


class Clock(Protocol):
    """Source of the time of day. A test gives a Host another one, to see what it does at another time."""

    def now(self) -> int:
        """Return milliseconds since 1970, UTC."""
        ...


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SystemClock:
    """The clock of this machine."""

    def now(self) -> int:
        """Return milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000


SYSTEM: Final[Clock] = SystemClock()


def iso(moment_ms: int, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Format a point in time, in milliseconds since 1970, for people and models: `2026-11-21T02:08:22Z`."""
    return (_EPOCH + timedelta(milliseconds=moment_ms)).isoformat(timespec=timespec).replace("+00:00", "Z")


def new_ulid(moment_ms: int) -> str:
    """Return a new ULID for a point in time, in milliseconds since 1970: 26 characters that sort by time."""
    from ulid import ULID  # 20 ms of imports that a resume never needs

    return str(ULID.from_timestamp(moment_ms))


def new_ids(moment_ms: int) -> Iterator[str]:
    """Yield short ids in the form of Job ids: for `moment_ms`, then for each following millisecond."""
    from perstack.core.base.ids import job_id_of  # reading the time of day needs no ids

    for millisecond in count(moment_ms):
        yield job_id_of(new_ulid(millisecond))
