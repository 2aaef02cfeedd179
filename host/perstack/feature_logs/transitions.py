"""Transition tables of tasks, series and schedules. `core/runs/evolve.py` has another, with two dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from perstack.core.base.records import IllegalEvent
from perstack.dataclass import dataclass

W = TypeVar("W", bound=str)


@dataclass(frozen=True, slots=True)
class Transition(Generic[W]):
    """The states that one type of event may follow, and those it leads to."""

    states: frozenset[W]
    to: frozenset[W] = frozenset()  # empty if the state does not change


def transition(*states: W, to: tuple[W, ...] = ()) -> Transition[W]:
    """Return an entry of a table."""
    return Transition(frozenset(states), frozenset(to))


def check_follows(table: Mapping[str, Transition[W]], event_type: str, subject: str, state: W) -> None:
    """Raise IllegalEvent if the event cannot follow while `subject` is in this state."""
    rule = table.get(event_type)
    if rule is None:
        raise IllegalEvent(f"a second {event_type}")
    if state not in rule.states:
        raise IllegalEvent(f"{event_type} cannot follow where {subject} is {state}")
