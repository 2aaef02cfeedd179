"""Which fact may follow where, and where it leads: what the tables of Runs, tasks and series have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from perstack.dataclass import dataclass

W = TypeVar("W", bound=str)


class IllegalFact(ValueError):
    """A fact that cannot follow in the state that it is to change: nothing that this host does writes it there."""


@dataclass(frozen=True, slots=True)
class Transition(Generic[W]):
    """Where one kind of fact may follow, and where it leads, for what stands in one place at a time."""

    places: frozenset[W]
    to: frozenset[W] = frozenset()
    """Empty: the place stays."""


def transition(*places: W, to: tuple[W, ...] = ()) -> Transition[W]:
    """An entry of a table."""
    return Transition(frozenset(places), frozenset(to))


def check_follows(table: Mapping[str, Transition[W]], fact: str, what: str, place: W) -> None:
    """Raises IllegalFact for a fact that cannot follow where `what` stands."""
    known = table.get(fact)
    if known is None:
        raise IllegalFact(f"a second {fact}")
    if place not in known.places:
        raise IllegalFact(f"{fact} cannot follow where {what} is {place}")
