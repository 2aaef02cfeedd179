"""What screens over that of the Jobs share: a title, a body, a line of keys; Esc goes back."""

from __future__ import annotations

from typing import ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget

from perstack.core.runs.asking import OpenQuestion
from perstack.frontends.tui.actions import Action
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.widgets.bar import Bar
from perstack.host import Host


class Program(Protocol):
    """What a screen has of the program."""

    @property
    def host(self) -> Host:
        """Everything that can be done with Jobs."""
        ...

    @property
    def given(self) -> str:
        """The options of the command line that say the place, to be added to each command that is copied."""
        ...

    @property
    def names_workspace(self) -> bool:
        """Whether a person named the workspace: then a Job that worked in another folder may be rewound in it."""
        ...

    def show(self, screen: OverScreen) -> None:
        """Show this screen over the one that is shown."""
        ...

    def copy(self, text: str) -> None:
        """Put it on the clipboard, and say so: not every terminal lets a program do that."""
        ...

    def open_job(self, job_id: str) -> None:
        """Leave the screen, and show a Job in a tab of its own, or in the one that it has."""
        ...

    def branch(self, job_id: str, checkpoint_id: str, *, again: OpenQuestion | None = None) -> None:
        """The same; what is typed next there branches from the checkpoint: a new query, or another answer to the
        question that was open there, `again`."""
        ...

    def changed(self, job_id: str) -> None:
        """Something was recorded in a Job that nobody drives: whoever shows it reads it again."""
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
    ACTIONS: ClassVar[tuple[Action, ...]] = ()
    """What the palette has beside the program's own while this is shown."""

    def __init__(self, over: Program) -> None:
        super().__init__()
        self.over = over
        self._title, self._keys = Bar(id="title"), Bar(id="keys")

    def body(self) -> list[Widget]:
        """What is between the title and the line of keys."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        self.title_line((Span(self.TITLE_TEXT, "strong"),))
        self.keys_line(self.KEYS)
        yield self._title
        yield from self.body()
        yield self._keys

    def title_line(self, line: Line) -> None:
        """The line above, from now on."""
        self._title.set(line)

    def keys_line(self, keys: str) -> None:
        """The line below, from now on."""
        self._keys.set((Span(keys, "dim"),))

    def read_again(self, job_id: str) -> None:
        """Something was recorded in a Job: what is shown of it is read again, if anything is."""

    def action_back(self) -> None:
        """To the Jobs."""
        self.dismiss()
