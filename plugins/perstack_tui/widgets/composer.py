"""The input: several lines, history, and completion of file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from perstack.core.base.text import plain_text
from perstack.dataclass import dataclass
from perstack_tui.view.input import FileCompletion, InputHistory, partial_file_name

# maximum characters of a paste: showing these takes most of a second, during which all else is blocked
_MAX_PASTE_CHARS = 100_000


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
        """Completions of the file name that is being typed; empty without any."""

        names: list[str]

    def __init__(
        self,
        input_history: InputHistory,
        workspace: Path,
        *,
        enter: Callable[[str], None],
        choose: Callable[[int], None],
        id: str | None = None,
    ) -> None:
        """Call `enter` with sent text, `choose` for Up or Down: messages would wait behind queued keys."""
        super().__init__(id=id, highlight_cursor_line=False)
        self._enter = enter
        self._choose = choose
        self.cursor_blink = False
        self._input_history = input_history
        self._files = FileCompletion(workspace)
        self._candidates: list[str] = []
        self.chooses_in_list = False  # True if Up and Down choose in a list outside the input

    def on_key(self, key: events.Key) -> None:
        """Handle the keys of this class; the library handles all others after this method."""
        if self._handle_key(key):
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
        # a pasted line end may arrive as a carriage return
        event.text = plain_text(event.text.replace("\r\n", "\n").replace("\r", "\n"))

    def _handle_key(self, key: events.Key) -> bool:
        """Perform a key's action, and return whether it has one."""
        row, _ = self.cursor_location
        match key.key:
            case "enter":
                self._enter(self.text)
                return True
            case "ctrl+j" | "shift+enter" | "alt+enter":
                # not a binding: its action would run only after the keys that are queued already
                self.insert("\n")
                return True
            case "up" | "down" if self.chooses_in_list:
                self._choose(-1 if key.key == "up" else 1)
                return True
            case "up" if row == 0:
                return self._recall(self._input_history.previous(self.text))
            case "down" if row == self.document.line_count - 1:
                return self._recall(self._input_history.next_text())
            case _:
                return False

    def clear_sent(self, *, keep: bool = True) -> None:
        """Clear the input after sending, and add it to the history if `keep`."""
        if keep:
            self._input_history.add(self.text)
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
        """Update the completions of a file name."""
        row, column = self.cursor_location
        beginning = partial_file_name(self.document.get_line(row)[:column])
        names: list[str] = []
        if beginning is None:
            self._files.forget()
        elif (candidates := self._files.complete(beginning)) != [beginning]:
            names = candidates
        if names != self._candidates:
            self._candidates = names
            self.post_message(self.Completing(names))

    def complete(self) -> bool:
        """Insert the first completion, and return whether there was one."""
        if self._candidates:
            self._insert_name(self._candidates[0])
        return bool(self._candidates)

    def _insert_name(self, name: str) -> None:
        row, column = self.cursor_location
        beginning = partial_file_name(self.document.get_line(row)[:column]) or ""
        end = "" if name.endswith("/") else " "
        self.replace(name + end, (row, column - len(beginning)), (row, column))
        self.move_cursor((row, column - len(beginning) + len(name + end)))
