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
from perstack_tui.view.history import files_lines, plan_lines, words_lines
from perstack_tui.view.styled_text import Line, Span

# Changes of files: by a Job, a Run or a step, between two checkpoints, or since a checkpoint.


class FileComparison(NamedTuple):
    """A comparison, in the form that `host.files.diff` takes."""

    title: str
    what: str | None = None
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
        self._at = 0
        self._found: dict[int, FilesDiff | str] = {}  # the result of each view, or the error message

    @override
    def on_mount(self) -> None:
        if len(self._views) > 1:
            self.keys_line("Tab other comparison   Up, Down, PgUp, PgDn scroll   Esc back")
        self._show()

    def action_view(self, step: int) -> None:
        """Show the next or previous comparison."""
        self._at = (self._at + step) % len(self._views)
        self._show()

    @override
    def make_lines(self, width: int) -> list[Line]:
        result = self._found.get(self._at)
        if result is None:
            return words_lines("…", width, "dim")
        if isinstance(result, str):
            return words_lines(result, width, "warn")
        return files_lines(result.files, width) or words_lines(f"{result.of}: no file was changed", width, "dim")

    def _show(self) -> None:
        titles = (Span(f"{view.title}  ", "person" if i == self._at else "dim") for i, view in enumerate(self._views))
        self.title_line((Span("Files  ", "strong"), *titles))
        self.draw()
        if self._at not in self._found:
            self.run_worker(self._read(self._at), exclusive=True, group="files")

    async def _read(self, index: int) -> None:
        view = self._views[index]
        try:
            self._found[index] = await self.over.host.files.diff(self._job_id, view.what, run_id=view.run_id)
        except PerstackError as error:
            self._found[index] = error.text_for(tui_phrase)
        if index == self._at:
            self.draw()


_LOOKING = "Esc back"
_ASKING = "y change these files   Up, Down, PgUp, PgDn scroll   Esc change nothing"
_DONE = "u undo it   Esc back"


class RewindScreen(LinesScreen):
    """The rewind screen: `y` changes the shown files; afterwards `u` shows the undoing plan."""

    KEYS = _LOOKING
    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "agree", show=False), Binding("u", "undo", show=False)]

    def __init__(
        self, screen_host: ScreenHost, job_id: str, checkpoint_id: str, *, then: Callable[[], None] | None = None
    ) -> None:
        """`then` is called when the files have been restored."""
        super().__init__(screen_host)
        self._job_id = job_id
        self._checkpoint_id = checkpoint_id
        self._then = then
        self._plan: Rewind | None = None
        self._done: Rewind | None = None
        self._problem = ""
        self._is_at_work = True

    @override
    def on_mount(self) -> None:
        self._look()

    def action_agree(self) -> None:
        """Change the files, if a plan is shown."""
        plan = self._plan
        if plan is not None and plan.files and self._done is None and not self._is_at_work:
            self._is_at_work = True
            self.run_worker(self._rewind(plan), group="rewind")

    def action_undo(self) -> None:
        """Show the plan that restores the previous files."""
        if self._done is not None and self._done.undo is not None:
            self._checkpoint_id, self._then = self._done.undo, None
            self._plan = self._done = None
            self._look()

    def action_back(self) -> None:
        """Return to the previous screen, except while files are being changed: the outcome must be seen."""
        if not (self._is_at_work and self._plan is not None):
            super().action_back()

    @override
    def make_lines(self, width: int) -> list[Line]:
        if self._problem:
            return words_lines(self._problem, width, "bad")
        rewound, plan = self._done, self._plan
        if rewound is not None:
            return [*words_lines(f"rewound, {stat_words(rewound.files)}", width, "good"), *self._undo(rewound, width)]
        if plan is None:
            return words_lines("…", width, "dim")
        if not plan.files:
            return [*words_lines(nothing_to_rewind(plan), width), (), *plan_lines(plan, width)]
        question = f"Change these files in {one_line(plan.workspace)}?  y changes them, Esc does not"
        return [*words_lines(question, width, "ask"), (), *plan_lines(plan, width)]

    def _undo(self, rewound: Rewind, width: int) -> list[Line]:
        if rewound.undo is None:
            return []
        command = rewind(rewound.job_id, rewound.undo, self.over.location_options)
        return [(), *words_lines("u undoes it, and so does:", width), *words_lines(command, width)]

    def _look(self) -> None:
        self._is_at_work, self._problem = True, ""
        self.title_line((Span("Rewind  ", "strong"), Span(f"the files to those of {one_line(self._checkpoint_id)}")))
        self._show(_LOOKING)
        self.run_worker(self._read(), exclusive=True, group="rewind")

    async def _read(self) -> None:
        try:
            self._plan = await self.over.host.files.plan_rewind(
                self._job_id, self._checkpoint_id, elsewhere=self.over.names_workspace
            )
        except PerstackError as error:
            self._problem = error.text_for(tui_phrase)
        self._is_at_work = False
        if self._plan is not None and not self._plan.files and self._then is not None:
            self._then()
            return
        self._show(_ASKING if self._plan is not None and self._plan.files else _LOOKING)

    async def _rewind(self, plan: Rewind) -> None:
        try:
            self._done = await self.over.host.files.rewind(
                plan.job_id,
                plan.checkpoint_id,
                expected=plan.digest,
                elsewhere=self.over.names_workspace,
                by=this_user("start"),
            )
        except PerstackError as error:
            self._problem, self._plan = error.text_for(tui_phrase), None
        self._is_at_work = False
        if self._done is not None:
            self.over.reload_job(self._done.job_id)
        if self._done is not None and self._then is not None:
            self.notify(f"rewound, {stat_words(self._done.files)}", markup=False)
            self._then()
            return
        self._show(_LOOKING if self._done is None else _DONE)

    def _show(self, keys: str) -> None:
        self.keys_line(keys)
        self.draw()
