"""The command lines that do what can be done here: Enter copies one."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.plain import one_line
from perstack.frontends.shared.command_lines import CommandLine
from perstack.frontends.shared.words import cells, shorten
from perstack.frontends.tui.screens.base import Program
from perstack.frontends.tui.screens.listing import ListScreen
from perstack.frontends.tui.view.spans import Line, Span


class CommandsScreen(ListScreen[CommandLine]):
    """A command, and what it does, in each row."""

    TITLE_TEXT = "Command lines"
    KEYS = "Up, Down choose   Enter copies   Esc back"

    def __init__(self, over: Program, commands: Sequence[CommandLine]) -> None:
        super().__init__(over)
        self._commands = commands

    async def read(self) -> Sequence[CommandLine]:
        return self._commands

    def line(self, one: CommandLine, is_chosen: bool, width: int) -> Line:
        text = shorten(one_line(one.text), width)
        left = width - cells(text) - 2
        return (
            Span(text, "strong" if is_chosen else ""),
            Span(f"  {shorten(one.what, left)}" if left > 8 else "", "dim"),
        )

    def open(self, one: CommandLine) -> None:
        """Copy it whole."""
        self.over.copy(one.text)
