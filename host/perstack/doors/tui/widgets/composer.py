"""Where a person types: several lines, what was typed before, and names of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from perstack.core.plain import plain_text
from perstack.frontends.tui.view.typed import Files, Typed, named_at

_LONGEST_PASTE = 100_000
"""Characters: it takes most of a second to show so many, in which nothing else is done."""


class Composer(TextArea):
    """Enter sends, Ctrl+J makes a new line."""

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

    class Completing(Message):
        """What may be meant by what was typed; nothing: no file is being named."""

        def __init__(self, names: list[str]) -> None:
            super().__init__()
            self.names = names

    def __init__(
        self,
        typed: Typed,
        workspace: Path,
        *,
        enter: Callable[[str], None],
        choose: Callable[[int], None],
        id: str | None = None,
    ) -> None:
        """`enter` takes what was typed, and `choose` Up or Down where there is a list to choose from: at once, as the
        keys that follow may be here already. A message would come after them."""
        super().__init__(id=id, highlight_cursor_line=False)
        self._enter = enter
        self._choose = choose
        self.cursor_blink = False
        self._typed = typed
        self._files = Files(workspace)
        self._names: list[str] = []
        self.chooses = False
        """Whether Up and Down are for a list beside it."""

    async def _on_key(self, event: events.Key) -> None:
        if self._is_handled(event):
            event.stop()
            event.prevent_default()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        # what the library does at a paste comes after this, with the text that is left here
        if len(event.text) > _LONGEST_PASTE:
            event.prevent_default()
            self.notify(
                f"{len(event.text):,} characters are too many to paste: name a file with @",
                severity="warning",
                markup=False,
            )
            return
        # a terminal sends a line's end as it sends Enter
        event.text = plain_text(event.text.replace("\r\n", "\n").replace("\r", "\n"))

    def _is_handled(self, event: events.Key) -> bool:
        row, _ = self.cursor_location
        match event.key:
            case "enter":
                self._enter(self.text)
                return True
            case "ctrl+j" | "shift+enter" | "alt+enter":
                # here and not by a binding, which would come after what is typed next
                self.insert("\n")
                return True
            case "up" | "down" if self.chooses:
                self._choose(-1 if event.key == "up" else 1)
                return True
            case "up" if row == 0:
                return self._recall(self._typed.back(self.text))
            case "down" if row == self.document.line_count - 1:
                return self._recall(self._typed.forth())
            case _:
                return False

    def sent(self, *, keep: bool = True) -> None:
        """What was typed is taken."""
        if keep:
            self._typed.keep(self.text)
        self.text = ""

    def _recall(self, text: str | None) -> bool:
        if text is not None:
            self.text = text
            self.move_cursor(self.document.end)
        return text is not None

    def on_text_area_changed(self) -> None:
        """A file may be being named."""
        row, column = self.cursor_location
        beginning = named_at(self.document.get_line(row)[:column])
        names: list[str] = []
        if beginning is None:
            self._files.forget()
        elif (found := self._files.meant(beginning)) != [beginning]:
            names = found
        if names != self._names:
            self._names = names
            self.post_message(self.Completing(names))

    def complete(self) -> bool:
        """Take the first name of a file that may be meant; whether there was one."""
        if self._names:
            self._take(self._names[0])
        return bool(self._names)

    def _take(self, name: str) -> None:
        row, column = self.cursor_location
        beginning = named_at(self.document.get_line(row)[:column]) or ""
        end = "" if name.endswith("/") else " "
        self.replace(name + end, (row, column - len(beginning)), (row, column))
        self.move_cursor((row, column - len(beginning) + len(name + end)))
