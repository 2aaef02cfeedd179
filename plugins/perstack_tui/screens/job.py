"""Screens of a Job or one of its Runs: the tree of Runs, the checkpoints and the events."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias, assert_never

from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widget import Widget
from typing_extensions import override

from perstack.core.base.text import one_line
from perstack.core.jobs.checkpoints import Checkpoint
from perstack.core.jobs.summary import JobSummary, PlacedRun
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared import log_view
from perstack.doors.shared.checkpoint_view import new_messages
from perstack.doors.shared.next_step_phrases import CommandLine, of_checkpoint, of_job, of_run, tui_phrase
from perstack.doors.shared.status_phrases import next_step_of_job
from perstack.doors.shared.text import cells, shorten
from perstack.engine.log.run_log import RunLog
from perstack.errors import PerstackError
from perstack_tui.actions import HISTORY_ACTIONS, Action, bindings_of
from perstack_tui.screens.base import ListScreen, OverlayScreen, PageScreen, ScreenHost, TextsScreen
from perstack_tui.screens.export import ExportScreen
from perstack_tui.screens.files import FileComparison, FilesScreen, RewindScreen
from perstack_tui.view.history import checkpoint_title, event_line, event_texts, run_line, step_line, wrapped_lines
from perstack_tui.view.items import NoteItem
from perstack_tui.view.styled_text import Line, Span
from perstack_tui.view.tree import LabelledText, TreeBranch, checkpoint_page, new_messages_page
from perstack_tui.widgets.lines import LinesView

# Command lines for these actions; Enter copies one.


class CommandsScreen(ListScreen[CommandLine]):
    """A list of commands and their effects."""

    TITLE_TEXT = "Command lines"
    KEYS = "Up, Down choose   Enter copies   Esc back"

    def __init__(self, screen_host: ScreenHost, commands: Sequence[CommandLine]) -> None:
        super().__init__(screen_host)
        self._commands = commands

    @override
    async def read(self) -> Sequence[CommandLine]:
        return self._commands

    @override
    def line(self, row: CommandLine, is_chosen: bool, width: int) -> Line:
        text = shorten(one_line(row.text), width)
        free_cells = width - cells(text) - 2
        return (
            Span(text, "strong" if is_chosen else ""),
            Span(f"  {shorten(row.what, free_cells)}" if free_cells > 8 else "", "dim"),
        )

    @override
    def open(self, row: CommandLine) -> None:
        self.screen_host.copy(row.text)


# Actions on a Job, one of its Runs, or a checkpoint.


class _CheckpointActions(OverlayScreen):
    """Base class with the actions by key. An action without a target shows what must be chosen first."""

    ACTIONS: ClassVar[tuple[Action, ...]] = HISTORY_ACTIONS
    marked_id: str | None = None  # id of the checkpoint that files are compared with

    @property
    @abstractmethod
    def job_id(self) -> str: ...

    @property
    @abstractmethod
    def run_id(self) -> str | None:
        """The chosen Run, or the Run that this screen is limited to; None for the whole Job."""

    @property
    @abstractmethod
    def expert(self) -> str:
        """The Expert that continues the Job; empty if unknown."""

    @property
    @abstractmethod
    def step(self) -> log_view.StepCheckpoints | None:
        """The chosen step's checkpoints."""

    @property
    def checkpoint_ref(self) -> log_view.CheckpointRef | None:
        """The chosen checkpoint: the latest of a step."""
        return None if self.step is None else self.step.latest

    @abstractmethod
    def on_mark_changed(self) -> None: ...

    def keys_that_fit(self, *first: str) -> str:
        """Return the key line: `first` and the keys of the actions, dropping the last ones until it fits."""
        branches = () if self.step is None or self.step.is_of_delegate else ("b branches",)
        keys = [*first, "o opens", *branches, "d files", "r rewinds", "k commands", "x exports", "F1 every key"]
        end = "Esc back"
        while len("   ".join((*keys, end))) > self.size.width - 2 and len(keys) > 1:
            keys.pop(-2)
        return "   ".join((*keys, end))

    # --- continuing -----------------------------------------------------------------------------------------------

    def action_open_job(self) -> None:
        self.screen_host.open_job(self.job_id)

    def action_branch(self) -> None:
        checkpoint_ref = self._branch_start()
        if checkpoint_ref is not None:
            self.screen_host.branch(self.job_id, checkpoint_ref.id)

    def action_answer_again(self) -> None:
        if self._checkpoint_or_notice() is None or self.step is None:
            return
        question_point = self.step.asked
        if question_point is None:
            self.notify('Nothing was asked at this checkpoint: choose one marked "asks".', markup=False)
        elif (question := self._own_question(question_point)) is None:
            self.notify(
                "A delegate asked this: only a question of the Coordinator can be answered again.", markup=False
            )
        else:
            self.screen_host.branch(self.job_id, question_point.id, question=question)

    def _own_question(self, checkpoint_ref: log_view.CheckpointRef) -> OpenQuestion | None:
        return None if log_view.is_delegate(checkpoint_ref.entry.log) else log_view.open_question_at(checkpoint_ref)

    def _branch_start(self) -> log_view.CheckpointRef | None:
        """Return the checkpoint to branch from; without one notify the user of the reason and return None."""
        if self.step is not None and self.step.is_of_delegate:
            self.notify(
                "A branch cannot start at a delegate's checkpoint: choose one of the Coordinator's.", markup=False
            )
            return None
        return self._checkpoint_or_notice()

    # --- files ----------------------------------------------------------------------------------------------------

    def action_branch_with_files(self) -> None:
        checkpoint_ref = self._branch_start()
        if checkpoint_ref is not None:
            job_id, start = self.job_id, checkpoint_ref.id
            self.screen_host.show(
                RewindScreen(
                    self.screen_host, job_id, start, on_restored=lambda: self.screen_host.branch(job_id, start)
                )
            )

    def action_rewind(self) -> None:
        checkpoint_ref = self._checkpoint_or_notice()
        if checkpoint_ref is not None:
            self.screen_host.show(RewindScreen(self.screen_host, self.job_id, checkpoint_ref.id))

    def action_mark(self) -> None:
        checkpoint_ref = self._checkpoint_or_notice()
        if checkpoint_ref is not None:
            self.marked_id = None if self.marked_id == checkpoint_ref.id else checkpoint_ref.id
            self.on_mark_changed()

    def action_files(self) -> None:
        self.screen_host.show(FilesScreen(self.screen_host, self.job_id, self._comparisons()))

    def _comparisons(self) -> list[FileComparison]:
        checkpoint_ref, run_id = self.checkpoint_ref, self.run_id
        if checkpoint_ref is None:
            of_run = [] if run_id is None else [FileComparison(f"of {run_id}", run_id=run_id)]
            return [*of_run, FileComparison(f"of {self.job_id}")]
        marked_id = self.marked_id
        from_mark = (
            []
            if marked_id in (None, checkpoint_ref.id)
            else [FileComparison("since the mark", f"{marked_id}..{checkpoint_ref.id}")]
        )
        step, now = (
            FileComparison(f"of step {checkpoint_ref.entry.step}", checkpoint_ref.id),
            FileComparison("from there until now", f"{checkpoint_ref.id}.."),
        )
        return [*from_mark, step, now]

    # --- copying --------------------------------------------------------------------------------------------------

    def action_copy(self) -> None:
        self.screen_host.copy(self.run_id or self.job_id if self.checkpoint_ref is None else self.checkpoint_ref.id)

    async def action_commands(self) -> None:
        try:
            summary = await self.screen_host.host.job(self.job_id)
        except PerstackError:
            summary = None  # the commands then offer no next step
        self.screen_host.show(CommandsScreen(self.screen_host, self._commands(summary)))

    def action_export(self) -> None:
        self.screen_host.show(
            ExportScreen(self.screen_host, self.job_id, None if self.checkpoint_ref is None else self.checkpoint_ref.id)
        )

    def _commands(self, summary: JobSummary | None) -> list[CommandLine]:
        step, location_options, of_step = self.step, self.screen_host.location_options, list[CommandLine]()
        if step is not None:
            latest, asked = step.latest, step.asked
            of_step = of_checkpoint(
                self.job_id,
                latest.id,
                latest.expert,
                location_options,
                begins_branch=not step.is_of_delegate and summary is not None and summary.closed is None,
                asked=None if asked is None or self._own_question(asked) is None else asked.id,
                marked=self.marked_id,
            )
        return [
            *of_step,
            *([] if self.run_id is None else of_run(self.run_id, location_options)),
            *of_job(
                self.job_id, self.expert, location_options, step=None if summary is None else next_step_of_job(summary)
            ),
        ]

    def _checkpoint_or_notice(self) -> log_view.CheckpointRef | None:
        if self.checkpoint_ref is None:
            self.notify("Choose a checkpoint first: Tab shows them.", severity="warning", markup=False)
        return self.checkpoint_ref


