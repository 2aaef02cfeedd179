"""Tasks that wait for other tasks: what holds one up, and who may not wait for whom.

What a task waits for is in its own log, and what became of that in the others'. Nothing is written to a task when
another ends: whoever looks at it looks at those as well. So no crash can leave one behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from perstack.core.base import Fact, falsy

MOST_DEPENDENCIES = 100
"""How many tasks one may wait for."""


class Dependency(Fact):
    """A task that another one waits for, as it stands: it is not completed."""

    task_id: str
    status: Literal["created", "running", "paused", "failed", "deleted", "damaged"]
    archived: bool = Field(default=False, exclude_if=falsy)
    error: str | None = None
    circle: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    """The way from who waits for it back to that task, if it waits for that in turn; lists and the inbox say so."""

    @property
    def is_stuck(self) -> bool:
        """Whether it will not be completed unless a person does something."""
        return self.status in ("failed", "deleted", "damaged") or bool(self.circle)

    def in_words(self) -> str:
        """`b (failed: the disk is full)`."""
        stands = f"{self.status}, archived" if self.archived else self.status
        turns = f", in a circle: {' -> '.join(self.circle)}" if self.circle else ""
        return f"{self.task_id} ({stands}{f': {self.error}' if self.error else ''}{turns})"


def in_words(dependencies: Iterable[Dependency]) -> str:
    """`waits for a (running), b (failed: the disk is full)`; those that are stuck first. Nothing for none."""
    ordered = sorted(dependencies, key=lambda one: not one.is_stuck)
    return f"waits for {', '.join(one.in_words() for one in ordered)}" if ordered else ""


def circle(task_id: str, depends_on: Sequence[str], waits: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """The way from a task back to itself, if it waited for these; `waits` says whom each task waits for now."""
    came_from: dict[str, str] = {}
    to_do = list(depends_on)
    came_from.update(dict.fromkeys(depends_on, task_id))
    while to_do:
        one = to_do.pop()
        if one == task_id:
            return _way_back(task_id, came_from)
        for other in waits.get(one, ()):
            if other not in came_from:
                came_from[other] = one
                to_do.append(other)
    return None


def without_an_end(waits: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """The tasks on circles, and those that wait for one. Two that begin to wait in one moment may make a circle, for
    neither sees the other yet."""
    left = {task_id: {one for one in wanted if one in waits} for task_id, wanted in waits.items()}
    needed_by: dict[str, list[str]] = {}
    for task_id, wanted in left.items():
        for one in wanted:
            needed_by.setdefault(one, []).append(task_id)
    to_do = [task_id for task_id, wanted in left.items() if not wanted]
    while to_do:
        one = to_do.pop()
        del left[one]
        for other in needed_by.get(one, ()):
            left[other].discard(one)
            if not left[other]:
                to_do.append(other)
    return frozenset(left)


def _way_back(task_id: str, came_from: Mapping[str, str]) -> tuple[str, ...]:
    way = [task_id]
    while (before := came_from[way[-1]]) != task_id:
        way.append(before)
    return (task_id, *reversed(way))
