"""Widgets that draw styled lines: scrolling lines, a single line, and rows of which one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from typing_extensions import override

from perstack.dataclass import dataclass
from perstack_tui.view.styled_text import Line, Span, Style, cells_of

# Scrolling lines; only the visible ones are drawn.

_PREFIX = "lines--"
STYLES: tuple[Style, ...] = (
    "dim", "rule", "person", "expert", "call", "good", "bad", "warn", "ask", "add", "remove", "strong",
)  # fmt: skip


class LinesView(ScrollView, can_focus=True):
    """Lines that scroll. Their text is never interpreted as markup or control sequences."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"{_PREFIX}{style}" for style in STYLES} | {f"{_PREFIX}cursor"}
    DEFAULT_CSS = """
    LinesView {
        scrollbar-size-vertical: 1;
        overflow-x: hidden;
        & > .lines--dim { color: $quiet; }
        & > .lines--rule { color: $rule; }
        & > .lines--person { color: $primary; text-style: bold; }
        & > .lines--expert { color: $expert; text-style: bold; }
        & > .lines--call { color: $primary; }
        & > .lines--good { color: $success; }
        & > .lines--bad { color: $error; }
        & > .lines--warn { color: $warning; }
        & > .lines--ask { color: $ask; }
        & > .lines--add { color: $success; }
        & > .lines--remove { color: $error; }
        & > .lines--strong { text-style: bold; }
        & > .lines--cursor { background: $block-cursor-background; }
    }
    """

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None, classes: str | None = None) -> None:
        """Show these lines."""
        super().__init__(id=id, classes=classes)
        self._lines: Sequence[Line] = lines
        self._looks: dict[tuple[str, bool], RichStyle] = {}

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines."""
        self._lines = lines
        self.measure()
        self.refresh()

    def whole_height(self) -> int:
        """Return the number of lines at the current width."""
        return len(self._lines)

    def measure(self) -> None:
        """Update the scrolled height."""
        self.virtual_size = Size(self.size.width, self.whole_height())

    def on_resize(self) -> None:
        """Measure again, since lines may break differently. Textual calls this for each class of the hierarchy."""
        self.measure()

    @override
    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._looks.clear()

    @override
    def render_line(self, y: int) -> Strip:
        index = y + round(self.scroll_y)
        return self.strip(self._lines[index] if index < len(self._lines) else ())

    def strip(self, line: Line, *, has_cursor: bool = False) -> Strip:
        """Return a line as a strip, filled to the width."""
        width = self.size.width
        segments = [Segment(span.text, self.look(span.style, has_cursor=has_cursor)) for span in line]
        strip = Strip(segments, cells_of(line))
        base = self.look("", has_cursor=has_cursor)
        return strip.crop_extend(0, width, base)

    def look(self, style: Style, *, has_cursor: bool = False) -> RichStyle:
        """Return the look of a style in the current theme."""
        key = (style, has_cursor)
        if key not in self._looks:
            look = self.get_component_rich_style(f"{_PREFIX}{style}") if style else self.rich_style
            if has_cursor:
                look += RichStyle(bgcolor=self.get_component_rich_style(f"{_PREFIX}cursor").bgcolor)
            self._looks[key] = look
        return self._looks[key]


# A single line drawn from spans.


class Bar(LinesView, can_focus=False):
    """A line that never scrolls; a click reports the index of its span."""

    DEFAULT_CSS = """
    Bar { height: 1; scrollbar-size: 0 0; padding: 0 1; }
    """

    @dataclass
    class Clicked(Message):
        """A click on the span with this index."""

        bar: Bar
        number: int

    def set(self, line: Line) -> None:
        """Show this line."""
        if [*self._lines] != [line]:
            self.show([line])

    def on_click(self, event: events.Click) -> None:
        """Report the clicked span."""
        offset = event.x - 1
        for number, span in enumerate(self._lines[0] if self._lines else ()):
            offset -= cells_of((span,))
            if offset < 0:
                self.post_message(self.Clicked(self, number))
                return


Row: TypeAlias = Callable[[int, bool, int], Line]  # makes the row of an index, chosen or not, of a width in cells


class Choice(LinesView):
    """A list: Up and Down choose, Enter opens. Only visible rows are made."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "choose_at(0)", show=False),
        Binding("end", "choose_at(-1)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """Enter on a row, or a click on the chosen row."""

    class RowChanged(Message):
        """Another row is chosen."""

    def __init__(self, *, id: str | None = None) -> None:
        """Start without rows."""
        super().__init__(id=id)
        self.chosen = 0
        self.count = 0
        self._row: Row = lambda index, is_chosen, width: ()
        self._empty = ""

    def offer(self, count: int, row: Row, *, chosen: int = 0, empty: str = "") -> None:
        """Show these rows; `empty` is shown if there are none."""
        self.count, self._row, self._empty = count, row, empty
        self.measure()
        self.choose_at(chosen)
        self.call_after_refresh(self._into_view)

    def choose_at(self, index: int) -> None:
        """Choose a row and scroll to it; a negative index counts from the end."""
        index = self.count + index if index < 0 else index
        previous, self.chosen = self.chosen, max(0, min(index, self.count - 1))
        self._into_view()
        self.refresh()
        if self.chosen != previous:
            self.post_message(self.RowChanged())

    def action_choose(self, step: int) -> None:
        """Move the choice by `step` rows."""
        self.choose_at(max(0, self.chosen + step))

    def action_page(self, pages: int) -> None:
        """Move the choice by pages."""
        self.choose_at(max(0, self.chosen + pages * max(1, self.size.height - 1)))

    def action_choose_at(self, index: int) -> None:
        """Choose a row; a negative index counts from the end."""
        self.choose_at(index)

    def action_open(self) -> None:
        """Open the chosen row."""
        if self.count:
            self.post_message(self.Opened())

    @override
    def on_resize(self) -> None:
        self.measure()
        self._into_view()
        self.call_after_refresh(self._into_view)

    @override
    def whole_height(self) -> int:
        return max(self.count, 2)

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked row, or open it if it was chosen."""
        index = event.y + round(self.scroll_y)
        if index < self.count:
            previous = self.chosen
            self.choose_at(index)
            if previous == index:
                self.post_message(self.Opened())

    def _into_view(self) -> None:
        top = round(self.scroll_y)
        if self.size.height and not top <= self.chosen < top + self.size.height:
            above = 0 if self.chosen < top else self.size.height - 1
            self.scroll_to(y=max(0, self.chosen - above), animate=False, immediate=True, force=True)

    @override
    def render_line(self, y: int) -> Strip:
        index = y + round(self.scroll_y)
        if index < self.count:
            is_chosen = index == self.chosen
            width = self.scrollable_content_region.width  # `size` includes the scrollbar
            return self.strip(self._row(index, is_chosen, width), has_cursor=is_chosen)
        return self.strip((Span(f"  {self._empty}", "dim"),) if index == 1 and not self.count else ())
