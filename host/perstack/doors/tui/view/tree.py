"""The tree of what is shown of a Job: items, and lanes of items, one a Run.

A lane knows where each of its items begins, so that the lines of a screen are found without making those of a whole
Job: a Job of thousands of steps costs what is looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from perstack.frontends.tui.view.spans import Line, Span

BAR = Span("│ ", "rule")
"""Before each line of a lane below another."""


class Looks(NamedTuple):
    """What lines are made for."""

    width: int
    now: int = 0
    """Milliseconds since 1970: how long what is at work has been."""


class Placed(NamedTuple):
    """A line of the whole, and what it belongs to."""

    line: Line
    node: Node


class Node:
    """Something with lines of its own."""

    __slots__ = ("_made", "_made_for", "at", "is_open", "parent")

    can_fold = False
    """Whether it has more to show, or less."""

    def __init__(self) -> None:
        self.parent: Lane | None = None
        self.at = 0
        """Its index in the parent."""
        self.is_open = False
        self._made: list[Line] = []
        self._made_for: int | None = None

    def make(self, looks: Looks) -> list[Line]:
        """Its lines, anew."""
        raise NotImplementedError

    def lines(self, looks: Looks) -> list[Line]:
        """Its lines, each no wider than `looks.width`."""
        if self._made_for != looks.width:
            self._made, self._made_for = self.make(looks), looks.width
        return self._made

    def height(self, looks: Looks) -> int:
        """How many they are."""
        return len(self.lines(looks))

    def changed(self) -> None:
        """Its lines are to be made anew."""
        self._made_for = None
        if self.parent is not None:
            self.parent.touch(self.at)

    def fold(self) -> None:
        """Show more of it, or less."""
        self.is_open = not self.is_open
        self.changed()

    def slice(self, first: int, last: int, looks: Looks) -> Iterator[Placed]:
        """Its lines from `first` up to, not including, `last`."""
        for line in self.lines(looks)[first:last]:
            yield Placed(line, self)


class Lane(Node):
    """A Run: a line that says what it is, unless it is the first, and below it what happened in it."""

    __slots__ = ("_clean", "_tops", "_width", "items")

    can_fold = True

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Node] = []
        self._tops: list[int] = [0]
        """Where each item begins, and where the last ends, as far as `_clean` says."""
        self._clean = 0
        self._width = 0
        self.is_open = True

    @property
    def has_head(self) -> bool:
        """Whether it stands below another."""
        return self.parent is not None

    def add(self, node: Node) -> None:
        """At its end."""
        node.parent, node.at = self, len(self.items)
        self.items.append(node)
        self.touch(node.at)

    def drop_last(self) -> None:
        """Take the last item away."""
        self.items.pop()
        self.touch(len(self.items))

    def touch(self, at: int) -> None:
        """The item there, and so where those after it begin, is another now."""
        self._clean = min(self._clean, at)
        del self._tops[self._clean + 1 :]
        if self.parent is not None:
            self.parent.touch(self.at)

    def body(self, looks: Looks) -> int:
        """How many lines its items have, and from now on where each begins."""
        inner = self._inner(looks)
        if self._width != inner.width:
            self._width, self._clean = inner.width, 0
            self._tops = [0]
        tops = self._tops
        for item in self.items[self._clean :]:
            tops.append(tops[-1] + item.height(inner))
        self._clean = len(self.items)
        return tops[-1]

    def height(self, looks: Looks) -> int:
        return int(self.has_head) + (self.body(looks) if self.is_open else 0)

    def slice(self, first: int, last: int, looks: Looks) -> Iterator[Placed]:
        if self.has_head:
            if first == 0 and last > 0:
                yield Placed(self.make(looks)[0], self)
            first, last = max(0, first - 1), last - 1
        if not self.is_open or last <= 0:
            return
        self.body(looks)
        inner, tops = self._inner(looks), self._tops
        at = max(0, bisect_right(tops, first) - 1)
        while at < len(self.items) and tops[at] < last:
            for placed in self.items[at].slice(first - tops[at] if first > tops[at] else 0, last - tops[at], inner):
                yield Placed((BAR, *placed.line), placed.node) if self.has_head else placed
            at += 1

    def top_of(self, node: Node, looks: Looks) -> int:
        """The line of the whole at which an item below this lane begins."""
        top, one = 0, node
        while one is not self and one.parent is not None:
            lane = one.parent
            lane.body(looks)
            top += lane._tops[one.at] + int(lane.has_head)
            one = lane
        return top

    def _inner(self, looks: Looks) -> Looks:
        return looks._replace(width=max(8, looks.width - 2)) if self.has_head else looks


def visible_folds(lane: Lane) -> list[Node]:
    """What may be folded in a lane, in the order of its lines, without what stands in a folded one."""
    found: list[Node] = []
    for item in lane.items:
        if item.can_fold:
            found.append(item)
        if isinstance(item, Lane) and item.is_open:
            found += visible_folds(item)
    return found
