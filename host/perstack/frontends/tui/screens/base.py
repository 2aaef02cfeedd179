"""What screens over that of the Jobs share: a title, a body, a line of keys; Esc goes back."""

from __future__ import annotations

from typing import ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from perstack.frontends.tui.view.spans import Span
from perstack.frontends.tui.widgets.bar import Bar
from perstack.host import Host


class Program(Protocol):
    """What a screen has of the program."""

    @property
    def host(self) -> Host:
        """Everything that can be done with Jobs."""
        ...

    def open_job(self, job_id: str) -> None:
        """Leave the screen, and show a Job in a tab of its own, or in the one that it has."""
        ...

    def branch(self, job_id: str, checkpoint_id: str, *, answers_again: bool = False) -> None:
        """The same; what is typed next there branches from the checkpoint: a new query, or another answer to the
        question that was open there."""
        ...


class OverScreen(Screen[None]):
    """A screen that is left by Esc. `over` is the program."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", show=False)]
    DEFAULT_CSS = """
    OverScreen { background: $background; }
    OverScreen #title { margin: 0 0 1 0; }
    OverScreen #keys { dock: bottom; }
    """
    TITLE_TEXT: ClassVar[str] = ""
    KEYS: ClassVar[str] = "Esc back"

    def __init__(self, over: Program) -> None:
        super().__init__()
        self.over = over

    def body(self) -> list[Widget]:
        """What is between the title and the line of keys."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        title, keys = Bar(id="title"), Bar(id="keys")
        title.set((Span(self.TITLE_TEXT, "strong"),))
        keys.set((Span(self.KEYS, "dim"),))
        yield title
        yield from self.body()
        yield keys

    def action_back(self) -> None:
        """To the Jobs."""
        self.dismiss()
