"""The tree of displayed items.

Each branch caches the first line of each item, so that a screen renders only its visible items.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from typing_extensions import override

from perstack.core.base.text import count
from perstack.core.jobs.checkpoints import Checkpoint
from perstack.core.messages.messages import AnyMessage
from perstack.doors.shared.checkpoint_view import MessagesDiff, facts_of, parts_of, status_of_checkpoint
from perstack.doors.shared.text import pad, shorten
from perstack_tui.view.styled_text import Line, Span, Style, wrap

BAR = Span("│ ", "rule")  # prefix of each line of a nested branch


class RenderContext(NamedTuple):
    """The parameters of rendering."""

    width: int
    now: int = 0  # milliseconds since 1970, for durations of running items


class PlacedLine(NamedTuple):
    """A line and the item it belongs to."""

    line: Line
    node: TreeItem


class TreeItem:
    """An item with lines."""

    __slots__ = ("_cached_lines", "_cached_width", "index", "is_open", "parent")

    can_fold = False

    def __init__(self) -> None:
        """Start folded, and without a parent."""
        self.parent: TreeBranch | None = None
        self.index = 0  # index of the item in its parent
        self.is_open = False
        self._cached_lines: list[Line] = []
        self._cached_width: int | None = None

    def render(self, context: RenderContext) -> list[Line]:
        raise NotImplementedError

    def lines(self, context: RenderContext) -> list[Line]:
        """Return the lines, at most `context.width` cells wide; cached until `mark_changed` or another width."""
        if self._cached_width != context.width:
            self._cached_lines, self._cached_width = self.render(context), context.width
        return self._cached_lines

    def height(self, context: RenderContext) -> int:
        return len(self.lines(context))

    def whole_text(self) -> str:
        """Return the full text of the item, for a search; empty in the base class."""
        return ""

    def mark_changed(self) -> None:
        """Invalidate the cached lines."""
        self._cached_width = None
        if self.parent is not None:
            self.parent.invalidate(self.index)

    def fold(self) -> None:
        """Toggle between folded and unfolded."""
        self.is_open = not self.is_open
        self.mark_changed()

    def slice(self, first: int, last: int, context: RenderContext) -> Iterator[PlacedLine]:
        """Yield the lines from `first` up to, not including, `last`."""
        for line in self.lines(context)[first:last]:
            yield PlacedLine(line, self)


class TreeBranch(TreeItem):
    """A Run's branch: a head line unless it is the root, and its items below."""

    __slots__ = ("_tops", "_valid_count", "_width", "items")

    can_fold = True

    def __init__(self, items: Iterable[TreeItem] = ()) -> None:
        super().__init__()
        self.items: list[TreeItem] = []
        # first line of each item and end of the last one, valid for the first `_valid_count` items
        self._tops: list[int] = [0]
        self._valid_count = 0
        self._width = 0
        self.is_open = True
        for item in items:
            self.add(item)

    @property
    def has_head(self) -> bool:
        """True if the branch has a head line: every branch except the root."""
        return self.parent is not None

    def add(self, node: TreeItem) -> None:
        node.parent, node.index = self, len(self.items)
        self.items.append(node)
        self.invalidate(node.index)

    def drop_last(self) -> None:
        self.items.pop()
        self.invalidate(len(self.items))

    def invalidate(self, index: int) -> None:
        """Invalidate the positions from that item on."""
        self._valid_count = min(self._valid_count, index)
        del self._tops[self._valid_count + 1 :]
        if self.parent is not None:
            self.parent.invalidate(self.index)

    def measure_items(self, context: RenderContext) -> int:
        """Update the positions of the items below this branch, and return the number of their lines."""
        inner_context = self.inner_context(context)
        if self._width != inner_context.width:
            self._width, self._valid_count = inner_context.width, 0
            self._tops = [0]
        tops = self._tops
        for item in self.items[self._valid_count :]:
            tops.append(tops[-1] + item.height(inner_context))
        self._valid_count = len(self.items)
        return tops[-1]

    @override
    def height(self, context: RenderContext) -> int:
        return int(self.has_head) + (self.measure_items(context) if self.is_open else 0)

    @override
    def slice(self, first: int, last: int, context: RenderContext) -> Iterator[PlacedLine]:
        if self.has_head:
            if first == 0 and last > 0:
                yield PlacedLine(self.render(context)[0], self)
            first, last = max(0, first - 1), last - 1
        if not self.is_open or last <= 0:
            return
        self.measure_items(context)
        inner, tops = self.inner_context(context), self._tops
        index = max(0, bisect_right(tops, first) - 1)
        while index < len(self.items) and tops[index] < last:
            start = max(0, first - tops[index])
            for line in self.items[index].slice(start, last - tops[index], inner):
                yield PlacedLine((BAR, *line.line), line.node) if self.has_head else line
            index += 1

    def top_of(self, node: TreeItem, context: RenderContext) -> int:
        """Return the line of the whole tree at which an item below this branch begins."""
        top, current = 0, node
        while current is not self and current.parent is not None:
            branch = current.parent
            branch.measure_items(context)
            top += branch._tops[current.index] + int(branch.has_head)
            current = branch
        return top

    def foldable(self) -> list[TreeItem]:
        """Return the items that can fold in line order, without those in a folded branch."""
        items: list[TreeItem] = []
        for item in self.items:
            if item.can_fold:
                items.append(item)
            if isinstance(item, TreeBranch) and item.is_open:
                items += item.foldable()
        return items

    def inner_context(self, context: RenderContext) -> RenderContext:
        """Return the parameters for the items below."""
        return context._replace(width=max(8, context.width - 2)) if self.has_head else context


