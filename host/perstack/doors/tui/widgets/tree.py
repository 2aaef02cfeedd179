"""Items that fold, drawn: only what is seen costs anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Generic, Protocol, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget

from perstack.frontends.tui.view.nodes import Looks, Node, Placed
from perstack.frontends.tui.widgets.lines import LinesView


class Items(Protocol):
    """What is drawn: a tree of items, of which any part can be had as lines."""

    def height(self, looks: Looks) -> int:
        """How many lines there are."""
        ...

    def lines(self, first: int, last: int, looks: Looks) -> list[Placed]:
        """Those from `first` up to, not including, `last`."""
        ...

    def foldable(self) -> list[Node]:
        """What may be folded, in the order of the lines."""
        ...

    def top_of(self, node: Node, looks: Looks) -> int:
        """The line at which an item begins."""
        ...


_Items = TypeVar("_Items", bound=Items)


class NodesView(LinesView, Generic[_Items]):
    """Items, with a cursor on what may be folded while it has the focus. Its height is not that of what is in it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "choose(-1)", show=False),
        Binding("down", "choose(1)", show=False),
        Binding("enter,space", "fold_chosen", show=False),
        Binding("ctrl+end,end", "to_end", show=False),
    ]

    def __init__(self, items: _Items, now: Callable[[], int], *, follows: bool = True, id: str | None = None) -> None:
        """`follows`: it stays at the end while more comes, as long as it is there."""
        super().__init__(id=id)
        self._may_follow = follows
        self.items = items
        self._now = now
        self._chosen: Node | None = None
        self._follows = follows
        """Whether it stays at the end now."""
        self._placed: list[Placed] = []
        """The lines in the window, as they were drawn last or are to be drawn next."""
        self._placed_at: tuple[int, int] | None = None
        """The first of them, and how many there is room for; None: they are to be had again."""

    @property
    def _as(self) -> Looks:
        return Looks(max(10, self.size.width - 1), self._now())

    def update(self) -> None:
        """Show what has come."""
        self._follows = self._may_follow and (self._follows or self.scroll_offset.y >= self.max_scroll_y)
        if self.size.width:
            self.measure()
            if self._follows:  # `force`: there may be no scrollbar yet
                self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)
            self._show_place()
        self._refresh_changed()

    def measure(self) -> None:
        """Take the height of all lines for what is scrolled in. The screen is laid out again only where the scrollbar
        comes or goes: while a text streams there are more lines several times a second."""
        size = Size(self.size.width, self.whole_height())
        scrolled: object = Widget.virtual_size
        has_bar = size.height > self.container_size.height
        if has_bar is self.show_vertical_scrollbar and isinstance(scrolled, Reactive):
            self.set_reactive(scrolled, size)
            if self.scroll_y > self.max_scroll_y:
                self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)
        else:
            self.virtual_size = size

    def _refresh_changed(self) -> None:
        """Draw those lines of the window again that are other ones now."""
        at, before = self._placed_at, self._placed
        self._place()
        if at is None or at != self._placed_at:
            self.refresh()
            return
        was, now = [one.line for one in before], [one.line for one in self._placed]
        rows = [y for y in range(max(len(was), len(now))) if was[y : y + 1] != now[y : y + 1]]
        if rows:
            self.refresh(Region(0, rows[0], self.size.width, rows[-1] + 1 - rows[0]))

    def _place(self) -> None:
        top, height = at = round(self.scroll_y), self.size.height
        self._placed, self._placed_at = self.items.lines(top, top + height, self._as), at

    def _refresh_all(self) -> None:
        self._placed_at = None
        self.refresh()

    def replace(self, items: _Items) -> None:
        """These from now on: more of the same, whose end they share."""
        from_end = self.virtual_size.height - self.scroll_y
        self.items, self._chosen, self._placed_at = items, None, None
        follows = self._follows
        self.update()
        if not follows:
            self.scroll_to(y=max(0.0, self.virtual_size.height - from_end), animate=False, immediate=True, force=True)

    def prepare(self, items: _Items) -> None:
        """Measure what is going to be shown as far as it has come, so that it is shown in a moment then."""
        if self.size.width:
            items.height(self._as)

    def _show_place(self) -> None:
        """The scrollbar is set by a layout, which more lines do not always cause."""
        if self.show_vertical_scrollbar:
            bar = self.vertical_scrollbar
            bar.window_virtual_size, bar.window_size = self.virtual_size.height, self.size.height
            bar.position = self.scroll_y

    def watch_show_vertical_scrollbar(self) -> None:
        """One that has just come stands at its beginning, wherever this is scrolled to."""
        self._show_place()

    def whole_height(self) -> int:
        return self.items.height(self._as) if self.size.width else 0

    def on_resize(self) -> None:
        """Lines are broken anew."""
        self.update()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """A person who scrolls up stays there; who comes to the end follows it again."""
        super().watch_scroll_y(old_value, new_value)
        self._follows = self._may_follow and new_value >= self.max_scroll_y

    def render_line(self, y: int) -> Strip:
        if self._placed_at != (round(self.scroll_y), self.size.height):
            self._place()
        if y >= len(self._placed):
            return self.strip(())
        placed = self._placed[y]
        return self.strip(placed.line, has_cursor=self.has_focus and placed.node is self._chosen)

    # --- folding --------------------------------------------------------------------------------------------------

    def action_choose(self, step: int) -> None:
        """The next thing that may be folded, or the one before."""
        nodes = self.items.foldable()
        if not nodes:
            return
        at = nodes.index(self._chosen) + step if self._chosen in nodes else (0 if step > 0 else len(nodes) - 1)
        self._chosen = nodes[max(0, min(at, len(nodes) - 1))]
        self._into_view()
        self.refresh()

    def action_fold_chosen(self) -> None:
        """Show more of it, or less."""
        if self._chosen is not None:
            self.fold(self._chosen)

    def fold(self, node: Node) -> None:
        """Show more of this, or less, where it is."""
        node.fold()
        self._follows = False
        self.measure()
        self._show_place()
        self._refresh_all()

    def fold_all(self) -> None:
        """Show more of everything; if all is shown, less."""
        nodes = self.items.foldable()
        is_open = all(node.is_open for node in nodes)
        for node in nodes:
            if node.is_open is is_open:
                node.fold()
        self.update()

    def begin(self, items: _Items) -> None:
        """These from now on, from their beginning."""
        self.items, self._chosen, self._placed_at = items, None, None
        self.update()
        self.scroll_to(y=0, animate=False, immediate=True, force=True)

    def action_to_end(self) -> None:
        """To the end, and stay there if more may come."""
        self._follows = self._may_follow
        self.update()
        self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True, force=True)

    def on_focus(self) -> None:
        """Choose what was worked on last."""
        if self._chosen is None:
            self.action_choose(-1)

    def on_click(self, event: events.Click) -> None:
        """What is clicked on is folded."""
        if event.y < len(self._placed):
            node = self._placed[event.y].node
            if node.can_fold:
                self._chosen = node
                self.fold(node)

    def _into_view(self) -> None:
        if self._chosen is None:
            return
        top = self.items.top_of(self._chosen, self._as)
        if not self.scroll_y <= top < self.scroll_y + self.size.height:
            self._follows = False
            self.scroll_to(y=max(0, top - self.size.height // 3), animate=False)
