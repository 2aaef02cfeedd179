"""The line that searches a transcript (Ctrl+F); it is imported when it is first used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input
from typing_extensions import override

from perstack_tui.view.search import Matches, SearchMatch, matches_in_item, search
from perstack_tui.view.styled_text import Line, Span
from perstack_tui.widgets.lines import Bar
from perstack_tui.widgets.tree import NodesView

_MAX_QUERY_CHARS = 200  # maximum characters of the searched text
_KEYS = "Enter next   Up before   Esc closes"


class FindBar(Horizontal):
    """The search line: the searched text, the number of the shown match, and the keys."""

    DEFAULT_CSS = """
    FindBar { height: 1; }
    FindBar #find-label { width: 8; }
    FindBar Input { width: 1fr; height: 1; border: none; padding: 0; background: $background; }
    FindBar Input:focus { border: none; background-tint: $foreground 0%; }
    FindBar #found { width: 60; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", show=False),
        Binding("down", "go(1)", show=False),
        Binding("up", "go(-1)", show=False),
    ]

    def __init__(self, view: NodesView, on_closed: Callable[[], None]) -> None:
        """Search what `view` shows; `on_closed` is called after Esc."""
        super().__init__()
        self._view = view
        self._on_closed = on_closed
        self._label = Bar(id="find-label")
        self._input = Input(max_length=_MAX_QUERY_CHARS, select_on_focus=False, id="find")
        self._input.cursor_blink = False
        self._position_bar = Bar(id="found")
        self._matches = Matches()
        self._shown_match: SearchMatch | None = None

    @override
    def compose(self) -> ComposeResult:
        yield self._label
        yield self._input
        yield self._position_bar

    def on_mount(self) -> None:
        self._label.set((Span("find: ", "person"),))
        self._show_number()
        self._input.focus()

    def reopen(self) -> None:
        """Take the focus again, and show the next match."""
        self._input.focus()
        self.action_go(1)

    @on(Input.Changed)
    def _on_changed(self) -> None:
        self.run_worker(self._search(0), exclusive=True, group="find")

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        self.action_go(1)

    def action_go(self, step: int) -> None:
        """Show the next or previous match; new items are searched too."""
        self.run_worker(self._search(step), exclusive=True, group="find")

    def action_close(self) -> None:
        """Close the line; the transcript stays where it is."""
        self._view.show_match(None)
        self._on_closed()
        self.remove()

    async def _search(self, step: int) -> None:
        for matches in search(self._view.items, self._input.value, self._view.render_context):
            if matches is None:
                await asyncio.sleep(0)
            else:
                self._matches = matches
        found_matches = self._matches.places
        if not found_matches:
            self._shown_match = None
        elif self._shown_match in found_matches:
            self._shown_match = found_matches[(found_matches.index(self._shown_match) + step) % len(found_matches)]
        else:
            self._shown_match = found_matches[self._view.first_match_in_view(found_matches)]
        self._show()

    def _show(self) -> None:
        match = self._shown_match
        self._view.show_match(match)
        if match is not None and match.is_hidden:  # `show_match` has unfolded the item, so its lines can be found now
            item_matches = matches_in_item(match.item, self._input.value, self._view.render_context)
            index = self._matches.places.index(match)
            self._shown_match = item_matches[0] if item_matches else match
            earlier, later = self._matches.places[:index], self._matches.places[index + 1 :]
            self._matches = self._matches._replace(places=[*earlier, *(item_matches or [match]), *later])
            self._view.show_match(self._shown_match)
        self._show_number()

    def _show_number(self) -> None:
        matches, is_cut = self._matches
        position = ""
        if self._input.value.strip():
            number = matches.index(self._shown_match) + 1 if self._shown_match in matches else 0
            prefix = "the last " if is_cut else ""
            position = f"{number:,} of {prefix}{len(matches):,}" if matches else "not found"
        line: Line = (Span(f"{position:<22}", "" if matches or not position else "warn"), Span(_KEYS, "dim"))
        self._position_bar.set(line)
