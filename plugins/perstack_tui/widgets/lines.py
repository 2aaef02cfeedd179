"""Widgets that draw styled lines: scrolling lines, a single line, and rows of which one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.css.styles import RulesMap
from textual.css.stylesheet import Stylesheet
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style as TextualStyle
from textual.visual import RenderOptions, Visual
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option
from typing_extensions import override

from perstack_tui.view.styled_text import Line, Style, cells_of

_LOOKS: dict[Style, str] = {
    "": "",
    "dim": "$quiet",
    "rule": "$rule",
    "person": "bold $primary",
    "expert": "bold $expert",
    "call": "$primary",
    "good": "$success",
    "bad": "$error",
    "warn": "$warning",
    "ask": "$ask",
    "add": "$success",
    "remove": "$error",
    "strong": "bold",
}


def content_of(line: Line) -> Content:
    """Return a line as content of Textual's widgets, without interpreting its text as markup."""
    return Content.assemble(
        *(
            (span.text, f"{_LOOKS[span.style]} @click={span.action}" if span.action else _LOOKS[span.style])
            for span in line
        )
    )


# Scrolling lines; only the visible ones are drawn.


class LinesView(ScrollView, can_focus=True):
    """Lines that scroll. Their text is never interpreted as markup or control sequences."""

    DEFAULT_CSS = """
    LinesView {
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
    }
    """

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: Sequence[Line] = lines
        self._rich_styles: dict[tuple[str, bool], RichStyle] = {}

    def show(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self.measure()
        self.refresh()

    def whole_height(self) -> int:
        """Return the number of lines at the current width."""
        return len(self._lines)

    def measure(self) -> None:
        self.virtual_size = Size(self.size.width, self.whole_height())

    def on_resize(self) -> None:
        """Measure again, since lines may break differently. Textual calls this for each class of the hierarchy."""
        self.measure()

    @override
    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._rich_styles.clear()

    @override
    def render_line(self, y: int) -> Strip:
        index = y + round(self.scroll_y)
        return self.strip(self._lines[index] if index < len(self._lines) else ())

    def strip(self, line: Line, *, has_cursor: bool = False) -> Strip:
        """Return a line as a strip, filled to the width."""
        width = self.size.width
        segments = [Segment(span.text, self.resolve_style(span.style, has_cursor=has_cursor)) for span in line]
        strip = Strip(segments, cells_of(line))
        base = self.resolve_style("", has_cursor=has_cursor)
        return strip.crop_extend(0, width, base)

    def resolve_style(self, style: Style, *, has_cursor: bool = False) -> RichStyle:
        """Return the Rich style of a style in the current theme."""
        key = (style, has_cursor)
        if key not in self._rich_styles:
            text = f"{_LOOKS[style]} on $block-cursor-background" if has_cursor else _LOOKS[style]
            stylesheet: Stylesheet = self.app.stylesheet  # pyright: ignore[reportUnknownMemberType]  # App[Unknown]
            self._rich_styles[key] = self.rich_style + stylesheet.parse_style(text).rich_style
        return self._rich_styles[key]


# A single line.


class Bar(Static):
    """A line that never scrolls; spans with an action can be clicked."""

    DEFAULT_CSS = """
    Bar { height: 1; padding: 0 1; text-wrap: nowrap; }
    """
    auto_links = reactive(False)

    def set(self, line: Line) -> None:
        """Show a line, without a new layout, since the height is fixed."""
        self.update(content_of(line), layout=False)


# A list of rows.

# makes a row from its index, True if it is chosen, and its width in cells
MakeRow: TypeAlias = Callable[[int, bool, int], Line]


class ChoiceList(OptionList):
    """A list: Up and Down choose, Enter opens. Rows are made when they are drawn, for the current width."""

    DEFAULT_CSS = """
    ChoiceList, ChoiceList:focus {
        height: 1fr;
        border: none;
        padding: 0;
        background: $background;
        background-tint: $foreground 0%;
        scrollbar-size-vertical: 1;
        & > .option-list--option { padding: 0; }
        & > .option-list--option-highlighted {
            color: $foreground; background: $block-cursor-background; text-style: none;
        }
        & > .option-list--option-hover { background: $background; }
        & > .option-list--option-disabled { color: $quiet; }
    }
    """

    def offer(self, count: int, make_row: MakeRow, *, chosen: int = 0, empty_text: str = "") -> None:
        """Show `count` rows, or `empty_text` for 0, without reporting the choice."""
        top = self.scroll_y
        with self.prevent(OptionList.OptionHighlighted):
            if count:
                self.set_options(Option(_Row(self, index, make_row)) for index in range(count))
                self.scroll_to(y=top, animate=False, immediate=True, force=True)
                self.highlighted = chosen
            else:
                self.set_options([Option("", disabled=True), Option(Content(f"  {empty_text}"), disabled=True)])

    def move(self, rows: int) -> None:
        """Move the choice down by `rows`, up if negative, at most to the ends."""
        if self.highlighted is not None:
            self.highlighted += rows

    @override
    def action_cursor_up(self) -> None:
        self.move(-1)

    @override
    def action_cursor_down(self) -> None:
        self.move(1)

    @override
    def action_page_up(self) -> None:
        self.move(-max(1, self.size.height - 1))

    @override
    def action_page_down(self) -> None:
        self.move(max(1, self.size.height - 1))

    def on_resize(self) -> None:
        """Keep the chosen row in view."""
        self.call_after_refresh(self.scroll_to_highlight)


class _Row(Visual):
    """A row of one line, which is made when it is drawn."""

    def __init__(self, choice: ChoiceList, index: int, row: MakeRow) -> None:
        self._owner, self._index, self._row = choice, index, row

    @override
    def render_strips(self, width: int, height: int | None, style: TextualStyle, options: RenderOptions) -> list[Strip]:
        line = self._row(self._index, self._owner.highlighted == self._index, width)
        return content_of(line).render_strips(width, 1, style, options)

    @override
    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return container_width

    @override
    def get_height(self, rules: RulesMap, width: int) -> int:
        return 1
