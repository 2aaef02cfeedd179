"""The program: its screen of tabs, and every action."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.driver import Driver

from perstack.core.plain import one_line
from perstack.core.runs.asking import OpenQuestion
from perstack.engine.live import LiveProject
from perstack.errors import PerstackError
from perstack.frontends.shared.stopping import INTERRUPTED
from perstack.frontends.tui.actions import ACTIONS
from perstack.frontends.tui.definition import changes_of, nothing_held
from perstack.frontends.tui.keyboard import Keyboard
from perstack.frontends.tui.next_steps import said
from perstack.frontends.tui.palette import Actions
from perstack.frontends.tui.screens import screen_of
from perstack.frontends.tui.screens.base import OverScreen
from perstack.frontends.tui.session import Session
from perstack.frontends.tui.theme import DARK, DEFAULTS, LIGHT
from perstack.frontends.tui.view.problem import problem_lines
from perstack.frontends.tui.view.spans import Line, Span
from perstack.frontends.tui.view.tabs import EACH, FIRST, Tab, tabs_line
from perstack.frontends.tui.view.typed import Typed
from perstack.frontends.tui.widgets.bar import Bar
from perstack.frontends.tui.widgets.lines import LinesView
from perstack.frontends.tui.widgets.pane import JobPane
from perstack.host import Host

FRAME = 1 / 12
"""Seconds between two drawings, at least: a model's words come faster than they are read."""

_KEYS = ("Enter send", "^J new line", "Esc interrupt", "F1 help", "F2 History", "F3 Inbox", "^P all", "^Q quit")
_DROPPED = ("^J new line", "Enter send", "^P all")
"""In this order, where there is no room for all."""

_OF_JOBS = ("scroll", "to_end", "fold")
"""Actions on the Job that is shown: where a screen is over it they are that screen's."""


