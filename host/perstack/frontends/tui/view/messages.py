"""Texts under their titles as items that fold: the messages of a checkpoint, what is new in them, an event whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perstack.core.checkpoint import Checkpoint
from perstack.core.messages import AnyMessage
from perstack.frontends.shared.checkpoints import MessagesDiff, facts_of, parts_of, standing_of
from perstack.frontends.shared.words import count, pad, shorten
from perstack.frontends.tui.view.nodes import Lane, Looks, Node, Placed, visible_folds
from perstack.frontends.tui.view.spans import Line, Span, Style, wrap

_FOLDED = 6
"""Lines of a text that is folded."""

_MOST = 5_000
"""Lines of one that is unfolded; the log has all of it."""

_LONGEST = 200_000
"""Characters of a text that are looked at."""

_BEGINNING = 2_000
"""Characters of a folded one."""

_FACT = 10


class Titled(Node):
    """A text under its title, of which a beginning is shown until it is unfolded."""

    __slots__ = ("sign", "text", "title")

    can_fold = True

    def __init__(self, title: str, text: str, *, sign: str = "", is_open: bool = False) -> None:
        """`sign`: `+` for what is new, `-` for what is gone."""
        super().__init__()
        self.title = title
        self.text = text[:_LONGEST]
        self.sign = sign
        self.is_open = is_open

    def make(self, looks: Looks) -> list[Line]:
        style: Style = "add" if self.sign == "+" else "remove" if self.sign == "-" else ""
        texts, rest = self._below(looks)
        return [
            (Span(f"{self.sign or '─'} ", style or "rule"), Span(shorten(self.title, looks.width - 2), "expert")),
            *((Span("  "), Span(text, style)) for text in texts),
            *([(Span(f"  {rest}", "dim"),)] if rest else []),
            (),
        ]

    def height(self, looks: Looks) -> int:
        """Its lines counted: of ten thousand messages few are ever seen, and made."""
        texts, rest = self._below(looks)
        return len(texts) + bool(rest) + 2

    def _below(self, looks: Looks) -> tuple[list[str], str]:
        """The lines of its text, and what is said of those that are not among them."""
        said = self.text if self.is_open else self.text[:_BEGINNING]
        texts = wrap(said.strip("\n"), looks.width - 2)
        most = _MOST if self.is_open else _FOLDED
        if len(said) < len(self.text):
            return texts[:most], "…"
        return texts[:most], f"… {count(len(texts) - most, 'more line')}" if len(texts) > most else ""


class Fact(Node):
    """A short text beside its name."""

    __slots__ = ("name", "text")

    def __init__(self, name: str, text: str) -> None:
        super().__init__()
        self.name = name
        self.text = text

    def make(self, looks: Looks) -> list[Line]:
        width = max(8, looks.width - _FACT - 2)
        texts = wrap(self.text[:_LONGEST], width)[:_FOLDED]
        return [(Span(f"  {pad('' if at else self.name, _FACT)}", "dim"), Span(text)) for at, text in enumerate(texts)]


class Page:
    """Items one below the other."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._root = Lane()
        for node in nodes:
            self._root.add(node)

    def height(self, looks: Looks) -> int:
        """How many lines there are."""
        return self._root.height(looks)

    def lines(self, first: int, last: int, looks: Looks) -> list[Placed]:
        """Those from `first` up to, not including, `last`."""
        return list(self._root.slice(first, last, looks))

    def foldable(self) -> list[Node]:
        """What may be folded, in the order of the lines."""
        return visible_folds(self._root)

    def top_of(self, node: Node, looks: Looks) -> int:
        """The line at which an item begins."""
        return self._root.top_of(node, looks)


def checkpoint_page(checkpoint: Checkpoint) -> Page:
    """What a checkpoint says, and below it the messages as the model sees them."""
    return Page([*_facts(checkpoint, ()), *_message_nodes(checkpoint.messages, "")])


def new_page(checkpoint: Checkpoint, found: MessagesDiff) -> Page:
    """What the model sees no more since the step before, and what is new."""
    since = found.since or "the beginning"
    first = [
        ("since", since),
        ("no more", count(len(found.gone), "message")),
        ("new", count(len(found.new), "message")),
    ]
    return Page([*_facts(checkpoint, first), *_message_nodes(found.gone, "-"), *_message_nodes(found.new, "+")])


def texts_page(texts: Sequence[tuple[str, str]]) -> Page:
    """Texts, whole."""
    return Page([Titled(title, text, is_open=True) for title, text in texts])


def _facts(checkpoint: Checkpoint, first: Sequence[tuple[str, str]]) -> list[Node]:
    return [*(Fact(name, text) for name, text in (("status", standing_of(checkpoint)), *first, *facts_of(checkpoint))),
            Fact("", "")]  # fmt: skip


def _message_nodes(messages: Iterable[AnyMessage], sign: str) -> list[Node]:
    return [Titled(title, text, sign=sign) for message in messages for title, text in parts_of(message)]
