"""Base classes of the screens: a title, a body, a key line; lists to choose from, and pages of texts that fold."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import OptionList
from typing_extensions import override

from perstack.core.base.text import one_line
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.next_step_phrases import tui_phrase
from perstack.errors import PerstackError
from perstack.host import Host
from perstack_tui.actions import Action
from perstack_tui.view.styled_text import Line, Span
from perstack_tui.view.tree import TreeBranch, texts_page
from perstack_tui.widgets.lines import Bar, ChoiceList, LinesView
from perstack_tui.widgets.tree import NodesView

# Screens above the screen of the Jobs; Esc returns.


class ScreenHost(Protocol):
    """The part of the application that screens use."""

    host: Host
    location_options: str  # the project's location options, appended to each copied command
    names_workspace: bool  # True if the user named the workspace: then a Job of another folder may be rewound in it

    def show(self, screen: OverlayScreen) -> None:
        """Show a screen above the current one."""
        ...

    def copy(self, text: str) -> None:
        """Copy to the clipboard and show the text: not every terminal allows programs to copy."""
        ...

    def open_job(self, job_id: str) -> None:
        """Leave the screen and show a Job in its tab, or in a new one."""
        ...

    def branch(self, job_id: str, checkpoint_id: str, *, question: OpenQuestion | None = None) -> None:
        """Show a Job whose next text branches from the checkpoint: a new query, or another answer to `question`."""
        ...

    def reload_job(self, job_id: str) -> None:
        """Read a Job again wherever it is shown: an event was recorded that no driving process reports."""
        ...


class OverlayScreen(Screen[None]):
    """A screen that Esc closes. `screen_host` is the application."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", show=False)]
    DEFAULT_CSS = """
    OverlayScreen { background: $background; }
    OverlayScreen #title { margin: 0 0 1 0; }
    OverlayScreen #keys { dock: bottom; }
    """
    TITLE_TEXT: ClassVar[str] = ""
    KEYS: ClassVar[str] = "Esc back"
    ACTIONS: ClassVar[tuple[Action, ...]] = ()  # actions of this screen in the palette, in addition to the program's

    def __init__(self, screen_host: ScreenHost) -> None:
        super().__init__()
        self.screen_host = screen_host
        self._title, self._keys = Bar(id="title"), Bar(id="keys")

    def body(self) -> list[Widget]:
        """Return the widgets between the title and the key line."""
        raise NotImplementedError

    @override
    def compose(self) -> ComposeResult:
        self.title_line((Span(self.TITLE_TEXT, "strong"),))
        self.keys_line(self.KEYS)
        yield self._title
        yield from self.body()
        yield self._keys

    def title_line(self, line: Line) -> None:
        """Set the line above the body."""
        self._title.set(line)

    def keys_line(self, keys: str) -> None:
        """Set the line below the body."""
        self._keys.set((Span(keys, "dim"),))

    def read_again(self, job_id: str) -> None:
        """Read a Job again if this screen shows it; does nothing in the base class."""

    def action_back(self) -> None:
        self.dismiss()


# A screen of scrolling lines, made again when the width changes.


class LinesScreen(OverlayScreen):
    """A screen that the arrow and page keys scroll."""

    KEYS = "Up, Down, PgUp, PgDn scroll   Esc back"

    def __init__(self, screen_host: ScreenHost) -> None:
        super().__init__(screen_host)
        self.lines_view = LinesView(id="lines")

    @abstractmethod
    def make_lines(self, width: int) -> list[Line]:
        """Return the lines for that width."""

    @override
    def body(self) -> list[Widget]:
        return [self.lines_view]

    def on_mount(self) -> None:
        self.lines_view.focus()

    def on_resize(self) -> None:
        self.draw()

    def draw(self) -> None:
        """Make the lines again and show them from the first."""
        self.lines_view.show(self.make_lines(max(20, self.size.width - 2)))
        self.lines_view.scroll_to(y=0, animate=False, immediate=True, force=True)


_T = TypeVar("_T")