# A checkpoint: the messages as the model sees them there, or the new ones.

_ALL, _NEW = _CHECKPOINT_VIEWS = ("Messages", "New since the previous step")


class CheckpointScreen(_CheckpointActions, PageScreen):
    """The checkpoint screen; Tab switches between all and new messages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,shift+tab", "view", show=False, priority=True),
        Binding("left", "place(-1)", show=False, priority=True),
        Binding("right", "place(1)", show=False, priority=True),
        *bindings_of(_CheckpointActions.ACTIONS),
    ]

    def __init__(
        self, screen_host: ScreenHost, job_id: str, step: log_view.StepCheckpoints, *, marked: str | None = None
    ) -> None:
        """Show the latest checkpoint of a Job's step; files are compared with `marked`."""
        super().__init__(screen_host)
        self._job_id = job_id
        self._step = step
        self._checkpoint_ref = step.latest
        self.marked_id = marked
        self._view = _ALL
        self._pages: dict[str, TreeBranch] = {}
        self._checkpoint: Checkpoint | None = None

    @override
    def on_mount(self) -> None:
        self._show()

    def action_view(self) -> None:
        self._view = _NEW if self._view == _ALL else _ALL
        self._show()

    def action_place(self, by: int) -> None:
        places = self._step.places
        index = max(0, min(places.index(self._checkpoint_ref) + by, len(places) - 1))
        if places[index] != self._checkpoint_ref:
            self._checkpoint_ref, self._pages, self._checkpoint = places[index], {}, None
            self._show()

    def _show(self) -> None:
        self.on_mark_changed()
        if self._view in self._pages:
            self.page.begin(self._pages[self._view])
        else:
            self.page.begin(TreeBranch([LabelledText("", "…")]))
            self.run_worker(self._read(self._view), exclusive=True, group="page")

    async def _read(self, view: str) -> None:
        host = self.screen_host.host
        try:
            checkpoint = self._checkpoint
            if checkpoint is None:
                checkpoint = self._checkpoint = await host.jobs.checkpoint(self._checkpoint_ref.id, job_id=self._job_id)
            page = (
                checkpoint_page(checkpoint)
                if view == _ALL
                else new_messages_page(checkpoint, await new_messages(host, checkpoint))
            )
        except PerstackError as error:
            page = TreeBranch([NoteItem("error", error.text_for(tui_phrase), "bad")])
        self._pages[view] = page
        if view == self._view:
            self.page.begin(page)

    # --- targets of the actions -----------------------------------------------------------------------------------

    @property
    @override
    def job_id(self) -> str:
        return self._job_id

    @property
    @override
    def expert(self) -> str:
        return self._checkpoint_ref.expert

    @property
    @override
    def run_id(self) -> str | None:
        return self._checkpoint_ref.run_id

    @property
    @override
    def step(self) -> log_view.StepCheckpoints | None:
        return log_view.StepCheckpoints((self._checkpoint_ref,))

    @override
    def on_mark_changed(self) -> None:
        mark = "● " if self.marked_id == self._checkpoint_ref.id else ""
        views = (Span(f"  {view}", "person" if view == self._view else "dim") for view in _CHECKPOINT_VIEWS)
        self.title_line((Span(mark, "person"), Span(checkpoint_title(self._checkpoint_ref), "strong"), *views))
        step_keys = ("Left, Right others of the step",) if len(self._step.places) > 1 else ()
        self.keys_line(self.keys_that_fit("Tab other view", *step_keys, "Enter unfolds"))


