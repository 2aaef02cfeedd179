"""Whose logs they are: Jobs, tasks, series of iterations and schedules have ids of their own, which may be the same."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

OwnerKind: TypeAlias = Literal["job", "task", "iterations", "schedule"]
"""What logs may be of."""


class Owner(NamedTuple):
    """One of them."""

    kind: OwnerKind
    id: str
