"""The system's clock, and what is made of an instant. No other module asks the system for the time of day."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final, Literal

from perstack.core.ids import job_id_of
from perstack.ports.clock import Clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SystemClock:
    """The time of this machine."""

    def now(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000


SYSTEM: Final[Clock] = SystemClock()


def iso(moment: int, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """A moment, in milliseconds since 1970, for people and models: `2026-11-21T02:08:22Z`."""
    return (_EPOCH + timedelta(milliseconds=moment)).isoformat(timespec=timespec).replace("+00:00", "Z")


def new_ulid(moment: int) -> str:
    """A new ULID of a moment, in milliseconds since 1970: 26 characters that sort by it."""
    from ulid import ULID  # 20 ms of imports that a resume never needs

    return str(ULID.from_timestamp(moment))


def new_ids(moment: int) -> Iterator[str]:
    """Short ids, as Jobs have: that of a moment, and, for when it is taken, those of the milliseconds after it."""
    for each in count(moment):
        yield job_id_of(new_ulid(each))
