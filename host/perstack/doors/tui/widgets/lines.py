"""Lines of styled text, drawn: a widget has as many as there are, and draws those that are seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from perstack.frontends.tui.view.spans import Line, Style, cells_of

_PREFIX = "lines--"
STYLES: tuple[Style, ...] = (
    "dim", "rule", "person", "expert", "call", "good", "bad", "warn", "ask", "add", "remove", "strong",
)  # fmt: skip


class LinesView(ScrollView, can_focus=True):
    """Lines that scroll. What text is in them is text: nothing in it is read as markup or as a control."""

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
        super().__init__(id=id, classes=classes)
        self._lines: Sequence[Line] = lines
        self._looks: dict[tuple[str, bool], RichStyle] = {}

    def show(self, lines: Sequence[Line]) -> None:
        """These from now on."""
        self._lines = lines
        self.measure()
        self.refresh()

    def whole_height(self) -> int:
        """How many lines there are, at the width of now."""
        return len(self._lines)

    def measure(self) -> None:
        """Take the height of all lines for what is scrolled in."""
        self.virtual_size = Size(self.size.width, self.whole_height())

    def on_resize(self) -> None:
        """Lines may be broken at another width now. Of a class and those that it is made of each has its turn."""
        self.measure()

    def notify_style_update(self) -> None:
        """The theme may be another."""
        super().notify_style_update()
        self._looks.clear()

    def render_line(self, y: int) -> Strip:
        """The line at that row of the window."""
        at = y + round(self.scroll_y)
        return self.strip(self._lines[at] if at < len(self._lines) else ())

    def strip(self, line: Line, *, has_cursor: bool = False) -> Strip:
        """A line as it is drawn, filled to the width."""
        width = self.size.width
        segments = [Segment(span.text, self.look(span.style, has_cursor=has_cursor)) for span in line]
        strip = Strip(segments, cells_of(line))
        base = self.look("", has_cursor=has_cursor)
        return strip.crop_extend(0, width, base)

    def look(self, style: Style, *, has_cursor: bool = False) -> RichStyle:
        """How a style looks in the theme of now."""
        key = (style, has_cursor)
        if key not in self._looks:
            found = self.get_component_rich_style(f"{_PREFIX}{style}") if style else self.rich_style
            if has_cursor:
                found += RichStyle(bgcolor=self.get_component_rich_style(f"{_PREFIX}cursor").bgcolor)
            self._looks[key] = found
        return self._looks[key]
