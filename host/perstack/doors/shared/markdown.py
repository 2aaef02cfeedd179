"""Markdown of a model at a terminal: split a stream into blocks, and render each block as lines.

- `TextStream` returns a block when it is complete: a paragraph, a heading, a table, an item of a list, a line of fenced
  code. A block never changes afterwards, so nothing that was printed is printed again.
- A model's text is hostile. A block is rendered only if it is small and flat, so that rendering takes milliseconds;
  otherwise its lines are shown as written. The result is sanitized when it is written (`StyledText`), including the
  characters that Markdown can name, such as `&#x202e;`.
- Only rendering imports the libraries `markdown_it` and `rich`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from perstack.core.base.text import plain_text
from perstack.doors.shared.screen import Screen, StyledText
from perstack.doors.shared.text import break_anywhere

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.segment import Segment

Line = tuple[str | StyledText, ...]

_MAX_BLOCK_CHARS = 4_000  # maximum characters of a rendered block; a longer one is shown as it was written
_MAX_REPLY_CHARS = 60_000  # maximum characters of a rendered reply; the rest is shown as it was written
_MIN_COUNTED_CHARS = 60  # minimum characters that a block counts as: shorter blocks take as long to render
_MAX_LEVEL = 16  # maximum depth of lists and quotes in a rendered block, as the parser counts it
_MAX_COLUMNS = 12  # maximum columns of a rendered table
_MIN_WIDTH = 30  # screen width below which no block is rendered
_CODE_INDENT = "  "
_TAB = "    "


# Splitting a stream into blocks.

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`]*\Z")
_INNER_FENCE = re.compile(r"\s*(?:(?:[-*+]|\d{1,9}[.)])\s+)?(`{3,}|~{3,})[^`]*\Z")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|\Z)")
_ITEM = re.compile(r" ?(?:[-*+]|\d{1,9}[.)])(?:\s|\Z)")


class Block(NamedTuple):
    """A complete piece of a text: a line of code, or the source of a paragraph, heading, table or item."""

    text: str
    kind: Literal["text", "item", "code", "source"] = "text"  # `source` is a line that is shown as it was written
    begins: bool = True  # False for a further line, or a further item of the same list


class TextStream:
    """The text of one reply, split into blocks as it arrives."""

    def __init__(self, *, is_source: bool = False) -> None:
        """Split into blocks, or with `is_source` only into lines."""
        self._is_source = is_source
        self._left = _MAX_REPLY_CHARS
        self._partial = ""  # the line that has not ended
        self._lines: list[str] = []  # lines of the block that has not ended
        self._chars = 0
        self._kind: Literal["", "text", "item"] = ""
        self._fence = ""  # the marker that opened the fenced code
        self._inner_fence = ""  # the marker that opened fenced code within an item
        self._is_after_blank = False
        self._begins = True

    @property
    def rest(self) -> Block | None:
        """The block that has not ended yet; None if there is none."""
        if self._fence:
            return Block(self._partial, "code", self._begins) if self._partial else None
        text = "\n".join([*self._lines, self._partial]).rstrip("\n")
        kind = "source" if self._is_source else self._kind or "text"
        return Block(text, kind, self._begins) if text.strip() else None

    def add(self, delta: str) -> list[Block]:
        """Add text, and return the blocks that are complete now."""
        *lines, self._partial = (self._partial + delta).split("\n")
        blocks = [block for line in lines for block in self._count_line(line)]
        while len(self._partial) > _MAX_BLOCK_CHARS:  # a line without an end must not be kept in memory
            piece, self._partial = self._partial[:_MAX_BLOCK_CHARS], self._partial[_MAX_BLOCK_CHARS:]
            blocks += self._count_line(piece)
        return blocks

    def end(self) -> list[Block]:
        """Return the rest of the text as blocks, at its end."""
        blocks = self._count_line(self._partial) if self._partial else []
        self._partial = ""
        return [*blocks, *self._flush()]

    def _count_line(self, line: str) -> list[Block]:
        if self._is_source:
            return [Block(line, "source", begins=False)]
        self._left -= max(len(line), _MIN_COUNTED_CHARS)
        if self._left >= 0:
            return self._line(line)
        self._is_source = True
        return [*self._flush(), Block(line, "source", begins=self._fence == "")]

    def _line(self, line: str) -> list[Block]:
        if self._fence:
            return self._code(line)
        if self._chars + len(line) > _MAX_BLOCK_CHARS:
            return [*self._flush(), *self._start(line)]
        if self._kind == "item" and self._take_item_line(line):
            return self._keep(line)
        if self._kind == "text" and line.strip() and not _starts_block(line):
            return self._keep(line)
        is_further = self._kind == "item" and _ITEM.match(line) is not None and _is_same_list(line, self._lines[0])
        return [*self._flush(), *self._start(line, is_further=is_further)]

    def _code(self, line: str) -> list[Block]:
        if _is_closing(line, self._fence):
            self._fence, self._begins = "", True
            return []
        begins, self._begins = self._begins, False
        return [Block(line, "code", begins)]

    def _take_item_line(self, line: str) -> bool:
        """Read a line after the first of a list item, and return whether it belongs to the item."""
        if self._inner_fence:
            if _is_closing(line, self._inner_fence):
                self._inner_fence = ""
            return True
        if not line.strip():
            self._is_after_blank = True
            return True
        is_indented = line.startswith(("  ", "\t"))
        is_lazy = not self._is_after_blank and not _starts_block(line)
        self._is_after_blank = False
        if is_indented and (match := _INNER_FENCE.match(line)):
            self._inner_fence = match[1]
        return is_indented or is_lazy

    def _keep(self, line: str) -> list[Block]:
        self._lines.append(line)
        self._chars += len(line) + 1
        return []

    def _start(self, line: str, *, is_further: bool = False) -> list[Block]:
        self._begins = not is_further
        if not line.strip():
            return []
        if fence := _FENCE.match(line):
            self._fence = fence[1]
            return []
        if _HEADING.match(line):
            return [Block(line)]
        if _ITEM.match(line):
            self._kind, self._is_after_blank = "item", False
            if match := _INNER_FENCE.match(line):
                self._inner_fence = match[1]
        else:
            self._kind = "text"
        return self._keep(line)

    def _flush(self) -> list[Block]:
        text, kind = "\n".join(self._lines).rstrip("\n"), self._kind
        self._lines, self._chars, self._kind, self._inner_fence = [], 0, "", ""
        return [Block(text, kind, self._begins)] if kind and text else []


def _starts_block(line: str) -> bool:
    return bool(_FENCE.match(line) or _HEADING.match(line) or _ITEM.match(line))


def _is_same_list(item: str, other: str) -> bool:
    """Return whether two items belong to one list: both are numbered, or both have the same mark."""
    first_mark, second_mark = item.lstrip()[0], other.lstrip()[0]
    return first_mark == second_mark or (first_mark.isdigit() and second_mark.isdigit())


def _is_closing(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0])


# Rendering a block.


def lines_of(block: Block, screen: Screen, width: int) -> list[Line]:
    """Return a block as lines of at most `width` cells."""
    text = plain_text(block.text).replace("\t", _TAB)
    if block.kind == "code":
        pieces = break_anywhere(text, max(2, width - len(_CODE_INDENT)))
        return [(_CODE_INDENT, screen.styled(line, fg="cyan")) for line in pieces]
    if block.kind != "source" and width >= _MIN_WIDTH and len(text) <= _MAX_BLOCK_CHARS:
        tokens = _parser().parse(text)
        if _is_renderable(tokens):
            return [_parts(line, screen) for line in _draw(tokens, width)]
    return [(piece,) for line in text.split("\n") for piece in break_anywhere(line, width)]


def render(text: str, width: int) -> list[Line]:
    """Return a whole text as lines of at most `width` cells, with an empty line between its blocks."""
    stream, screen = TextStream(), Screen(width, True)
    lines: list[Line] = []
    for block in (*stream.add(text), *stream.end()):
        if block.begins and lines:
            lines.append(())
        lines += lines_of(block, screen, width)
    return lines


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # HTML and reference definitions would not be shown
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")


def _is_renderable(tokens: Iterable[Token]) -> bool:
    columns = 0
    for token in tokens:
        columns = 0 if token.type == "tr_open" else columns + (token.type in ("th_open", "td_open"))
        if token.level > _MAX_LEVEL or columns > _MAX_COLUMNS:
            return False
    return True


def _draw(tokens: list[Token], width: int) -> list[list[Segment]]:
    console, markdown = _renderer()
    markdown.parsed = [_adapt(token) for token in tokens]
    lines = console.render_lines(markdown, console.options.update(width=width), pad=False)
    while lines and not "".join(segment.text for segment in lines[-1]).strip():
        lines.pop()
    while lines and not "".join(segment.text for segment in lines[0]).strip():
        del lines[0]
    return lines


def _adapt(token: Token) -> Token:
    """Return the token with line ends kept, as people and models expect, and with pictures as their source."""
    for child in token.children or ():
        if child.type == "softbreak":
            child.type = "hardbreak"
        elif child.type == "image":
            source = f"![{child.content}]({child.attrs.get('src', '')})"
            child.type, child.tag, child.content, child.children = "text", "", source, None
    return token


@cache
def _renderer() -> tuple[Console, Markdown]:
    from io import StringIO

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Heading, ListItem, Markdown
    from rich.segment import Segment
    from rich.text import Text

    class _Heading(Heading):
        LEVEL_ALIGN = {}  # noqa: RUF012 - headings are aligned left

    class _Code(CodeBlock):
        """Code without highlighting, whose time depends on the text."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(str(self.text).rstrip("\n"), style="markdown.code_block", no_wrap=False)

    class _NumberedItem(ListItem):
        def render_number(
            self, console: Console, options: ConsoleOptions, number: int, last_number: int
        ) -> RenderResult:
            mark = f" {number}. "
            inner_options = options.update(width=max(1, options.max_width - len(mark)))
            for index, line in enumerate(console.render_lines(self.elements, inner_options, style=self.style)):
                yield Segment(" " * len(mark) if index else mark, console.get_style("markdown.item.number"))
                yield from line
                yield Segment.line()

    class _Markdown(Markdown):
        elements = {  # noqa: RUF012 - as in the base class
            **Markdown.elements,
            "heading_open": _Heading,
            "list_item_open": _NumberedItem,
            "fence": _Code,
            "code_block": _Code,
        }

    return Console(file=StringIO(), width=80, legacy_windows=False), _Markdown("", hyperlinks=False)


_ATTRIBUTES = {"bold": "bold", "dim": "dim", "italic": "italic", "underline": "underline", "strike": "strikethrough"}


def _parts(segments: Iterable[Segment], screen: Screen) -> Line:
    return tuple(_join_texts(_part(segment, screen) for segment in segments if segment.text))


def _part(segment: Segment, screen: Screen) -> StyledText:
    style = segment.style
    if style is None:
        return StyledText(segment.text, {})
    attributes: dict[str, str | bool] = {ours: True for theirs, ours in _ATTRIBUTES.items() if getattr(style, theirs)}
    if style.color is not None and not style.color.is_default:
        attributes["fg"] = style.color.name
    return screen.styled(segment.text, **attributes)


def _join_texts(parts: Iterable[StyledText]) -> Iterator[str | StyledText]:
    last: StyledText | None = None
    for part in parts:
        if last is not None and part.style == last.style:
            last = StyledText(last.text + part.text, last.style)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield StyledText(last.text if last.style else last.text.rstrip(), last.style)
