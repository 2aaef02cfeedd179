"""Screens for changes of files and for a rewind. The user agrees to exactly the shown changes, and can undo them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from typing_extensions import override

from perstack.core.base.text import one_line
from perstack.doors.shared.file_changes import nothing_to_rewind, stat_words
from perstack.doors.shared.next_step_phrases import rewind, tui_phrase
from perstack.errors import PerstackError
from perstack.snapshots.job_files import FilesDiff
from perstack.snapshots.rewind import Rewind
from perstack.system.user import this_user
from perstack_tui.screens.base import LinesScreen, ScreenHost
from perstack_tui.view.history import files_lines, plan_lines, wrapped_lines
from perstack_tui.view.styled_text import Line, Span

# Changes of files: by a Job, a Run or a step, between two checkpoints, or since a checkpoint.


class FileComparison(NamedTuple):
    """Arguments of `host.files.diff`, with a title."""

    title: str
    comparison: str | None = None
    run_id: str | None = None


class FilesScreen(LinesScreen):
    """The screen of changed files; Tab shows the next comparison if there are several."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "view(1)", show=False, priority=True),
        Binding("shift+tab", "view(-1)", show=False, priority=True),
    ]

    def __init__(self, screen_host: ScreenHost, job_id: str, views: Sequence[FileComparison]) -> None:
        super().__init__(screen_host)
        self._job_id = job_id
        self._views = views
        self._view_index = 0
        self._results: dict[int, FilesDiff | str] = {}  # by index of the view: its result, or the error message

    @override
    def on_mount(self) -> None:
        if len(self._views) > 1:
            self.keys_line("Tab other comparison   Up, Down, PgUp, PgDn scroll   Esc back")
        self._show()

    def action_view(self, step: int) -> None:
        self._view_index = (self._view_index + step) % len(self._views)
        self._show()

    @override
    def make_lines(self, width: int) -> list[Line]:
        result = self._results.get(self._view_index)
        if result is None:
            return wrapped_lines("…", width, "dim")
        if isinstance(result, str):
            return wrapped_lines(result, width, "warn")
        return files_lines(result.files, width) or wrapped_lines(f"{result.of}: no file was changed", width, "dim")

    def _show(self) -> None:
        titles = (
            Span(f"{view.title}  ", "person" if index == self._view_index else "dim")
            for index, view in enumerate(self._views)
        )
        self.title_line((Span("Files  ", "strong"), *titles))
        self.draw()
        if self._view_index not in self._results:
            self.run_worker(self._read(self._view_index), exclusive=True, group="files")

    async def _read(self, index: int) -> None:
        view = self._views[index]
        try:
            self._results[index] = await self.screen_host.host.files.diff(
                self._job_id, view.comparison, run_id=view.run_id
            )
        except PerstackError as error:
            self._results[index] = error.text_for(tui_phrase)
        if index == self._view_index:
            self.draw()


_KEYS_IDLE = "Esc back"
_KEYS_PLAN = "y change these files   Up, Down, PgUp, PgDn scroll   Esc change nothing"
_KEYS_REWOUND = "u undo it   Esc back"


class RewindScreen(LinesScreen):
    """The rewind screen: `y` changes the shown files; then `u` shows the plan that undoes it."""

    KEYS = _KEYS_IDLE
    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "agree", show=False), Binding("u", "undo", show=False)]

    def __init__(
        self, screen_host: ScreenHost, job_id: str, checkpoint_id: str, *, on_restored: Callable[[], None] | None = None
    ) -> None:
        """Plan the rewind of a Job's files to a checkpoint; `on_restored` is called after it."""
        super().__init__(screen_host)
        self._job_id = job_id
        self._checkpoint_id = checkpoint_id
        self._on_restored = on_restored
        self._plan: Rewind | None = None
        self._rewound: Rewind | None = None
        self._problem = ""
        self._is_at_work = True

    @override
    def on_mount(self) -> None:
        self._plan_rewind()

    def action_agree(self) -> None:
        """Change the files, if a plan is shown."""
        plan = self._plan
        if plan is not None and plan.files and self._rewound is None and not self._is_at_work:
            self._is_at_work = True
            self.run_worker(self._rewind(plan), group="rewind")

    def action_undo(self) -> None:
        """Show the plan that restores the previous files."""
        if self._rewound is not None and self._rewound.undo is not None:
            self._checkpoint_id, self._on_restored = self._rewound.undo, None
            self._plan = self._rewound = None
            self._plan_rewind()

    def action_back(self) -> None:
        """Return to the previous screen, except while files are being changed: the outcome must be seen."""
        if not (self._is_at_work and self._plan is not None):
            super().action_back()

    @override
    def make_lines(self, width: int) -> list[Line]:
        if self._problem:
            return wrapped_lines(self._problem, width, "bad")
        rewound, plan = self._rewound, self._plan
        if rewound is not None:
            outcome = wrapped_lines(f"rewound, {stat_words(rewound.files)}", width, "good")
            return [*outcome, *self._undo_lines(rewound, width)]
        if plan is None:
            return wrapped_lines("…", width, "dim")
        if not plan.files:
            return [*wrapped_lines(nothing_to_rewind(plan), width), (), *plan_lines(plan, width)]
        question = f"Change these files in {one_line(plan.workspace)}?  y changes them, Esc does not"
        return [*wrapped_lines(question, width, "ask"), (), *plan_lines(plan, width)]

    def _undo_lines(self, rewound: Rewind, width: int) -> list[Line]:
        if rewound.undo is None:
            return []
        command = rewind(rewound.job_id, rewound.undo, self.screen_host.location_options)
        return [(), *wrapped_lines("u undoes it, and so does:", width), *wrapped_lines(command, width)]

    def _plan_rewind(self) -> None:
        self._is_at_work, self._problem = True, ""
        self.title_line((Span("Rewind  ", "strong"), Span(f"the files to those of {one_line(self._checkpoint_id)}")))
        self._show(_KEYS_IDLE)
        self.run_worker(self._read_plan(), exclusive=True, group="rewind")

    async def _read_plan(self) -> None:
        try:
            self._plan = await self.screen_host.host.files.plan_rewind(
                self._job_id, self._checkpoint_id, elsewhere=self.screen_host.names_workspace
            )
        except PerstackError as error:
            self._problem = error.text_for(tui_phrase)
        self._is_at_work = False
        if self._plan is not None and not self._plan.files and self._on_restored is not None:
            self._on_restored()
            return
        self._show(_KEYS_PLAN if self._plan is not None and self._plan.files else _KEYS_IDLE)

    async def _rewind(self, plan: Rewind) -> None:
        try:
            self._rewound = await self.screen_host.host.files.rewind(
                plan.job_id,
                plan.checkpoint_id,
                expected=plan.digest,
                elsewhere=self.screen_host.names_workspace,
                by=this_user("start"),
            )
        except PerstackError as error:
            self._problem, self._plan = error.text_for(tui_phrase), None
        self._is_at_work = False
        if self._rewound is not None:
            self.screen_host.reload_job(self._rewound.job_id)
        if self._rewound is not None and self._on_restored is not None:
            self.notify(f"rewound, {stat_words(self._rewound.files)}", markup=False)
            self._on_restored()
            return
        self._show(_KEYS_IDLE if self._rewound is None else _KEYS_REWOUND)

    def _show(self, keys: str) -> None:
        self.keys_line(keys)
        self.draw()
