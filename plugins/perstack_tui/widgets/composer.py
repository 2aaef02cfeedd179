"""The input: several lines, history, and completion of file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from perstack.core.base.text import plain_text
from perstack.dataclass import dataclass
from perstack_tui.view.input import FileCompletion, InputHistory, named_at

_MAX_PASTE_CHARS = (
    100_000  # maximum characters of a paste: showing these takes most of a second, during which all else is blocked
)


class Composer(TextArea):
    """The input area. Enter sends, Ctrl+J starts a new line."""

    DEFAULT_CSS = """
    Composer {
        height: auto;
        min-height: 3;
        max-height: 10;
        border: round $rule;
        background: $background;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        &:focus { border: round $primary; background: $background; }
        & .text-area--placeholder { color: $quiet; }
        & .text-area--cursor-line { background: $background; }
    }
    """

    @dataclass
    class Completing(Message):
        """The candidates for the file name being typed; empty if none is."""

        names: list[str]

    def __init__(
        self,
        typed: InputHistory,
        workspace: Path,
        *,
        enter: Callable[[str], None],
        choose: Callable[[int], None],
        id: str | None = None,
    ) -> None:
        """Pass sent text to `enter`, Up or Down to `choose`; called directly, as further keys are queued already."""
        super().__init__(id=id, highlight_cursor_line=False)
        self._enter = enter
        self._choose = choose
        self.cursor_blink = False
        self._typed = typed
        self._files = FileCompletion(workspace)
        self._names: list[str] = []
        self.chooses = False  # True if Up and Down move in a list next to the input

    def on_key(self, key: events.Key) -> None:
        """Handle some keys before the library does; it handles all others after this method."""
        if self._is_handled(key):
            key.stop()
            key.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Clean the pasted text, which the library inserts after this method."""
        if len(event.text) > _MAX_PASTE_CHARS:
            event.prevent_default()
            self.notify(
                f"{len(event.text):,} characters are too many to paste: put them in a file and name it with @",
                severity="warning",
                markup=False,
            )
            return
        # a terminal sends a line end like Enter
        event.text = plain_text(event.text.replace("\r\n", "\n").replace("\r", "\n"))

    def _is_handled(self, key: events.Key) -> bool:
        row, _ = self.cursor_location
        match key.key:
            case "enter":
                self._enter(self.text)
                return True
            case "ctrl+j" | "shift+enter" | "alt+enter":
                # not by a binding, which would run after the next typed keys
                self.insert("\n")
                return True
            case "up" | "down" if self.chooses:
                self._choose(-1 if key.key == "up" else 1)
                return True
            case "up" if row == 0:
                return self._recall(self._typed.previous(self.text))
            case "down" if row == self.document.line_count - 1:
                return self._recall(self._typed.next_text())
            case _:
                return False

    def clear_sent(self, *, keep: bool = True) -> None:
        """Clear the input after sending, and add it to the history if `keep`."""
        if keep:
            self._typed.add(self.text)
        self.text = ""

    def set_text(self, text: str) -> None:
        """Replace the text, with the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    def _recall(self, text: str | None) -> bool:
        if text is not None:
            self.set_text(text)
        return text is not None

    def on_text_area_changed(self) -> None:
        """Update the candidates for a file name."""
        row, column = self.cursor_location
        beginning = named_at(self.document.get_line(row)[:column])
        names: list[str] = []
        if beginning is None:
            self._files.forget()
        elif (candidates := self._files.complete(beginning)) != [beginning]:
            names = candidates
        if names != self._names:
            self._names = names
            self.post_message(self.Completing(names))

    def complete(self) -> bool:
        """Complete the first candidate, and return whether there was one."""
        if self._names:
            self._take(self._names[0])
        return bool(self._names)

    def _take(self, name: str) -> None:
        row, column = self.cursor_location
        beginning = named_at(self.document.get_line(row)[:column]) or ""
        end = "" if name.endswith("/") else " "
        self.replace(name + end, (row, column - len(beginning)), (row, column))
        self.move_cursor((row, column - len(beginning) + len(name + end)))