class StartApp(App[int]):
    """`perstack start`."""

    CSS = """
    Screen { background: $background; color: $foreground; }
    #panes { width: 100%; height: 1fr; }
    #problem { display: none; max-height: 8; margin: 0 1; padding: 0 0 0 1; border-left: thick $warning; }
    """
    ENABLE_COMMAND_PALETTE = True
    COMMANDS = {Actions}  # noqa: RUF012 - as Textual has it
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(one.key, one.name, one.title, show=False, priority=one.key != "escape")
            for one in ACTIONS
            if one.key
        ),
        Binding("pageup", "scroll(-1)", show=False, priority=True),
        Binding("pagedown", "scroll(1)", show=False, priority=True),
        Binding("ctrl+end", "to_end", show=False, priority=True),
        Binding("ctrl+c", "copy_or_say", show=False, priority=True),
        *(Binding(f"alt+{number}", f"tab({number})", show=False, priority=True) for number in range(1, 10)),
    ]

    def __init__(
        self,
        host: Host,
        live: LiveProject | None = None,
        *,
        expert: str | None = None,
        query: str | None = None,
        job_id: str | None = None,
        typed: Sequence[str] = (),
        given: str = "",
        names_workspace: bool = False,
        drives: bool = False,
    ) -> None:
        """Begins with the Expert, or the Job, if one is named; at once with the query, if there is one. `given`
        are the options that say the place, as in a shell, and `names_workspace` whether the workspace is among them.
        `drives`: what is answered is driven here, not left to workers."""
        super().__init__()
        self.host = host
        self.live = live
        self.given = given
        self.names_workspace = names_workspace
        self._drives = drives
        self.leaves_at_once = False
        """Whether what is at work is not waited for."""
        self._begin_with = (expert, query, job_id)
        self._typed = tuple(typed)
        self._panes: list[JobPane] = []
        self._shown = 0
        self._width = 80
        self._made = 0
        self._changed: set[Session] = set()
        self._frame: asyncio.TimerHandle | None = None
        self._drawn = 0.0
        self._tabs = Bar(id="tabs")
        self._body = Vertical(id="panes")
        self._problem = LinesView(id="problem")
        self._keys = Bar(id="keys")
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.animation_level = "none"

    def get_driver_class(self) -> type[Driver]:
        """The terminal of a person."""
        return Keyboard

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Those that other themes do not have."""
        return DEFAULTS

    def compose(self) -> ComposeResult:
        yield self._tabs
        yield self._body
        yield self._problem
        yield self._keys

    async def on_mount(self) -> None:
        """Show the first tab."""
        expert, query, job_id = self._begin_with
        self._show_problem()
        if self.live is not None:
            self.run_worker(self._follow_definition(self.live), group="definition")
        if job_id is not None:
            self.open_job(job_id)
        else:
            session = await self._add(self._session())
            if expert is not None:
                session.choose(expert)
                if query is not None:
                    session.session.send(query)
        self.set_interval(1.0, self._tick)

    # --- tabs -----------------------------------------------------------------------------------------------------

    @property
    def pane(self) -> JobPane:
        """The one that is shown."""
        return self._panes[self._shown]

    @property
    def sessions(self) -> list[Session]:
        """Those of all tabs."""
        return [pane.session for pane in self._panes]

    def open_job(self, job_id: str) -> None:
        """Show a Job in a tab of its own, or in the one that it has."""
        self._leave_screens()
        for number, pane in enumerate(self._panes):
            if pane.session.job_id == job_id:
                self.action_tab(number + 1)
                return
        if self._panes and self.pane.session.job_id is None and self.pane.session.expert_key is None:
            self.pane.session.watch(job_id)  # nothing was chosen in it yet
            self.action_tab(self._shown + 1)
            return
        session = self._session()
        session.watch(job_id)
        self.call_next(self._add, session)

    def branch(self, job_id: str, checkpoint_id: str, *, again: OpenQuestion | None = None) -> None:
        """Show a Job in a tab; what is typed next there branches from the checkpoint: a new query, or another answer
        to the question that was open there."""
        self.open_job(job_id)

        def prepare() -> None:
            for session in self.sessions:
                if session.job_id == job_id:
                    session.branch(checkpoint_id, again)

        self.call_next(prepare)

    def changed(self, job_id: str) -> None:
        """Whoever shows this Job reads it again."""
        for screen in self.screen_stack:
            if isinstance(screen, OverScreen):
                screen.read_again(job_id)
        for session in self.sessions:
            if session.job_id == job_id and not session.is_busy:
                session.watch(job_id)

    def _session(self) -> Session:
        return Session(self.host, None, self._on_change, drives=self._drives)

    async def _add(self, session: Session) -> JobPane:
        self._made += 1
        pane = JobPane(session, Typed(self._typed), id=f"pane-{self._made}")
        self._panes.append(pane)
        await self._body.mount(pane)
        self.action_tab(len(self._panes))
        return pane

    @on(JobPane.Chosen)
    def _named(self) -> None:
        self._show_tabs()

    @on(Bar.Clicked)
    def _clicked(self, message: Bar.Clicked) -> None:
        number = (message.number - FIRST) // EACH
        if message.bar is self._tabs and message.number >= FIRST and number < len(self._panes):
            self.action_tab(number + 1)

    def _show_tabs(self) -> None:
        tabs = [Tab(one.expert_key or one.job_id or "new", one.state) for one in self.sessions]
        self._tabs.set(tabs_line(tabs, self._shown, self.host.workspace.name, max(20, self._width - 2)))

    def on_resize(self, event: events.Resize) -> None:
        """The lines above and below are as wide as the screen."""
        self._width = event.size.width  # the library's own comes to know of it after this
        self._show_tabs()
        shown = [*_KEYS]
        for one in _DROPPED:
            if len("   ".join(shown)) > self._width - 2:
                shown.remove(one)
        self._keys.set((Span("   ".join(shown), "dim"),))

    # --- what happens ---------------------------------------------------------------------------------------------

    def _on_change(self, session: Session) -> None:
        """Something of a Job is another now: it is drawn with the next frame."""
        self._changed.add(session)
        if self._frame is None and self.is_running:
            loop = asyncio.get_running_loop()
            self._frame = loop.call_at(max(loop.time(), self._drawn + FRAME), self._draw)

    def _draw(self) -> None:
        self._frame = None
        self._drawn = asyncio.get_running_loop().time()
        changed, self._changed = self._changed, set()
        if not self._panes:
            return
        if self.pane.session in changed:
            self.pane.update()
        self._show_tabs()

    @on(Driver.SignalResume)
    def _came_back(self) -> None:
        """The process was stopped, and continues: nothing of what was drawn is there any more."""
        self.screen.refresh()

    def _tick(self) -> None:
        if self._panes:
            self.pane.tick()

    # --- the definition -------------------------------------------------------------------------------------------

    async def _follow_definition(self, live: LiveProject) -> None:
        """Read it again when its files change, for ever."""
        async for is_new in changes_of(live):
            if is_new:
                self._use(live)
            self._show_problem()

    def _use(self, live: LiveProject) -> None:
        self.host.use(live.loaded.project)
        for pane in self._panes:
            pane.update()

    def _show_problem(self) -> None:
        """What is wrong with the definition, with its place and what to do."""
        live = self.live
        lines: list[Line] = []
        if live is not None:
            folder = live.loaded.files[0].parent
            lines = problem_lines(live.problem, live.open_change, folder, max(20, self.size.width - 5))
        self._problem.display = bool(lines)
        self._problem.styles.height = len(lines)
        self._problem.show(lines)

    async def action_agree(self) -> None:
        """A change of what is executed is wanted."""
        held = None if self.live is None else self.live.open_change
        if self.live is None or held is None:
            self.notify(nothing_held(self.live), markup=False)
            return
        try:
            is_used = await asyncio.to_thread(self.live.agree, held.digest)
        except PerstackError as error:
            self.notify(error.said(said), severity="error", markup=False)
            return
        if is_used:
            self._use(self.live)
        self._show_problem()

    # --- actions --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that scroll or fold are for what is seen, which may be a screen over the Jobs."""
        return super().check_action(action, parameters) and not (action in _OF_JOBS and len(self.screen_stack) > 1)

    def action_help(self) -> None:
        """Over whatever is shown, which Esc goes back to."""
        if self.screen.id != "help-screen":
            self.show(screen_of("help", self))

    def action_history(self) -> None:
        self._over("history")

    def action_inbox(self) -> None:
        self._over("inbox")

    def _over(self, name: str) -> None:
        """Show this screen in place of any other over that of the Jobs."""
        self._leave_screens()
        self.show(screen_of(name, self))

    def _leave_screens(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_tab(self, number: int) -> None:
        """Show the tab of that number, from 1."""
        if 0 < number <= len(self._panes):
            self._shown = number - 1
            for at, pane in enumerate(self._panes):
                pane.display = at == self._shown
            self.pane.update()
            self.pane.to_composer()
            self._show_tabs()

    def action_next_tab(self) -> None:
        self.action_tab((self._shown + 1) % len(self._panes) + 1)

    def action_previous_tab(self) -> None:
        self.action_tab((self._shown - 1) % len(self._panes) + 1)

    async def action_new_tab(self) -> None:
        await self._add(self._session())

    async def action_close_tab(self) -> None:
        """Only of a Job that is not at work here."""
        pane = self.pane
        if pane.session.is_driven:
            self.notify("It is at work: Esc interrupts it.", severity="warning", markup=False)
            return
        pane.session.interrupt()
        self._panes.remove(pane)
        await pane.remove()
        if not self._panes:
            await self.action_new_tab()
        self.action_tab(min(self._shown + 1, len(self._panes)))

    def action_interrupt(self) -> None:
        self.pane.interrupt()

    def action_resume(self) -> None:
        self.pane.resume()

    def action_fold(self) -> None:
        self.pane.view.fold_all()

    def action_scroll(self, pages: int) -> None:
        self.pane.scroll_pages(pages)

    def action_to_end(self) -> None:
        self.pane.view.action_to_end()

    def action_copy_or_say(self) -> None:
        """What is chosen is copied; else a person who wants to leave, or to interrupt, is told how."""
        text = self.screen.get_selected_text() or self.pane.composer.selected_text
        if text:
            self.copy_to_clipboard(text)
        else:
            self.notify("Esc interrupts, Ctrl+Q quits.", markup=False)

    def action_copy_result(self) -> None:
        job = self.pane.session.job
        if job is not None and job.text:
            self.copy_to_clipboard(job.text)
            self.notify("copied", markup=False)

    def action_copy_id(self) -> None:
        if self.pane.session.job_id is not None:
            self.copy(self.pane.session.job_id)

    def copy(self, text: str) -> None:
        """Put it on the clipboard, and say so: not every terminal lets a program do that."""
        line = one_line(text)  # what is pasted into a terminal is obeyed by it
        self.copy_to_clipboard(line)
        self.notify(line, title="copied", markup=False)

    def show(self, screen: OverScreen) -> None:
        """Show this screen over the one that is shown, and nothing over it: a person may agree to what it says."""
        self.clear_notifications()
        self.push_screen(screen)

    def action_light(self) -> None:
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    async def action_quit(self) -> None:
        """Leave, if nothing is at work, or a person says that it is to be interrupted."""
        from perstack.frontends.tui.screens.quitting import QuitScreen

        jobs = sum(session.is_driven for session in self.sessions)
        if not jobs:
            self.exit(0)
            return

        def leave() -> None:
            self.run_worker(self.leave(), exclusive=True)

        if not isinstance(self.screen, QuitScreen):
            self.push_screen(QuitScreen(jobs, leave, self._leave_at_once))

    def _leave_at_once(self) -> None:
        self.leaves_at_once = True
        self.exit(INTERRUPTED)

    async def leave(self, code: int = 0) -> None:
        """Interrupt what is at work, and leave when that is recorded."""
        for session in self.sessions:
            session.interrupt()
        await asyncio.gather(*(session.ended() for session in self.sessions))
        self.exit(code)