JobRow: TypeAlias = PlacedRun | log_view.StepCheckpoints | log_view.LogEntry
_RUNS, _STEPS, _EVENTS = _VIEWS = ("Runs", "Checkpoints", "Events")
_EMPTY = {_RUNS: "This Job has no Run yet.", _STEPS: "There is no checkpoint yet.", _EVENTS: "There is no event yet."}


class JobScreen(_CheckpointActions, ListScreen[JobRow]):
    """The Job screen: Tab switches between Runs, checkpoints and events; Enter opens the chosen row."""

    DEFAULT_CSS = """
    JobScreen #damage { display: none; dock: bottom; margin: 1 0; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "view(1)", show=False, priority=True),
        Binding("shift+tab", "view(-1)", show=False, priority=True),
        *bindings_of(_CheckpointActions.ACTIONS),
    ]

    def __init__(self, screen_host: ScreenHost, job_id: str, run_id: str | None = None) -> None:
        super().__init__(screen_host)
        self._job_id = job_id
        self._run_id = run_id
        self._views = _VIEWS if run_id is None else _VIEWS[1:]
        self._view = _STEPS
        self._logs: Sequence[RunLog] = ()
        self._tree: Sequence[PlacedRun] = ()
        self._damage = LinesView(id="damage")  # the damage that ends the list
        self._prefixes: dict[str, str] = {}  # the line prefix of each Run in the tree
        self._chosen_indices: dict[str, int] = {}  # the chosen index in each view
        self._kept_checkpoint_id: str | None = None  # id of the checkpoint to choose again after reading
        self._typed_number = ""

    @override
    def body(self) -> list[Widget]:
        return [self._list, self._damage]

    def on_resize(self) -> None:
        """Wrap the text of the damage for the new width."""
        self._show_damage()

    def _show_damage(self) -> None:
        damages = [log.damage for log in self._logs if log.damage is not None]
        lines = wrapped_lines(damages[0].text_for(tui_phrase), max(20, self.size.width - 4), "bad") if damages else []
        self._damage.display = bool(lines)
        self._damage.styles.height = min(len(lines), self.size.height // 2)
        self._damage.show(lines)

    # --- rows -----------------------------------------------------------------------------------------------------

    @override
    async def read(self) -> Sequence[JobRow]:
        host = self.screen_host.host
        self._logs = await host.jobs.logs(self._job_id, run_id=self._run_id)
        self._show_damage()
        if self._run_id is None:  # in the background: reading the tree of a running Job takes long
            self.run_worker(self._read_tree(), exclusive=True, group="tree")
        return self._rows()

    async def _read_tree(self) -> None:
        try:
            self._tree = await self.screen_host.host.jobs.tree(self._job_id)
        except PerstackError as error:
            self.notify(error.text_for(tui_phrase), severity="error", markup=False)
            return
        self._prefixes = {
            placed.run.id: prefix for placed, prefix in zip(self._tree, log_view.branches(self._tree), strict=True)
        }
        if self._view == _RUNS:
            self.rows = self._rows()
            self.show_rows(self.chosen_index)

    def _rows(self) -> Sequence[JobRow]:
        if self._view == _RUNS:
            return self._tree
        if self._view == _EVENTS:
            return log_view.in_order(self._logs)
        return log_view.steps_of(self._logs)

    @override
    def initial_index(self) -> int:
        kept_checkpoint_id, self._kept_checkpoint_id = self._kept_checkpoint_id, None
        for index, row in enumerate(self.rows if kept_checkpoint_id is not None else ()):
            if isinstance(row, log_view.StepCheckpoints) and row.latest.id == kept_checkpoint_id:
                return index
        return self._chosen_indices.get(self._view, 0 if self._view == _RUNS else self._latest_coordinator_index())

    def _latest_coordinator_index(self) -> int:
        """Return the index of the Coordinator's latest checkpoint; in other views, of the last row."""
        return next(
            (
                index
                for index in range(len(self.rows) - 1, -1, -1)
                if isinstance(row := self.rows[index], log_view.StepCheckpoints) and not row.is_of_delegate
            ),
            len(self.rows) - 1,
        )

    @override
    def read_again(self, job_id: str) -> None:
        if job_id == self._job_id:
            self._chosen_indices[self._view] = self.chosen_index
            self._kept_checkpoint_id = None if self.checkpoint_ref is None else self.checkpoint_ref.id
            self.reload()

    @override
    def line(self, row: JobRow, is_chosen: bool, width: int) -> Line:
        match row:
            case PlacedRun():
                return run_line(row, self._prefixes.get(row.run.id, ""), is_chosen, width)
            case log_view.StepCheckpoints():
                return step_line(row, is_chosen, width, is_marked=row.latest.id == self.marked_id)
            case log_view.LogEntry():
                return event_line(row, is_chosen, width)
            case _:
                assert_never(row)

    @override
    def update_head(self) -> None:
        views = (Span(f"  {view}", "person" if view == self._view else "dim") for view in self._views)
        self.title_line((Span(self._run_id or self._job_id, "strong"), *views))
        self.keys_line(self.keys_that_fit("Tab other view", "Enter opens"))

    @property
    @override
    def empty_text(self) -> str:
        return _EMPTY[self._view]

    # --- user actions ---------------------------------------------------------------------------------------------

    @override
    def open(self, row: JobRow) -> None:
        match row:
            case PlacedRun():
                self.screen_host.show(JobScreen(self.screen_host, self._job_id, row.run.id))
            case log_view.StepCheckpoints():
                self.screen_host.show(CheckpointScreen(self.screen_host, self._job_id, row, marked=self.marked_id))
            case log_view.LogEntry():
                self.screen_host.show(
                    TextsScreen(self.screen_host, f"{row.type} of {row.log.run_id}", event_texts(row))
                )
            case _:
                assert_never(row)

    def action_view(self, step: int) -> None:
        """Show the next or previous of Runs, checkpoints and events."""
        self._chosen_indices[self._view] = self.chosen_index
        self._view = self._views[(self._views.index(self._view) + step) % len(self._views)]
        self.rows = self._rows()
        self.show_rows(self.initial_index())

    def on_key(self, key: Key) -> None:
        """Go to the first row of the step with the typed number."""
        if key.character is None or not (key.character.isascii() and key.character.isdecimal()):
            self._typed_number = ""
            return
        key.stop()
        self._typed_number = (self._typed_number + key.character)[-9:]
        index = next((index for index, row in enumerate(self.rows) if _step_of(row) >= int(self._typed_number)), None)
        if index is not None and self._view != _RUNS:
            self._list.highlighted = index

    # --- targets of the actions -----------------------------------------------------------------------------------

    @property
    @override
    def job_id(self) -> str:
        return self._job_id

    @property
    def expert(self) -> str:
        """The Coordinator's Expert; empty before the logs are read."""
        log = next((log for log in self._logs if not log_view.is_delegate(log)), None)
        return "" if log is None else log_view.expert_of(log)

    @property
    @override
    def run_id(self) -> str | None:
        row = self.chosen_row
        return row.run.id if isinstance(row, PlacedRun) else self._run_id

    @property
    @override
    def step(self) -> log_view.StepCheckpoints | None:
        row = self.chosen_row
        return row if isinstance(row, log_view.StepCheckpoints) else None

    @override
    def on_mark_changed(self) -> None:
        self.show_rows(self.chosen_index)


def _step_of(row: JobRow) -> int:
    match row:
        case log_view.StepCheckpoints():
            return row.latest.entry.step
        case log_view.LogEntry():
            return row.step
        case PlacedRun():
            return 0
        case _:
            assert_never(row)
