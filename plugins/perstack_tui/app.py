"""The Textual application: its tabs, its other screens, and every action."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import Vertical
from textual.driver import Driver
from typing_extensions import override

from perstack.core.base.text import one_line
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.live_project import ReloadedProject
from perstack.doors.shared.next_step_phrases import tui_phrase
from perstack.doors.shared.signals import INTERRUPTED, exit_now, handle_stop_signals
from perstack.errors import PerstackError
from perstack.host import Host
from perstack.toml_reader.definition_with_includes import LoadedProject
from perstack_tui.actions import ACTIONS, Action
from perstack_tui.screens import screen_of
from perstack_tui.screens.base import OverlayScreen
from perstack_tui.session import NO_EXPERT, Session, no_change_message
from perstack_tui.terminal import TerminalDriver, terminal_restored
from perstack_tui.theme import DARK, DEFAULTS, LIGHT
from perstack_tui.view.input import InputHistory
from perstack_tui.view.lines import Tab, change_lines, problem_lines, tabs_line
from perstack_tui.view.styled_text import Line, Span
from perstack_tui.widgets.lines import Bar, LinesView
from perstack_tui.widgets.pane import JobPane

# The palette (Ctrl+P): every action by its name.


class _ActionProvider(Provider):
    async def discover(self) -> Hits:
        for action, run in self._all_actions():
            yield DiscoveryHit(_action_label(action.title, action.key_label), run, help=action.text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action, run in self._all_actions():
            name = _action_label(action.title, action.key_label)
            score = max(matcher.match(name), matcher.match(action.text) / 2)
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=action.text)

    def _all_actions(self) -> Iterator[tuple[Action, Callable[[], Awaitable[object]]]]:
        screen = self.screen
        if isinstance(screen, OverlayScreen):
            for action in screen.ACTIONS:
                yield action, partial(screen.run_action, action.name)
        for action in ACTIONS:
            yield action, partial(self.app.run_action, action.name)


def _action_label(title: str, key: str) -> str:
    return f"{title}  {key}" if key else title


FRAME_S = 1 / 12  # minimum seconds between two redraws: a model streams faster than people read
_TYPING = ("Enter send", "^J new line")
_INTERRUPT = "Esc interrupt"
_INBOX = "F3 Inbox"
_KEYS = (*_TYPING, _INTERRUPT, "F1 help", "F2 History", _INBOX, "^P all", "^Q quit")
_DROP_ORDER = ("^J new line", "Enter send", "^P all")  # removed from a narrow key line in this order

# actions on the shown Job, disabled while another screen is above it
_JOB_ACTIONS = ("scroll", "to_end", "fold", "find")


class StartApp(App[int]):
    """The application of `perstack start`."""

    CSS = """
    Screen { background: $background; color: $foreground; }
    #panes { width: 100%; height: 1fr; }
    #problem { display: none; max-height: 8; margin: 0 1; padding: 0 0 0 1; border-left: thick $warning; }
    """
    ENABLE_COMMAND_PALETTE = True
    COMMANDS = {_ActionProvider}  # noqa: RUF012 - Textual's own type
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(action.key, action.name, action.title, show=False, priority=action.key != "escape")
            for action in ACTIONS
            if action.key
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
        live: ReloadedProject | None = None,
        *,
        expert: str | None = None,
        query: str | None = None,
        job_id: str | None = None,
        typed: Sequence[str] = (),
        location_options: str = "",
        names_workspace: bool = False,
        drives: bool = False,
    ) -> None:
        """Take options that locate the project; with `drives`, answered Jobs are driven here, not by workers."""
        super().__init__()
        self.host = host
        self.live = live
        self.location_options = location_options
        self.names_workspace = names_workspace
        self._drives = drives
        self.leaves_at_once = False  # True to exit without waiting for running Jobs
        self._initial_job = (expert, query, job_id)
        self._earlier_texts = tuple(typed)
        self._panes: list[JobPane] = []
        self._shown_index = 0
        self._width = 80
        self._created_panes = 0
        self._changed: set[Session] = set()
        self._draw_timer: asyncio.TimerHandle | None = None
        self._drawn_at = 0.0
        self._question_count = 0  # number of open questions of all Jobs and tasks at the last count
        self._asked_ids: tuple[str, ...] = ()  # ids of the questions of open tabs at the last check
        self._tabs = Bar(id="tabs")
        self._body = Vertical(id="panes")
        self._problem = LinesView(id="problem")
        self._keys = Bar(id="keys")
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.animation_level = "none"

    @override
    def get_driver_class(self) -> type[Driver]:
        return TerminalDriver

    @override
    def get_theme_variable_defaults(self) -> dict[str, str]:
        return DEFAULTS

    @override
    def compose(self) -> ComposeResult:
        yield self._tabs
        yield self._body
        yield self._problem
        yield self._keys

    async def on_mount(self) -> None:
        expert, query, job_id = self._initial_job
        self._show_problem()
        if note := self.host.programs_note:
            self.notify(note, severity="warning", markup=False)
        if self.live is not None:
            for problem in self.live.loaded.warnings:
                self.notify(str(problem), severity="warning", markup=False)
            self.run_worker(self._follow_definition(self.live), group="definition")
        if job_id is not None:
            self.open_job(job_id)
        else:
            job_pane = await self._add_tab(self._new_session())
            if expert is not None:
                job_pane.choose(expert)
                if query is not None:
                    job_pane.session.send(query)
        self.set_interval(1.0, self._tick)
        self.run_worker(self._count_questions(), group="inbox", exclusive=True)

    # --- tabs -----------------------------------------------------------------------------------------------------

    @property
    def pane(self) -> JobPane:
        return self._panes[self._shown_index]

    @property
    def sessions(self) -> list[Session]:
        return [pane.session for pane in self._panes]

    def open_job(self, job_id: str) -> None:
        """Show a Job in its tab, or in a new one."""
        self._leave_screens()
        for number, pane in enumerate(self._panes):
            if pane.session.job_id == job_id:
                self.action_tab(number + 1)
                return
        if self._panes and self.pane.session.job_id is None and self.pane.session.expert_key is None:
            self.pane.session.watch(job_id)  # reuse a tab without an Expert
            self.action_tab(self._shown_index + 1)
            return
        session = self._new_session()
        session.watch(job_id)
        self.call_next(self._add_tab, session)

    def branch(self, job_id: str, checkpoint_id: str, *, question: OpenQuestion | None = None) -> None:
        """Show a Job whose next text branches from the checkpoint: a new query, or another answer to `question`."""
        self.open_job(job_id)

        def prepare() -> None:
            for session in self.sessions:
                if session.job_id == job_id:
                    session.branch(checkpoint_id, question)

        self.call_next(prepare)

    def reload_job(self, job_id: str) -> None:
        """Read this Job again wherever it is shown."""
        for screen in self.screen_stack:
            if isinstance(screen, OverlayScreen):
                screen.read_again(job_id)
        for session in self.sessions:
            if session.job_id == job_id and not session.is_busy:
                session.watch(job_id)

    def _new_session(self) -> Session:
        return Session(self.host, None, self._on_change, drives=self._drives)

    async def _add_tab(self, job_session: Session) -> JobPane:
        self._created_panes += 1
        pane = JobPane(job_session, InputHistory(self._earlier_texts), id=f"pane-{self._created_panes}")
        self._panes.append(pane)
        await self._body.mount(pane)
        self.action_tab(len(self._panes))
        return pane

    @on(JobPane.Chosen)
    def _on_tab_renamed(self) -> None:
        self._show_tabs()

    @on(events.DescendantFocus)
    def _on_focus_moved(self) -> None:
        self._show_keys()

    def _show_tabs(self) -> None:
        tabs = [Tab(session.expert_key or session.job_id or "new", session.state) for session in self.sessions]
        self._tabs.set(tabs_line(tabs, self._shown_index, self.host.workspace.name, max(20, self._width - 2)))

    def on_resize(self, event: events.Resize) -> None:
        """Fit the tab line and the key line to the width."""
        self._width = event.size.width  # the library updates its own value only after this event
        self._show_tabs()
        self._show_keys()

    def _show_keys(self) -> None:
        """Show the key bindings that have an effect in the current state."""
        pane = self._panes[self._shown_index] if self._panes else None
        useless_typing_keys = () if pane is None or pane.is_typed_in else _TYPING
        useless_interrupt = () if pane is None or pane.session.is_busy else (_INTERRUPT,)
        keys = [key for key in _KEYS if key not in (*useless_typing_keys, *useless_interrupt)]
        for key in _DROP_ORDER:
            if len("   ".join(keys)) > self._width - 2 and key in keys:
                keys.remove(key)
        inbox = f"{_INBOX} {self._question_count}"
        spans = [Span(inbox, "ask") if key == _INBOX and self._question_count else Span(key, "dim") for key in keys]
        gaps = [Span("   ", "dim")] * len(spans)
        self._keys.set(tuple(part for pair in zip(spans, gaps, strict=True) for part in pair)[:-1])

    async def _count_questions(self) -> None:
        """Show the number of open questions of all Jobs and tasks next to F3."""
        try:
            question_count = len(await self.host.inbox())
        except PerstackError:
            return  # the Inbox reports the error
        if question_count != self._question_count:
            self._question_count = question_count
            self._show_keys()

    # --- events ---------------------------------------------------------------------------------------------------

    def _on_change(self, job_session: Session) -> None:
        self._changed.add(job_session)
        if self._draw_timer is None and self.is_running:
            loop = asyncio.get_running_loop()
            self._draw_timer = loop.call_at(max(loop.time(), self._drawn_at + FRAME_S), self._draw)

    def _draw(self) -> None:
        self._draw_timer = None
        self._drawn_at = asyncio.get_running_loop().time()
        sessions, self._changed = self._changed, set()
        if not self._panes:
            return
        if self.pane.session in sessions:
            self.pane.update()
        self._show_tabs()
        self._show_keys()

    @on(Driver.SignalResume)
    def _on_continue(self) -> None:
        """Redraw everything: the process was suspended, so the screen's contents are lost."""
        self.screen.refresh()

    @on(TerminalDriver.TerminalGone)
    def _on_terminal_gone(self) -> None:
        """Exit as soon as no Job is driven here, since nobody can see or stop this program any more."""
        self.run_worker(self._leave_when_idle())

    async def _leave_when_idle(self) -> None:
        for session in self.sessions:
            if not session.is_driven:
                session.interrupt()
        await asyncio.gather(*(session.wait_until_idle() for session in self.sessions))
        self.exit(INTERRUPTED)

    def _tick(self) -> None:
        if isinstance(self._driver, TerminalDriver) and self._driver.catch_up():
            self.screen.refresh()
        if self._panes:
            self.pane.tick()
        asked = tuple(session.asking.id for session in self.sessions if session.asking is not None)
        if asked != self._asked_ids:  # reading all Jobs is expensive, so it is only done after a change here
            self._asked_ids = asked
            self.run_worker(self._count_questions(), group="inbox", exclusive=True)

    # --- the definition -------------------------------------------------------------------------------------------

    async def _follow_definition(self, live: ReloadedProject) -> None:
        async for is_new in live.changes():
            if is_new:
                self._use_definition(live)
            self._show_problem()

    def _use_definition(self, live: ReloadedProject) -> None:
        self.host.use(live.loaded.project)
        for pane in self._panes:
            pane.update()

    def _show_problem(self) -> None:
        live = self.live
        lines: list[Line] = []
        if live is not None:
            folder = live.loaded.files[0].parent
            lines = problem_lines(live.problem, live.open_change, folder, self._problem_cells)
        self._problem.display = bool(lines)
        self._problem.styles.height = len(lines)
        self._problem.show(lines)

    @property
    def _problem_cells(self) -> int:
        return max(20, self.size.width - 5)

    async def action_agree(self) -> None:
        """Accept a changed definition that executes something new."""
        change = None if self.live is None else self.live.open_change
        if self.live is None or change is None:
            self.notify(no_change_message(self.live), markup=False)
            return
        if change_lines(change, self.live.loaded.files[0].parent, self._problem_cells) is None:
            self.notify(change.note.text_for(tui_phrase), markup=False)
            return
        try:
            is_used = await asyncio.to_thread(self.live.agree, change.digest)
        except PerstackError as error:
            self.notify(error.text_for(tui_phrase), severity="error", markup=False)
            return
        if is_used:
            self._use_definition(self.live)
        self._show_problem()

    # --- actions --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable scrolling and folding of the Job while another screen is above it."""
        return super().check_action(action, parameters) and not (action in _JOB_ACTIONS and len(self.screen_stack) > 1)

    def action_help(self) -> None:
        """Show the help above the current screen; Esc returns."""
        if self.screen.id != "help-screen":
            self.show(screen_of("help", self))

    def action_history(self) -> None:
        self._show_screen("history")

    def action_inbox(self) -> None:
        self._show_screen("inbox")

    def _show_screen(self, name: str) -> None:
        self._leave_screens()
        self.show(screen_of(name, self))

    def _leave_screens(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_tab(self, number: int) -> None:
        """Show the tab with that number, from 1."""
        if 0 < number <= len(self._panes):
            self._shown_index = number - 1
            for index, pane in enumerate(self._panes):
                pane.display = index == self._shown_index
            self.pane.update()
            self.pane.take_focus()
            self._show_tabs()
            self._show_keys()

    def action_next_tab(self) -> None:
        self.action_tab((self._shown_index + 1) % len(self._panes) + 1)

    def action_previous_tab(self) -> None:
        self.action_tab((self._shown_index - 1) % len(self._panes) + 1)

    async def action_new_tab(self) -> None:
        await self._add_tab(self._new_session())

    async def action_close_tab(self) -> None:
        """Close the tab unless its Job is driven here."""
        pane = self.pane
        if pane.session.is_driven:
            self.notify("The Job is at work: Esc interrupts it.", severity="warning", markup=False)
            return
        pane.session.interrupt()
        self._panes.remove(pane)
        await pane.remove()
        if not self._panes:
            await self.action_new_tab()
        self.action_tab(min(self._shown_index + 1, len(self._panes)))

    def action_interrupt(self) -> None:
        self.pane.interrupt()

    def action_resume(self) -> None:
        self.pane.resume()

    def action_fold(self) -> None:
        """Fold or unfold all items of the shown Job."""
        self.pane.view.fold_all()

    def action_scroll(self, pages: int) -> None:
        self.pane.scroll_pages(pages)

    def action_to_end(self) -> None:
        self.pane.to_end()

    def action_model(self) -> None:
        """Choose the model of the next Runs of this tab."""
        if self.pane.session.expert_key is None:
            self.notify(NO_EXPERT, markup=False)
            return
        from perstack_tui.screens.model import ModelScreen

        self._leave_screens()
        self.show(ModelScreen(self, self.pane.session))

    @on(JobPane.ModelWanted)
    async def _on_model_wanted(self, message: JobPane.ModelWanted) -> None:
        session, name = self.pane.session, message.name
        if not name or session.expert_key is None:
            self.action_model()
            return
        session.use_model(name)
        self.run_worker(self._check_model(session, name), group="model")

    async def _check_model(self, job_session: Session, name: str) -> None:
        """Show the model in use, and warn about a name that the provider does not list."""
        try:
            text, is_warning = await job_session.check_model(name)
        except PerstackError as error:
            self.notify(error.text_for(tui_phrase), severity="error", markup=False)
            return
        self.notify(text, severity="warning" if is_warning else "information", markup=False)

    async def action_find(self) -> None:
        await self.pane.find()

    def action_copy(self) -> None:
        """Copy the selection; without one, show how to interrupt and quit."""
        text = self.screen.get_selected_text() or self.pane.composer.selected_text
        if text:
            self.copy_to_clipboard(text)
        else:
            self.notify("Esc interrupts, Ctrl+Q quits.", markup=False)

    def action_copy_result(self) -> None:
        """Copy the shown Job's result, if it has one."""
        summary = self.pane.session.job
        if summary is not None and summary.text:
            self.copy_to_clipboard(summary.text)
            self.notify("copied", markup=False)

    def action_copy_id(self) -> None:
        """Copy the shown Job's id, if it has begun."""
        if self.pane.session.job_id is not None:
            self.copy(self.pane.session.job_id)

    def copy(self, text: str) -> None:
        """Copy to the clipboard and show the text: not every terminal allows programs to copy."""
        line = one_line(text)  # a terminal would obey escape sequences that are pasted into it
        self.copy_to_clipboard(line)
        self.notify(line, title="copied", markup=False)

    def show(self, screen: OverlayScreen) -> None:
        """Show a screen, without notifications above it: the user may consent to its contents."""
        self.clear_notifications()
        self.push_screen(screen)

    def action_light(self) -> None:
        """Switch between the dark and the light theme."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    async def action_quit(self) -> None:
        """Exit if no Job is driven here, otherwise ask first."""
        from perstack_tui.screens.help import QuitScreen

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
        """Interrupt the running Jobs, and exit when that is recorded."""
        for session in self.sessions:
            session.interrupt()
        await asyncio.gather(*(session.wait_until_idle() for session in self.sessions))
        self.exit(code)


# The program from start to exit, restoring the terminal.

_RECALLED_QUERIES = 50  # maximum earlier queries that Up recalls


def run_start(
    host: Host,
    loaded: LoadedProject,
    *,
    expert: str | None = None,
    query: str | None = None,
    job: str | None = None,
    mouse: bool = True,
    location_options: str = "",
    names_workspace: bool = False,
    drives: bool = False,
) -> tuple[int, tuple[JobSummary, ...]]:
    """Run until the user leaves, and return the exit status and the Jobs of the open tabs.

    SIGTERM and SIGHUP interrupt running Jobs first.
    """

    async def main() -> tuple[int, tuple[JobSummary, ...]]:
        async with host:
            job_id = await host.jobs.complete_id(job)
            typed = [
                summary.query
                for summary in reversed((await host.jobs.list(limit=_RECALLED_QUERIES)).jobs)
                if summary.query
            ]
            app = StartApp(
                host,
                ReloadedProject(loaded),
                expert=expert,
                query=query,
                job_id=job_id,
                typed=typed,
                location_options=location_options,
                names_workspace=names_workspace,
                drives=drives,
            )
            leave_tasks: list[asyncio.Task[None]] = []
            with handle_stop_signals(lambda: leave_tasks.append(asyncio.ensure_future(app.leave(INTERRUPTED)))):
                code = await app.run_async(mouse=mouse)
                if app.leaves_at_once:
                    restore()
                    exit_now()
            for session in app.sessions:
                session.interrupt()
            await asyncio.gather(*(session.wait_until_idle() for session in app.sessions))
            jobs = tuple(session.job for session in app.sessions if session.job is not None)
            return app.return_code or code or 0, jobs

    with terminal_restored() as restore:
        return asyncio.run(main())
