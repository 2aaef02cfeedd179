"""What a Job consists of: its tree of Runs, its checkpoints, its events; or those of one Run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias, assert_never

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widget import Widget

from perstack.core.run_tree import PlacedRun
from perstack.engine.read import RunLog
from perstack.errors import PerstackError
from perstack.frontends.shared.log_entries import Entry, Place, expert_of, in_order, is_delegate, places_of
from perstack.frontends.shared.run_tree import branches
from perstack.frontends.tui.actions import bindings_of
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import Program
from perstack.frontends.tui.screens.checkpoint import CheckpointScreen
from perstack.frontends.tui.screens.listing import ListScreen
from perstack.frontends.tui.screens.of_job import OfJob
from perstack.frontends.tui.screens.texts import TextsScreen
from perstack.frontends.tui.view.files import words_lines
from perstack.frontends.tui.view.history import event_line, event_texts, place_line, run_line
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.widgets.lines import LinesView

One: TypeAlias = PlacedRun | Place | Entry
_RUNS, _PLACES, _EVENTS = _VIEWS = ("Runs", "Checkpoints", "Events")
_EMPTY = {_RUNS: "This Job has no Run yet.", _PLACES: "There is no checkpoint yet.", _EVENTS: "There is no event yet."}


class JobScreen(OfJob, ListScreen[One]):
    """Tab goes from the Runs to the checkpoints and the events; Enter opens what is chosen."""

    DEFAULT_CSS = """
    JobScreen #damage { display: none; dock: bottom; margin: 1 0; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "view(1)", show=False, priority=True),
        Binding("shift+tab", "view(-1)", show=False, priority=True),
        *bindings_of(OfJob.ACTIONS),
    ]

    def __init__(self, over: Program, job_id: str, run_id: str | None = None) -> None:
        """With a Run only what is of that."""
        super().__init__(over)
        self._job_id = job_id
        self._run_id = run_id
        self._views = _VIEWS if run_id is None else _VIEWS[1:]
        self._view = _PLACES
        self._logs: Sequence[RunLog] = ()
        self._tree: Sequence[PlacedRun] = ()
        self._damage = LinesView(id="damage")
        """Why there is no more of it than what is listed."""
        self._drawn: dict[str, str] = {}
        """What stands before each Run in the tree."""
        self._chosen: dict[str, int] = {}
        """What was chosen in each view that was left."""
        self._stays_at: str | None = None
        """The checkpoint that stays chosen when all is read again."""
        self._number = ""
        """The digits that were typed last."""

    def body(self) -> list[Widget]:
        return [self._list, self._damage]

    def on_resize(self) -> None:
        self._show_damage()

    def _show_damage(self) -> None:
        damaged = [log.damage for log in self._logs if log.damage is not None]
        lines = words_lines(damaged[0].said(said), max(20, self.size.width - 4), "bad") if damaged else []
        self._damage.display = bool(lines)
        self._damage.styles.height = min(len(lines), self.size.height // 2)
        self._damage.show(lines)

    # --- what is listed -------------------------------------------------------------------------------------------

    async def read(self) -> Sequence[One]:
        host = self.over.host
        self._logs = await host.logs(self._job_id, run_id=self._run_id)
        self._show_damage()
        if self._run_id is None:  # of a Job that is at work it takes long
            self.run_worker(self._read_tree(), exclusive=True, group="tree")
        return self._rows()

    async def _read_tree(self) -> None:
        try:
            self._tree = await self.over.host.jobs.tree(self._job_id)
        except PerstackError as error:
            self.notify(error.said(said), severity="error", markup=False)
            return
        self._drawn = {one.run.id: before for one, before in zip(self._tree, branches(self._tree), strict=True)}
        if self._view == _RUNS:
            self.rows = self._rows()
            self.list_again(self._list.chosen)

    def _rows(self) -> Sequence[One]:
        if self._view == _RUNS:
            return self._tree
        if self._view == _EVENTS:
            return in_order(self._logs)
        return places_of(self._logs)

    def first_chosen(self) -> int:
        """The latest is looked at first, but the Runs from the one that began."""
        stays_at, self._stays_at = self._stays_at, None
        for at, one in enumerate(self.rows if stays_at is not None else ()):
            if isinstance(one, Place) and one.id == stays_at:
                return at
        return self._chosen.get(self._view, 0 if self._view == _RUNS else -1)

    def read_again(self, job_id: str) -> None:
        """The checkpoint that is chosen stays so."""
        if job_id == self._job_id:
            self._chosen[self._view] = self._list.chosen
            self._stays_at = None if self.place is None else self.place.id
            self.reload()

    def line(self, one: One, is_chosen: bool, width: int) -> Line:
        match one:
            case PlacedRun():
                return run_line(one, self._drawn.get(one.run.id, ""), is_chosen, width)
            case Place():
                return place_line(one, is_chosen, width, is_marked=one.id == self.marked)
            case Entry():
                return event_line(one, is_chosen, width)
            case _:
                assert_never(one)

    def show_head(self) -> None:
        views = (Span(f"  {one}", "person" if one == self._view else "dim") for one in self._views)
        self.title_line((Span(self._run_id or self._job_id, "strong"), *views))
        self.keys_line(self.keys_that_fit("Tab other view", "Enter opens"))

    @property
    def empty(self) -> str:
        """What is said where there is nothing."""
        return _EMPTY[self._view]

    # --- what a person does ---------------------------------------------------------------------------------------

    def open(self, one: One) -> None:
        """A Run's own checkpoints and events; the messages of a checkpoint; all that an event says."""
        match one:
            case PlacedRun():
                self.over.show(JobScreen(self.over, self._job_id, one.run.id))
            case Place():
                self.over.show(CheckpointScreen(self.over, self._job_id, one, marked=self.marked))
            case Entry():
                self.over.show(TextsScreen(self.over, f"{one.type} of {one.log.run_id}", event_texts(one)))
            case _:
                assert_never(one)

    def action_view(self, step: int) -> None:
        """The next of Runs, checkpoints and events, or the one before."""
        self._chosen[self._view] = self._list.chosen
        self._view = self._views[(self._views.index(self._view) + step) % len(self._views)]
        self.rows = self._rows()
        self.list_again(self.first_chosen())

    def on_key(self, event: Key) -> None:
        """Digits go to the first row of the step of that number."""
        if event.character is None or not (event.character.isascii() and event.character.isdecimal()):
            self._number = ""
            return
        event.stop()
        self._number = (self._number + event.character)[-9:]
        at = next((at for at, one in enumerate(self.rows) if _step_of(one) >= int(self._number)), None)
        if at is not None and self._view != _RUNS:
            self._list.choose_at(at)

    # --- what actions are about -----------------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        return self._job_id

    @property
    def expert(self) -> str:
        log = next((log for log in self._logs if not is_delegate(log)), None)
        return "" if log is None else expert_of(log)

    @property
    def run_id(self) -> str | None:
        one = self.chosen
        return one.run.id if isinstance(one, PlacedRun) else self._run_id

    @property
    def place(self) -> Place | None:
        one = self.chosen
        return one if isinstance(one, Place) else None

    def marked_another(self) -> None:
        self.list_again(self._list.chosen)


def _step_of(one: One) -> int:
    match one:
        case Place():
            return one.entry.step
        case Entry():
            return one.step
        case PlacedRun():
            return 0
        case _:
            assert_never(one)