class ListScreen(OverlayScreen, Generic[_T]):
    """A screen with a list of rows: Up and Down choose, Enter opens."""

    EMPTY: ClassVar[str] = "There is nothing."

    def __init__(self, screen_host: ScreenHost) -> None:
        super().__init__(screen_host)
        self.rows: Sequence[_T] = ()
        self._has_read = False
        self._problem = ""
        self._list = ChoiceList(id="list")

    @abstractmethod
    async def read(self) -> Sequence[_T]:
        """Read and return the rows. Raises PerstackError."""

    @abstractmethod
    def line(self, row: _T, /, is_chosen: bool, width: int) -> Line:
        """Return a row as a line."""

    @abstractmethod
    def open(self, row: _T, /) -> None:
        """Open a row."""

    @property
    def visible_rows(self) -> Sequence[_T]:
        return self.rows

    @property
    def empty_text(self) -> str:
        return self.EMPTY

    @property
    def chosen_row(self) -> _T | None:
        return self.visible_rows[self.chosen_index] if self.visible_rows else None

    @property
    def chosen_index(self) -> int:
        """The index of the chosen row; 0 if none is listed."""
        return self._list.highlighted or 0

    @override
    def body(self) -> list[Widget]:
        return [self._list]

    def on_mount(self) -> None:
        """Start reading. Textual calls this for each class of the hierarchy, so subclasses must not call it."""
        self.initial_focus().focus()
        self.show_rows()
        self.reload()

    def initial_focus(self) -> Widget:
        """Return the widget that has the focus at first."""
        return self._list

    def reload(self) -> None:
        self.run_worker(self.read_rows(), exclusive=True, group="rows")

    def show_rows(self, chosen: int = 0) -> None:
        """Show the current rows, and choose one by its index."""
        rows = self.visible_rows

        def row(index: int, is_chosen: bool, width: int) -> Line:
            mark = Span("❯ " if is_chosen else "  ", "person")
            return (mark, *self.line(rows[index], is_chosen, width - 2))

        empty = "…" if not self._has_read else self._problem or self.empty_text
        self._list.offer(len(rows), row, chosen=chosen, empty_text=empty)
        self.update_head()

    def update_head(self) -> None:
        """Update the title and the key line; does nothing in the base class."""

    @on(OptionList.OptionHighlighted)
    def _on_highlighted(self, message: OptionList.OptionHighlighted) -> None:
        message.stop()
        self.update_head()

    def initial_index(self) -> int:
        """Return the index of the row to choose after reading."""
        return 0

    async def read_rows(self) -> None:
        """Read the rows and show them; an error is notified once."""
        last_problem, self._problem = self._problem, ""
        try:
            self.rows = await self.read()
        except PerstackError as error:
            self._problem = error.text_for(tui_phrase)
            if self._problem != last_problem:
                self.notify(self._problem, severity="error", markup=False)
        self._has_read = True
        self.show_rows(self.initial_index())

    @on(OptionList.OptionSelected)
    def _on_selected(self, message: OptionList.OptionSelected) -> None:
        message.stop()
        if self.chosen_row is not None:
            self.open(self.chosen_row)


# Titled texts that fold.


class PageScreen(OverlayScreen):
    """A page of items. Up and Down choose, Enter folds, Ctrl+O folds all."""

    KEYS = "Up, Down choose   Enter unfolds   ^O all   PgUp, PgDn   Esc back"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+o", "fold_all", show=False)]

    def __init__(self, screen_host: ScreenHost) -> None:
        super().__init__(screen_host)
        self.page = NodesView(TreeBranch(), screen_host.host.clock.now, follows=False, id="page")

    @override
    def body(self) -> list[Widget]:
        return [self.page]

    def on_mount(self) -> None:
        self.page.focus()

    def action_fold_all(self) -> None:
        """Unfold all items; if all are unfolded, fold them."""
        self.page.fold_all()


class TextsScreen(PageScreen):
    """A page of titled texts."""

    def __init__(self, screen_host: ScreenHost, title: str, texts: Sequence[tuple[str, str]]) -> None:
        """Show pairs of title and text."""
        super().__init__(screen_host)
        self._page_title = title
        self._texts = texts

    @override
    def on_mount(self) -> None:
        self.title_line((Span(one_line(self._page_title), "strong"),))
        self.page.begin(texts_page(self._texts))
