"""A rewind: what it would change is shown, a person agrees to just that, and it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding, BindingType

from perstack.core.plain import one_line
from perstack.engine.rewinding.rewinder import Rewind
from perstack.engine.who import this_user
from perstack.errors import PerstackError
from perstack.frontends.shared.command_lines import rewind
from perstack.frontends.shared.patch import stat_words
from perstack.frontends.shared.rewinding import nothing_to_rewind
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.screens.base import Program
from perstack.frontends.tui.screens.lines import LinesScreen
from perstack.frontends.tui.view.files import plan_lines, words_lines
from perstack.frontends.tui.view.spans import Line, Span

_LOOKING = "Esc back"
_ASKING = "y change these files   Up, Down, PgUp, PgDn scroll   Esc change nothing"
_DONE = "u undo it   Esc back"


class RewindScreen(LinesScreen):
    """`y` changes the files that are shown; then `u` shows what it takes to undo that."""

    KEYS = _LOOKING
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "agree", show=False),
        Binding("u", "undo", show=False),
    ]

    def __init__(
        self, over: Program, job_id: str, checkpoint_id: str, *, then: Callable[[], None] | None = None
    ) -> None:
        """`then` is done when the files are those of the checkpoint."""
        super().__init__(over)
        self._job_id = job_id
        self._checkpoint_id = checkpoint_id
        self._then = then
        self._plan: Rewind | None = None
        self._done: Rewind | None = None
        self._problem = ""
        self._is_at_work = True

    def on_mount(self) -> None:
        self._look()

    def action_agree(self) -> None:
        """Change the files, if a plan is shown."""
        plan = self._plan
        if plan is not None and plan.files and self._done is None and not self._is_at_work:
            self._is_at_work = True
            self.run_worker(self._rewind(plan), group="rewind")

    def action_undo(self) -> None:
        """Show what a rewind to the files of before would change."""
        if self._done is not None and self._done.undo is not None:
            self._checkpoint_id, self._then = self._done.undo, None
            self._plan = self._done = None
            self._look()

    def action_back(self) -> None:
        """Not while files are being changed: what comes of it is to be seen."""
        if not (self._is_at_work and self._plan is not None):
            super().action_back()

    def made(self, width: int) -> list[Line]:
        if self._problem:
            return words_lines(self._problem, width, "bad")
        done, plan = self._done, self._plan
        if done is not None:
            return [*words_lines(f"rewound, {stat_words(done.files)}", width, "good"), *self._undo(done, width)]
        if plan is None:
            return words_lines("…", width, "dim")
        if not plan.files:
            return [*words_lines(nothing_to_rewind(plan), width), (), *plan_lines(plan, width)]
        question = f"Change these files in {one_line(plan.workspace)}?  y changes them, Esc does not"
        return [*words_lines(question, width, "ask"), (), *plan_lines(plan, width)]

    def _undo(self, done: Rewind, width: int) -> list[Line]:
        if done.undo is None:
            return []
        command = rewind(done.job_id, done.undo, self.over.given)
        return [(), *words_lines("u undoes it, and so does:", width), *words_lines(command, width)]

    def _look(self) -> None:
        self._is_at_work, self._problem = True, ""
        self.title_line((Span("Rewind  ", "strong"), Span(f"the files to those of {one_line(self._checkpoint_id)}")))
        self._show(_LOOKING)
        self.run_worker(self._read(), exclusive=True, group="rewind")

    async def _read(self) -> None:
        try:
            self._plan = await self.over.host.jobs.plan_rewind(
                self._job_id, self._checkpoint_id, elsewhere=self.over.names_workspace
            )
        except PerstackError as error:
            self._problem = error.said(said)
        self._is_at_work = False
        if self._plan is not None and not self._plan.files and self._then is not None:
            self._then()
            return
        self._show(_ASKING if self._plan is not None and self._plan.files else _LOOKING)

    async def _rewind(self, plan: Rewind) -> None:
        try:
            self._done = await self.over.host.jobs.rewind(
                plan.job_id,
                plan.checkpoint_id,
                expected=plan.digest,
                elsewhere=self.over.names_workspace,
                by=this_user("start"),
            )
        except PerstackError as error:
            self._problem, self._plan = error.said(said), None
        self._is_at_work = False
        if self._done is not None:
            self.over.changed(self._done.job_id)
        if self._done is not None and self._then is not None:
            self.notify(f"rewound, {stat_words(self._done.files)}", markup=False)
            self._then()
            return
        self._show(_LOOKING if self._done is None else _DONE)

    def _show(self, keys: str) -> None:
        self.keys_line(keys)
        self.draw()