# Pages of foldable texts: messages of a checkpoint, new messages, the texts of an event.

_FOLDED_LINES = 6  # maximum lines of a folded text
_MAX_LINES = 5_000  # maximum lines of an unfolded text; the log has all of it
_MAX_TEXT_CHARS = 200_000  # maximum characters of a text that are processed
_FOLDED_CHARS = 2_000  # maximum characters of a folded text that are processed
_NAME_CELLS = 10


class TitledText(TreeItem):
    """A titled text that shows its beginning until it is unfolded."""

    __slots__ = ("sign", "text", "title")

    can_fold = True

    def __init__(self, title: str, text: str, *, sign: str = "", is_open: bool = False) -> None:
        """`sign` is `+` for a new text, `-` for a removed one."""
        super().__init__()
        self.title = title
        self.text = text[:_MAX_TEXT_CHARS]
        self.sign = sign
        self.is_open = is_open

    @override
    def render(self, context: RenderContext) -> list[Line]:
        style: Style = "add" if self.sign == "+" else "remove" if self.sign == "-" else ""
        texts, note = self._shown_lines(context)
        return [
            (Span(f"{self.sign or '─'} ", style or "rule"), Span(shorten(self.title, context.width - 2), "expert")),
            *((Span("  "), Span(text, style)) for text in texts),
            *([(Span(f"  {note}", "dim"),)] if note else []),
            (),
        ]

    def height(self, context: RenderContext) -> int:
        """Return the number of lines without rendering, since few of thousands of messages are ever shown."""
        texts, note = self._shown_lines(context)
        return len(texts) + bool(note) + 2

    def _shown_lines(self, context: RenderContext) -> tuple[list[str], str]:
        text = self.text if self.is_open else self.text[:_FOLDED_CHARS]
        texts = wrap(text.strip("\n"), context.width - 2)
        max_lines = _MAX_LINES if self.is_open else _FOLDED_LINES
        if len(text) < len(self.text):
            return texts[:max_lines], "…"
        return texts[:max_lines], f"… {count(len(texts) - max_lines, 'more line')}" if len(texts) > max_lines else ""


class LabelledText(TreeItem):
    """A short text next to its name."""

    __slots__ = ("name", "text")

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.name = name
        self.text = text

    @override
    def render(self, context: RenderContext) -> list[Line]:
        width = max(8, context.width - _NAME_CELLS - 2)
        texts = wrap(self.text[:_MAX_TEXT_CHARS], width)[:_FOLDED_LINES]
        return [
            (Span(f"  {pad('' if i else self.name, _NAME_CELLS)}", "dim"), Span(text)) for i, text in enumerate(texts)
        ]


def checkpoint_page(checkpoint: Checkpoint) -> TreeBranch:
    """Return a page of a checkpoint's facts and its messages as the model sees them."""
    return TreeBranch([*_facts(checkpoint, ()), *_message_nodes(checkpoint.messages, "")])


def new_messages_page(checkpoint: Checkpoint, diff: MessagesDiff) -> TreeBranch:
    """Return a page of the messages that were removed and added since the previous step."""
    since = diff.since or "the beginning"
    first = [("since", since), ("no more", count(len(diff.gone), "message")), ("new", count(len(diff.new), "message"))]
    return TreeBranch([*_facts(checkpoint, first), *_message_nodes(diff.gone, "-"), *_message_nodes(diff.new, "+")])


def texts_page(texts: Sequence[tuple[str, str]]) -> TreeBranch:
    return TreeBranch([TitledText(title, text, is_open=True) for title, text in texts])


def _facts(checkpoint: Checkpoint, first_facts: Sequence[tuple[str, str]]) -> list[TreeItem]:
    facts = (("status", status_of_checkpoint(checkpoint)), *first_facts, *facts_of(checkpoint), ("", ""))
    return [LabelledText(name, text) for name, text in facts]


def _message_nodes(messages: Iterable[AnyMessage], sign: str) -> list[TreeItem]:
    return [TitledText(title, text, sign=sign) for message in messages for title, text in parts_of(message)]
