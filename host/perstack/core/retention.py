"""`[retention]`: how long Jobs are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from perstack.core.base import Fact
from perstack.core.keys import Key, Rule, at_least
from perstack.core.spans import wrong_span
from perstack.core.statuses import TYPED_STATUS


def _unknown_status(names: Iterable[str]) -> str | None:
    unknown = [name for name in names if name not in TYPED_STATUS]
    return f"has {unknown[0]!r}: use {', '.join(TYPED_STATUS)}" if unknown else None


class Retention(Fact):
    """Which Jobs are removed by themselves; all that is said must hold, and nothing said removes none."""

    older_than: Annotated[
        str | None, Rule(wrong_span), Key("only Jobs that were not written to for so long, such as `30d`")
    ] = None
    keep_last: Annotated[int | None, at_least(0), Key("not the newest of each Expert, so many of all its Jobs")] = None
    status: Annotated[
        tuple[str, ...],
        Rule(_unknown_status),
        Key("only Jobs like this: " + ", ".join(f"`{name}`" for name in TYPED_STATUS)),
    ] = ()
