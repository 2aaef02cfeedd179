"""Widgets that draw a tree of items that fold. Only visible lines are rendered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget
from typing_extensions import override

from perstack.dataclass import dataclass
from perstack_tui.view.search import SearchMatch
from perstack_tui.view.tree import PlacedLine, RenderContext, TreeBranch, TreeItem
from perstack_tui.widgets.lines import LinesView


class NodesView(LinesView):
    """A view of items. While it has the focus, a cursor moves between the items that can fold."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
        Binding("enter,space", "fold_chosen", show=False),
        Binding("ctrl+end,end", "to_end", show=False),
    ]

    def __init__(
        self, items: TreeBranch, now: Callable[[], int], *, follows: bool = True, id: str | None = None
    ) -> None:
        """With `follows` the view stays at its end while items are added."""
        super().__init__(id=id)
        self._may_follow = follows
        self.items = items
        self._now = now
        self._chosen: TreeItem | None = None
        self._follows = follows  # True if the view currently follows its end
        self._window_lines: list[PlacedLine] = []  # the visible lines
        # top and height of the window for which they were made; None to make them again
        self._window: tuple[int, int] | None = None
        # height up to which lines are not new: when the view last followed its end, and unfolded lines since
        self._seen_height = 0
        self._shown_match: SearchMatch | None = None  # the shown match of a search
        self._match_line = -1  # the line of the shown match

    @property
    def render_context(self) -> RenderContext:
        """The parameters of rendering."""
        return RenderContext(max(10, self.size.width - 1), self._now())

    @property
    def new_lines(self) -> int:
        """Number of lines added since the view stopped following its end; 0 while it follows."""
        return 0 if self._follows or not self._may_follow else max(0, self.virtual_size.height - self._seen_height)

    def update(self) -> None:
        self._follows = self._may_follow and (self._follows or self.scroll_offset.y >= self.max_scroll_y)
        if self.size.width:
            self.measure()
            if self._follows:  # `force`, since there may be no scrollbar yet
                self._seen_height = self.virtual_size.height
                self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)
            self._update_scrollbar()
        self._refresh_changed()

    def _change_by_user(self, change: Callable[[], None]) -> None:
        """Make a change of the user, without counting its added lines as new."""
        new_lines = self.new_lines
        change()
        self._seen_height = self.whole_height() - new_lines

    def measure(self) -> None:
        """Update the scrolled height, with a new layout only if the scrollbar changes: streaming adds many lines."""
        size = Size(self.size.width, self.whole_height())
        reactive: object = Widget.virtual_size
        has_bar = size.height > self.container_size.height
        if has_bar is self.show_vertical_scrollbar and isinstance(reactive, Reactive):
            self.set_reactive(reactive, size)
            if self.scroll_y > self.max_scroll_y:
                self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)
        else:
            self.virtual_size = size

    def _refresh_changed(self) -> None:
        old_window, old_window_lines = self._window, self._window_lines
        self._update_window()
        if old_window is None or old_window != self._window:
            self.refresh()
            return
        old_lines, new_lines = ([item.line for item in old_window_lines], [item.line for item in self._window_lines])
        rows = [y for y in range(max(len(old_lines), len(new_lines))) if old_lines[y : y + 1] != new_lines[y : y + 1]]
        if rows:
            self.refresh(Region(0, rows[0], self.size.width, rows[-1] + 1 - rows[0]))

    def _update_window(self) -> None:
        top, height = window = round(self.scroll_y), self.size.height
        self._window_lines, self._window = list(self.items.slice(top, top + height, self.render_context)), window
        self._match_line = -1 if self._shown_match is None else self._line_of(self._shown_match)

    def _refresh_all(self) -> None:
        self._window = None
        self.refresh()

    def replace(self, items: TreeBranch) -> None:
        """Show other items with an equal end, keeping the scroll distance to the end."""
        height_below, new_lines = self.virtual_size.height - self.scroll_y, self.new_lines
        self.items, self._chosen, self._shown_match, self._window = items, None, None, None
        follows = self._follows
        self.update()
        self._seen_height = self.virtual_size.height - new_lines
        if not follows:
            self.scroll_to(
                y=max(0.0, self.virtual_size.height - height_below), animate=False, immediate=True, force=True
            )

    def prepare(self, items: TreeBranch) -> None:
        """Measure items in advance, so that `replace` is quick."""
        if self.size.width:
            items.height(self.render_context)

    def _update_scrollbar(self) -> None:
        """Update the scrollbar, since added lines do not always cause a layout, which would update it."""
        if self.show_vertical_scrollbar:
            bar = self.vertical_scrollbar
            bar.window_virtual_size, bar.window_size = self.virtual_size.height, self.size.height
            bar.position = self.scroll_y

    def watch_show_vertical_scrollbar(self) -> None:
        """Update a scrollbar that has just appeared and still shows position 0."""
        self._update_scrollbar()

    @override
    def whole_height(self) -> int:
        return self.items.height(self.render_context) if self.size.width else 0

    @override
    def on_resize(self) -> None:
        self._change_by_user(self.update)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stop following the end when the user scrolls up; follow again at the end."""
        super().watch_scroll_y(old_value, new_value)
        follows = self._may_follow and new_value >= self.max_scroll_y
        if follows is not self._follows:
            self._follows = follows
            self.notify_moved()

    @override
    def render_line(self, y: int) -> Strip:
        if self._window != (round(self.scroll_y), self.size.height):
            self._update_window()
        if y >= len(self._window_lines):
            return self.strip(())
        placed = self._window_lines[y]
        is_found = y + round(self.scroll_y) == self._match_line
        return self.strip(placed.line, has_cursor=is_found or (self.has_focus and placed.node is self._chosen))

    # --- folding --------------------------------------------------------------------------------------------------

    def action_choose(self, step: int) -> None:
        """Choose the next or previous item that can fold."""
        nodes = self.items.foldable()
        if not nodes:
            return
        index = nodes.index(self._chosen) + step if self._chosen in nodes else (0 if step > 0 else len(nodes) - 1)
        self._chosen = nodes[max(0, min(index, len(nodes) - 1))]
        self._scroll_to_chosen()
        self.refresh()

    def action_fold_chosen(self) -> None:
        if self._chosen is not None:
            self.fold(self._chosen)

    def fold(self, node: TreeItem) -> None:
        """Fold or unfold an item in place."""
        self._follows = False
        self._change_by_user(node.fold)
        self.measure()
        self._update_scrollbar()
        self._refresh_all()

    def fold_all(self) -> None:
        """Unfold all items; if all are unfolded, fold them."""
        nodes = self.items.foldable()
        is_open = all(node.is_open for node in nodes)

        def fold() -> None:
            for node in nodes:
                if node.is_open is is_open:
                    node.fold()

        self._change_by_user(fold)
        self.update()

    def begin(self, items: TreeBranch) -> None:
        """Show other items from their beginning."""
        self.items, self._chosen, self._window = items, None, None
        self.update()
        self.scroll_to(y=0, animate=False, immediate=True, force=True)

    def action_to_end(self) -> None:
        """Scroll to the end, and follow it if the view may follow."""
        self._follows = self._may_follow
        self.update()
        self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)

    def on_focus(self) -> None:
        """Choose the last item that can fold, if none is chosen."""
        if self._chosen is None:
            self.action_choose(-1)

    def on_click(self, event: events.Click) -> None:
        if event.y < len(self._window_lines):
            node = self._window_lines[event.y].node
            if node.can_fold:
                self._chosen = node
                self.fold(node)

    def _scroll_to_chosen(self) -> None:
        if self._chosen is None:
            return
        top = self.items.top_of(self._chosen, self.render_context)
        if not self.scroll_y <= top < self.scroll_y + self.size.height:
            self._follows = False
            self.scroll_to(y=max(0, top - self.size.height // 3), animate=False)

    def notify_moved(self) -> None:
        """Handle that the view starts or stops following its end; does nothing in the base class."""

    # --- searching ------------------------------------------------------------------------------------------------

    def show_match(self, match: SearchMatch | None) -> None:
        """Show a match of a search and unfold the items around it; None shows no match."""
        self._shown_match = match
        if match is not None:
            self._follows = False
            self._change_by_user(lambda: _unfold(match))
            self.measure()
            line = self._line_of(match)
            if not self.scroll_y <= line < self.scroll_y + self.size.height:
                self.scroll_to(y=max(0, line - self.size.height // 3), animate=False, immediate=True, force=True)
            self._update_scrollbar()
        self._refresh_all()

    def first_match_in_view(self, matches: Sequence[SearchMatch]) -> int:
        """Return the index of the first match at or below the top of the window, or of the last match."""
        top = round(self.scroll_y)
        return next((index for index, match in enumerate(matches) if self._line_of(match) >= top), len(matches) - 1)

    def _line_of(self, match: SearchMatch) -> int:
        outermost, line = match.item, match.line
        parent = match.item.parent
        while parent is not None:
            if not parent.is_open:
                outermost, line = parent, 0
            parent = parent.parent
        return self.items.top_of(outermost, self.render_context) + line


def _unfold(match: SearchMatch) -> None:
    if match.is_hidden:
        match.item.fold()
    parent = match.item.parent
    while parent is not None:
        if not parent.is_open:
            parent.fold()
        parent = parent.parent


# The transcript of a Job. Typing there goes to the input.


class TranscriptView(NodesView):
    """A view of a transcript."""

    class Moved(Message):
        """The view has started or stopped following its end."""

    @dataclass
    class Typed(Message):
        """A typed character that belongs in the input."""

        text: str

    @override
    def notify_moved(self) -> None:
        self.post_message(self.Moved())

    def on_key(self, key: events.Key) -> None:
        """Pass typed characters to the input."""
        if key.is_printable and key.character is not None and key.key != "space":
            key.stop()
            self.post_message(self.Typed(key.character))
