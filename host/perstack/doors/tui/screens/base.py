"""What screens that list something share: rows that are read, one of which is chosen and opened."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from textual import on
from textual.widget import Widget

from perstack.errors import PerstackError
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import OverScreen, Program
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.widgets.choice import Choice

_T = TypeVar("_T")


class ListScreen(OverScreen, Generic[_T]):
    """Up and Down choose a row, Enter opens it."""

    EMPTY: ClassVar[str] = "There is nothing."

    def __init__(self, over: Program) -> None:
        super().__init__(over)
        self.rows: Sequence[_T] = ()
        self._has_read = False
        self._problem = ""
        self._list = Choice(id="list")

    @abstractmethod
    async def read(self) -> Sequence[_T]:
        """The rows. Raises PerstackError."""

    @abstractmethod
    def line(self, one: _T, is_chosen: bool, width: int) -> Line:
        """A row as it is shown."""

    @abstractmethod
    def open(self, one: _T) -> None:
        """Enter was pressed on it."""

    @property
    def shown(self) -> Sequence[_T]:
        """Those of the rows that are listed."""
        return self.rows

    @property
    def empty(self) -> str:
        """What is said where there is nothing."""
        return self.EMPTY

    @property
    def chosen(self) -> _T | None:
        """The row that is chosen, if there is any."""
        return self.shown[self._list.chosen] if self.shown else None

    def body(self) -> list[Widget]:
        return [self._list]

    def on_mount(self) -> None:
        """Textual calls this of each class: those that are made of this one do not."""
        self.focused_first().focus()
        self.list_again()
        self.reload()

    def focused_first(self) -> Widget:
        """What has the keys."""
        return self._list

    def reload(self) -> None:
        """Read what is listed, and show it."""
        self.run_worker(self.read_rows(), exclusive=True, group="rows")

    def list_again(self, chosen: int = 0) -> None:
        """Show the rows as they are now, with that one chosen."""
        those = self.shown

        def row(at: int, is_chosen: bool, width: int) -> Line:
            mark = Span("❯ " if is_chosen else "  ", "person")
            return (mark, *self.line(those[at], is_chosen, width - 2))

        empty = "…" if not self._has_read else self._problem or self.empty
        self._list.offer(len(those), row, chosen=chosen, empty=empty)
        self.show_head()

    def show_head(self) -> None:
        """The title and the keys are other ones, if they depend on what is listed."""

    def first_chosen(self) -> int:
        """Which row is chosen when all has been read."""
        return 0

    async def read_rows(self) -> None:
        """Take in what is listed, and show it; what cannot be read is said once."""
        before, self._problem = self._problem, ""
        try:
            self.rows = await self.read()
        except PerstackError as error:
            self._problem = error.said(said)
            if self._problem != before:
                self.notify(self._problem, severity="error", markup=False)
        self._has_read = True
        self.list_again(self.first_chosen())

    @on(Choice.Opened)
    def _opened(self, message: Choice.Opened) -> None:
        message.stop()
        if self.chosen is not None:
            self.open(self.chosen)
