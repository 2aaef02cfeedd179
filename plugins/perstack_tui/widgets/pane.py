"""A tab: a Job's transcript, question, input and status line; or the Experts to choose from."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events, on
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from typing_extensions import override

from perstack.core.base.text import count, one_line
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.jobs.answer_reading import accepted_answers
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.doors.shared.activity import JobActivity
from perstack.doors.shared.edited_arguments import edit_call
from perstack.doors.shared.question_forms import select_option
from perstack.errors import PerstackError
from perstack_tui.session import Session
from perstack_tui.view.input import InputHistory
from perstack_tui.view.lines import expert_lines, filter_experts, hint_of, status_line
from perstack_tui.view.styled_text import Line, Span, one_line_of
from perstack_tui.widgets.composer import Composer
from perstack_tui.widgets.lines import Bar, LinesView
from perstack_tui.widgets.question_panel import AskPanel, refusal
from perstack_tui.widgets.tree import TranscriptView

if TYPE_CHECKING:
    from perstack_tui.widgets.find import FindBar  # imported for types only: the search is rarely used

_MODEL_COMMAND = "/model"  # typed text that sets the model; to send a slash at the beginning, type two
_TYPING_PAUSE_S = 0.7  # seconds without a key before a question takes the focus: no key of another text may answer it


class JobPane(Vertical):
    """The contents of one tab."""

    DEFAULT_CSS = """
    JobPane { height: 1fr; }
    JobPane TranscriptView, JobPane #experts { width: 100%; height: 1fr; padding: 0 1; }
    JobPane #names, JobPane #more { display: none; }
    JobPane #problem { display: none; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "other", show=False, priority=True)]

    class Chosen(Message):
        """An Expert was chosen or a Job begun, so the tab's name changed."""

    @dataclass
    class ModelWanted(Message):
        """`/model` was typed, with a name or without."""

        name: str

    def __init__(self, job_session: Session, input_history: InputHistory, *, id: str) -> None:
        """Show a session; `input_history` has the earlier texts."""
        super().__init__(id=id)
        self.session = job_session
        self._view = TranscriptView(job_session.transcript.root, job_session.host.clock.now, id="transcript")
        self._more_bar = Bar(id="more")  # shows the number of new lines below the window
        self._find_bar: FindBar | None = None
        # the model of the next Run, and what it depends on
        self._next_model_cache: tuple[tuple[str | None, str | None, Project], str] | None = None
        self._experts = LinesView(id="experts")
        self._experts.can_focus = False
        self._panel = AskPanel(job_session.host.workspace, self._forward_key, self.focus_composer)
        self._completions_bar = Bar(id="names")
        self.composer = Composer(
            input_history, job_session.host.workspace, enter=self._submit, choose=self._move_choice, id="composer"
        )
        self._status_bar = Bar(id="standing")
        self._chosen: str | None = None
        self._expert_filter = ""  # the text that filtered the Experts when one was chosen
        self._is_refusing = False  # True if a reason for a no is being typed
        # unfinished arguments of the call that was edited last, by id of its question
        self._drafts: dict[str, str] = {}
        self._draft = ""  # text that was begun before a question, and must not become part of the answer
        self._input_has_draft = False  # True while the input still has such text
        self._typed_at = 0.0

    @override
    def compose(self) -> ComposeResult:
        yield self._view
        yield self._more_bar
        yield self._experts
        yield self._panel
        yield self._completions_bar
        yield self.composer
        yield self._status_bar

    @property
    def is_typed_in(self) -> bool:
        """True if Enter sends the typed text; False for a question, whose own hint says how it is answered."""
        return self.composer.has_focus and not self._panel.is_shown and not self.session.is_busy

    def on_mount(self) -> None:
        self.take_focus()
        self.update()

    def on_resize(self) -> None:
        """Draw the question, which takes a share of the height, and the status line again."""
        self._panel.draw()
        self._show_status()

    # --- display --------------------------------------------------------------------------------------------------

    def update(self) -> None:
        session = self.session
        is_choosing = session.expert_key is None and session.job_id is None
        self._experts.display, self._view.display = is_choosing, not is_choosing
        self.composer.chooses_in_list = is_choosing
        if is_choosing:
            self._show_experts()
        else:
            if self._view.items is not session.transcript.root:
                self._view.replace(session.transcript.root)
            else:
                self._view.update()
            if session.complete_transcript is not None:
                self._view.prepare(session.complete_transcript.root)
        self._show_new_lines()
        if self._panel.show(session, self._question_notes()):
            self._input_has_draft = bool(self.composer.text)
            self._offer_keys()
        elif not self._panel.is_shown:
            self._restore_draft()
            if self._panel.has_focus:
                self.focus_composer()
        self._is_refusing = self._is_refusing and self._panel.takes_keys
        self._show_enter_hint()
        self._show_status()

    @on(TranscriptView.Moved)
    def _show_new_lines(self) -> None:
        new = self._view.new_lines if self._view.display else 0
        self._more_bar.display = bool(new)
        if new:
            self._more_bar.set((Span(f"↓ {count(new, 'new line')}", "person"), Span("   ^End shows them", "dim")))

    @on(events.Click, "#more")
    def to_end(self) -> None:
        """Show the end of the transcript, and stay there."""
        self._view.action_to_end()
        self._show_new_lines()

    async def find(self) -> None:
        """Open the search, or show the next occurrence of the searched text."""
        if self._find_bar is not None:
            self._find_bar.reopen()
        elif self._view.display:
            from perstack_tui.widgets.find import FindBar

            self._find_bar = FindBar(self._view, self._on_find_closed)
            await self.mount(self._find_bar, before=self.composer)

    def _on_find_closed(self) -> None:
        self._find_bar = None
        self.focus_composer()

    def _show_status(self) -> None:
        session, width = self.session, max(20, self.size.width - 2)
        live = JobActivity() if session.is_reading else session.transcript.live  # a partly read Job has wrong totals
        line = status_line(live, session.state, session.host.clock.now(), width, session.began, self._next_model())
        self._status_bar.set(line)

    def _next_model(self) -> str:
        """Return the model of the next Run; empty if unknown."""
        session = self.session
        if session.is_busy and session.model is None:
            return ""
        key = (session.expert_key, session.model, session.host.project)
        if self._next_model_cache is None or self._next_model_cache[0] != key:
            name = ""
            with suppress(PerstackError):  # the error is shown when a text is sent
                name = session.model_in_force()
            self._next_model_cache = (key, name)
        return self._next_model_cache[1]

    def tick(self) -> None:
        """Update durations; called every second."""
        if self.session.is_busy:
            if self.session.transcript.tick():
                self._view.update()
            self._show_status()

    def _offer_keys(self) -> None:
        """After a pause in typing, put a draft aside for a question, or focus the approval of a call.

        With a draft in the input, the user must focus the approval: otherwise a further key would decide the call.
        """
        if not self._panel.is_shown or self._panel.has_focus or self._is_refusing:
            return
        if not (self._input_has_draft if not self._panel.takes_keys else not self.composer.text):
            return
        wait_s = _TYPING_PAUSE_S - (time.monotonic() - self._typed_at)
        if wait_s > 0:
            self.set_timer(wait_s, self._offer_keys)
        elif self._panel.takes_keys:
            self._panel.take_focus()
        else:
            self._put_draft_aside()

    def _put_draft_aside(self) -> None:
        """Keep the text that was begun before the question, so that no answer contains it."""
        if self._input_has_draft and self._panel.is_shown:
            text = self.composer.text
            # a second draft goes to the history, from which Up recalls it
            self.composer.clear_sent(keep=bool(self._draft))
            self._draft = self._draft or text
            self._panel.show(self.session, self._question_notes())
        self._input_has_draft = False
        self._show_enter_hint()

    def _restore_draft(self) -> None:
        """Put a draft back, before the text that was typed since."""
        if self._draft:
            self.composer.set_text(self._draft + self.composer.text)
        self._draft, self._input_has_draft = "", False

    def _focus_panel(self) -> None:
        self._put_draft_aside()
        self._panel.take_focus()

    def _question_notes(self) -> list[str]:
        start = self.session.resume_from
        branch = [] if start is None else [f"another answer, in a branch from {one_line(start)}; Esc leaves the branch"]
        return [*branch, "your draft comes back after it"] if self._draft else branch

    def _show_enter_hint(self) -> None:
        """Show in the empty input what Enter does; the hint of a question is in its panel."""
        is_asked = self._panel.is_shown
        hint = "" if self._panel.takes_keys else "your answer" if is_asked else hint_of(self.session)
        self.composer.placeholder = hint

    def _offered_experts(self) -> list[Expert]:
        """Return the Experts that match the typed text; choose the first if the choice is not among them."""
        experts = filter_experts(self.session.host.experts.all(), self.composer.text)
        keys = [expert.key for expert in experts]
        if self._chosen not in keys or self._expert_filter != self.composer.text:
            self._chosen = keys[0] if keys else None
        self._expert_filter = self.composer.text
        return experts

    def _show_experts(self) -> None:
        experts = self._offered_experts()
        width = max(30, self.screen.size.width - 2)
        head: list[Line] = [(), (Span("  Choose an Expert", "strong"),), ()]
        lines = [*head, *expert_lines(experts, self._chosen, width)]
        if not experts:
            lines.append((Span("  no Expert matches", "dim"),))
        self._experts.show(lines)
        top = [expert.key for expert in experts].index(self._chosen) + len(head) if self._chosen is not None else 0
        self._experts.scroll_to(y=max(0, top - self._experts.size.height + 2), animate=False)

    # --- user actions ---------------------------------------------------------------------------------------------

    @on(Composer.Changed)
    def _on_typing(self) -> None:
        self._typed_at = time.monotonic()
        if self.session.expert_key is None and self.session.job_id is None:
            self._show_experts()

    def _move_choice(self, step: int) -> None:
        keys = [expert.key for expert in self._offered_experts()]
        if self._chosen is not None:
            self._chosen = keys[max(0, min(keys.index(self._chosen) + step, len(keys) - 1))]
            self._show_experts()

    @on(Composer.Completing)
    def _on_completing(self, message: Composer.Completing) -> None:
        self._completions_bar.display = bool(message.names)
        if message.names:
            self._completions_bar.set(
                (Span("Tab ", "person"), *one_line_of("   ".join(message.names), self.size.width - 8, "dim"))
            )

    def action_other(self) -> None:
        """Complete a file name, or move the focus to the question if it takes keys, the transcript, or the input."""
        if self.composer.has_focus and self.composer.complete():
            return
        if (self._panel.takes_keys or self._panel.scrolls) and not self._panel.has_focus and not self._is_refusing:
            self._focus_panel()
        elif self.composer.has_focus and self._view.display:
            self.screen.set_focus(self._view)
        else:
            self.focus_composer()

    def scroll_pages(self, pages: int) -> None:
        """Scroll the question while it has the focus, otherwise the transcript."""
        if self._panel.has_focus:
            self._panel.scroll_pages(pages)
        else:
            self._view.scroll_relative(y=pages * max(1, self._view.size.height - 2), animate=False)

    def take_focus(self) -> None:
        """Focus the input; after a pause in typing, focus the approval of a call."""
        self.focus_composer()
        self._typed_at = time.monotonic()
        self._offer_keys()

    def focus_composer(self) -> None:
        self.screen.set_focus(self.composer)

    def interrupt(self) -> None:
        """Leave the refusal being typed, otherwise interrupt the session."""
        if self._is_refusing:
            self._is_refusing = False
            self.composer.clear_sent()
            self._panel.take_focus()
            self._show_enter_hint()
        else:
            self.session.interrupt()

    def _submit(self, text: str) -> None:
        """Handle Enter as the state requires: command, text to the Job, answer, choice of an Expert, or resume."""
        session, asking = self.session, self.session.open_question
        name, _, argument = text.strip().partition(" ")
        is_waiting = session.is_busy and session.asking is None
        is_unfollowed = session.is_unfollowed and bool(text.strip()) and session.resume_from is None
        if name == _MODEL_COMMAND and asking is None:
            self.composer.clear_sent()
            self.post_message(self.ModelWanted(argument.strip()))
        elif is_waiting and session.accepts_texts and text.strip():
            self.composer.clear_sent()
            session.tell(text)
        elif is_waiting or is_unfollowed:
            return
        elif session.is_unread:
            session.follow()
        elif session.expert_key is None and session.job_id is None:
            self._offered_experts()
            self.choose(self._chosen)
        elif asking is not None:
            self._answer(asking, text)
        elif text.strip():
            self._send(text[1:] if text.startswith(f"/{_MODEL_COMMAND}") else text)
        elif session.resume_from is None:
            self.resume()

    def _answer(self, question: OpenQuestion, text: str) -> None:
        if self._is_refusing:
            self._send(refusal(text), keep=False)
        elif question.call_digest:
            self._focus_panel()
        elif self._input_has_draft:
            self._put_draft_aside()
        elif text.strip():
            self._send(select_option(accepted_answers(question), text.strip()), keep=False)

    def _send(self, text: str, *, keep: bool = True) -> None:
        self.composer.clear_sent(keep=keep)
        self.session.send(text)
        self.to_end()

    def choose(self, key: str | None) -> None:
        if key is not None:
            self.session.expert_key = key
            self.composer.clear_sent(keep=False)
            self.session.transcript.greet(self.session.host.experts.all().get(key))
            self.update()
            self.post_message(self.Chosen())

    def resume(self) -> None:
        """Resume the Job; if calls have no result, the user settles them first."""
        if self.session.unsettled and not self._panel.has_focus:
            self._focus_panel()
        elif self.session.is_unfollowed or self.session.is_unread:
            self.session.follow()
        elif self.session.resumption is not None and self.session.resumption.needs is None:
            self.session.resume()
            self.to_end()

    def on_descendant_focus(self) -> None:
        """Put a draft aside when a click focused the approval of a call."""
        if self._panel.takes_keys and self._panel.has_focus:
            self._put_draft_aside()

    @on(AskPanel.Answered)
    def _on_answered(self, message: AskPanel.Answered) -> None:
        self.session.send(message.text)
        self.to_end()
        self._panel.return_focus()

    @on(AskPanel.Editing)
    def _on_editing(self, message: AskPanel.Editing) -> None:
        self.run_worker(self._edit(message.question), group="editor", exclusive=True)

    @property
    def _application(self) -> App[object]:
        return cast("App[object]", self.screen.app)  # pyright: ignore[reportUnknownMemberType] - untyped in textual

    async def _edit(self, question: OpenQuestion) -> None:
        """Suspend the program for the user's editor, and send the edited call. Jobs continue meanwhile."""
        app, draft = self._application, self._drafts.get(question.id, "")
        try:
            with app.suspend(), app.batch_update():
                edited = await asyncio.to_thread(edit_call, question, draft)
        except SuspendNotSupported as error:
            app.notify(str(error), severity="error", markup=False)
            return
        self._drafts = {question.id: edited.draft}
        open_question = self.session.open_question
        is_asked = open_question is not None and open_question.id == question.id
        if not edited.answer or not is_asked:
            note = edited.problem if is_asked else "the question has already been answered"
            app.notify(note, severity="warning", markup=False)
            return
        self.session.send(edited.answer)
        self.to_end()
        self._panel.return_focus()

    @on(AskPanel.Refusing)
    def _on_refusing(self) -> None:
        self._is_refusing = True
        self._panel.return_focus()
        self._show_enter_hint()

    def _forward_key(self, key: events.Key) -> None:
        self.composer.post_message(key)

    @on(AskPanel.Settled)
    def _on_settled(self) -> None:
        self.session.resume()
        self.to_end()
        self._panel.return_focus()

    @on(TranscriptView.Typed)
    def _on_typed_in_transcript(self, message: TranscriptView.Typed) -> None:
        self.focus_composer()
        self.composer.insert(message.text)

    @property
    def view(self) -> TranscriptView:
        return self._view
