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
from perstack_tui.view.lines import expert_lines, filter_experts, hint_of, standing_line
from perstack_tui.view.styled_text import Line, Span, one_line_of
from perstack_tui.widgets.composer import Composer
from perstack_tui.widgets.lines import Bar, LinesView
from perstack_tui.widgets.question_panel import AskPanel, refusal
from perstack_tui.widgets.tree import TranscriptView

if TYPE_CHECKING:
    from perstack_tui.widgets.find import FindBar  # imported for types only: the search is rarely used

_MODEL = "/model"  # a text that begins with a slash is typed with two
_QUIET_S = (
    0.7  # seconds without a key before a question takes the focus, so that a key of other text is no answer to it
)


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

    def __init__(self, job_session: Session, typed: InputHistory, *, id: str) -> None:
        """Show a session; `typed` is the input's history."""
        super().__init__(id=id)
        self.session = job_session
        self._view = TranscriptView(job_session.transcript.root, job_session.host.clock.now, id="transcript")
        self._more = Bar(id="more")  # number of new lines below the shown ones
        self._find: FindBar | None = None
        self._model_of: tuple[tuple[str | None, str | None, Project], str] | None = (
            None  # the model of the next Run, once it is known
        )
        self._experts = LinesView(id="experts")
        self._experts.can_focus = False
        self._panel = AskPanel(job_session.host.workspace, self._on_key_elsewhere, self.to_composer)
        self._names = Bar(id="names")
        self.composer = Composer(
            typed, job_session.host.workspace, enter=self._sent, choose=self._choosing, id="composer"
        )
        self._standing = Bar(id="standing")
        self._chosen: str | None = None
        self._found_by = ""  # the filter text at the time of the choice
        self._refuses = False  # True if a reason for a no is being typed
        self._drafts: dict[str, str] = {}  # unfinished arguments of the call that was edited last, by its question
        self._draft = ""  # the draft that was begun before a question, which must not become an answer to it
        self._is_mixed = False  # True while the input still has that draft
        self._typed_at = 0.0

    @override
    def compose(self) -> ComposeResult:
        yield self._view
        yield self._more
        yield self._experts
        yield self._panel
        yield self._names
        yield self.composer
        yield self._standing

    @property
    def is_typed_in(self) -> bool:
        """True if Enter sends the typed text. A question's own hint says how it is answered."""
        return self.composer.has_focus and not self._panel.is_shown and not self.session.is_busy

    def on_mount(self) -> None:
        self.take_focus()
        self.update()

    def on_resize(self) -> None:
        """Draw the question, which takes a share of the height, and the status line again."""
        self._panel.draw()
        self._show_standing()

    # --- display --------------------------------------------------------------------------------------------------

    def update(self) -> None:
        session = self.session
        is_choosing = session.expert_key is None and session.job_id is None
        self._experts.display, self._view.display = is_choosing, not is_choosing
        self.composer.chooses = is_choosing
        if is_choosing:
            self._show_experts()
        else:
            if self._view.items is not session.transcript.root:
                self._view.replace(session.transcript.root)
            else:
                self._view.update()
            if session.coming is not None:
                self._view.prepare(session.coming.root)
        self._show_new_lines()
        if self._panel.show(session, self._question_notes()):
            self._is_mixed = bool(self.composer.text)
            self._offer_keys()
        elif not self._panel.is_shown:
            self._restore_draft()
            if self._panel.has_focus:
                self.to_composer()
        self._refuses = self._refuses and self._panel.takes_keys
        self._show_enter_hint()
        self._show_standing()

    @on(TranscriptView.Moved)
    def _show_new_lines(self) -> None:
        new = self._view.new_lines if self._view.display else 0
        self._more.display = bool(new)
        if new:
            self._more.set((Span(f"↓ {count(new, 'new line')}", "person"), Span("   ^End shows them", "dim")))

    @on(events.Click, "#more")
    def to_end(self) -> None:
        """Show the end of the transcript, and stay there."""
        self._view.action_to_end()
        self._show_new_lines()

    async def find(self) -> None:
        """Open the search, or show the next occurrence of the searched text."""
        if self._find is not None:
            self._find.again()
        elif self._view.display:
            from perstack_tui.widgets.find import FindBar

            self._find = FindBar(self._view, self._on_found)
            await self.mount(self._find, before=self.composer)

    def _on_found(self) -> None:
        self._find = None
        self.to_composer()

    def _show_standing(self) -> None:
        session, width = self.session, max(20, self.size.width - 2)
        live = (
            JobActivity() if session.is_reading else session.transcript.live
        )  # a partial state would show wrong totals
        line = standing_line(live, session.state, session.host.clock.now(), width, session.began, self._next_model())
        self._standing.set(line)

    def _next_model(self) -> str:
        """Return the model of the next Run; empty if unknown."""
        session = self.session
        if session.is_busy and session.model is None:
            return ""
        key = (session.expert_key, session.model, session.host.project)
        if self._model_of is None or self._model_of[0] != key:
            name = ""
            with suppress(PerstackError):  # sending the first text reports the error
                name = session.model_in_force()
            self._model_of = (key, name)
        return self._model_of[1]

    def tick(self) -> None:
        """Update durations; called every second."""
        if self.session.is_busy:
            if self.session.transcript.tick():
                self._view.update()
            self._show_standing()

    def _offer_keys(self) -> None:
        """After a pause in typing, put a draft aside for a question, or let the approval of a call take the keys.

        An approval leaves a draft in place until the user moves the focus to it: a further key would decide the call.
        """
        if not self._panel.is_shown or self._panel.has_focus or self._refuses:
            return
        if not (self._is_mixed if not self._panel.takes_keys else not self.composer.text):
            return
        wait_s = _QUIET_S - (time.monotonic() - self._typed_at)
        if wait_s > 0:
            self.set_timer(wait_s, self._offer_keys)
        elif self._panel.takes_keys:
            self._panel.take_focus()
        else:
            self._put_draft_aside()

    def _put_draft_aside(self) -> None:
        """Keep the text that was begun before the question, so that no answer contains it."""
        if self._is_mixed and self._panel.is_shown:
            draft = self.composer.text
            self.composer.clear_sent(keep=bool(self._draft))  # Up recalls the other of two drafts
            self._draft = self._draft or draft
            self._panel.show(self.session, self._question_notes())
        self._is_mixed = False
        self._show_enter_hint()

    def _restore_draft(self) -> None:
        """Put a draft back, before what was typed since the answer."""
        if self._draft:
            self.composer.set_text(self._draft + self.composer.text)
        self._draft, self._is_mixed = "", False

    def _to_panel(self) -> None:
        self._put_draft_aside()
        self._panel.take_focus()

    def _question_notes(self) -> list[str]:
        start = self.session.resume_from
        branch = [] if start is None else [f"another answer, in a branch from {one_line(start)}; Esc leaves the branch"]
        return [*branch, "your draft comes back after it"] if self._draft else branch

    def _show_enter_hint(self) -> None:
        """Show in the input what Enter does; a question itself says how it is answered."""
        is_asked = self._panel.is_shown
        hint = "" if self._panel.takes_keys else "your answer" if is_asked else hint_of(self.session)
        self.composer.placeholder = hint

    def _offered_experts(self) -> list[Expert]:
        """Return the Experts that the typed text finds, and choose the first if the choice is not among them."""
        experts = filter_experts(self.session.host.experts.all(), self.composer.text)
        keys = [expert.key for expert in experts]
        if self._chosen not in keys or self._found_by != self.composer.text:
            self._chosen = keys[0] if keys else None
        self._found_by = self.composer.text
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

    def _choosing(self, step: int) -> None:
        keys = [expert.key for expert in self._offered_experts()]
        if self._chosen is not None:
            self._chosen = keys[max(0, min(keys.index(self._chosen) + step, len(keys) - 1))]
            self._show_experts()

    @on(Composer.Completing)
    def _completing(self, message: Composer.Completing) -> None:
        self._names.display = bool(message.names)
        if message.names:
            self._names.set(
                (Span("Tab ", "person"), *one_line_of("   ".join(message.names), self.size.width - 8, "dim"))
            )

    def action_other(self) -> None:
        """Complete a file name; otherwise focus the question if it takes keys, the transcript, or the input again."""
        if self.composer.has_focus and self.composer.complete():
            return
        if (self._panel.takes_keys or self._panel.scrolls) and not self._panel.has_focus and not self._refuses:
            self._to_panel()
        elif self.composer.has_focus and self._view.display:
            self.screen.set_focus(self._view)
        else:
            self.to_composer()

    def scroll_pages(self, pages: int) -> None:
        """Scroll the question while it has the focus, otherwise the transcript."""
        if self._panel.has_focus:
            self._panel.scroll_pages(pages)
        else:
            self._view.scroll_relative(y=pages * max(1, self._view.size.height - 2), animate=False)

    def take_focus(self) -> None:
        """Focus the input, and a call's question once nothing was typed for a moment: the user may still be typing."""
        self.to_composer()
        self._typed_at = time.monotonic()
        self._offer_keys()

    def to_composer(self) -> None:
        """Focus the input."""
        self.screen.set_focus(self.composer)

    def interrupt(self) -> None:
        """Leave the refusal being typed, otherwise interrupt the session."""
        if self._refuses:
            self._refuses = False
            self.composer.clear_sent()
            self._panel.take_focus()
            self._show_enter_hint()
        else:
            self.session.interrupt()

    def _sent(self, text: str) -> None:
        session, asking = self.session, self.session.open_question
        name, _, argument = text.strip().partition(" ")
        is_waiting = session.is_busy and session.asking is None
        is_unfollowed = session.is_unfollowed and bool(text.strip()) and session.resume_from is None
        if name == _MODEL and asking is None:
            self.composer.clear_sent()
            self.post_message(self.ModelWanted(argument.strip()))
        elif is_waiting and session.may_be_told and text.strip():
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
            self._send(text[1:] if text.startswith(f"/{_MODEL}") else text)
        elif session.resume_from is None:
            self.resume()

    def _answer(self, question: OpenQuestion, text: str) -> None:
        if self._refuses:
            self._send(refusal(text), keep=False)
        elif question.call_digest:
            self._to_panel()
        elif self._is_mixed:
            self._put_draft_aside()
        elif text.strip():
            self._send(select_option(accepted_answers(question), text.strip()), keep=False)

    def _send(self, text: str, *, keep: bool = True) -> None:
        self.composer.clear_sent(keep=keep)
        self.session.send(text)
        self.to_end()

    def choose(self, key: str | None) -> None:
        """Choose the Expert of this tab."""
        if key is not None:
            self.session.expert_key = key
            self.composer.clear_sent(keep=False)
            self.session.transcript.greet(self.session.host.experts.all().get(key))
            self.update()
            self.post_message(self.Chosen())

    def resume(self) -> None:
        """Resume the Job; if calls have no result, the user settles them first."""
        if self.session.unsettled and not self._panel.has_focus:
            self._to_panel()
        elif self.session.is_unfollowed or self.session.is_unread:
            self.session.follow()
        elif self.session.resumption is not None and self.session.resumption.needs is None:
            self.session.resume()
            self.to_end()

    def on_descendant_focus(self) -> None:
        """Put a draft aside also when a click gave a call's question the keys."""
        if self._panel.takes_keys and self._panel.has_focus:
            self._put_draft_aside()

    @on(AskPanel.Answered)
    def _answered(self, message: AskPanel.Answered) -> None:
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
        """Give the terminal to the person's editor. Jobs continue, and are drawn afterwards."""
        app, draft = self._application, self._drafts.get(question.id, "")
        try:
            with app.suspend(), app.batch_update():
                edited = await asyncio.to_thread(edit_call, question, draft)
        except SuspendNotSupported as error:
            app.notify(str(error), severity="error", markup=False)
            return
        self._drafts = {question.id: edited.draft}
        asked = self.session.open_question
        is_asked = asked is not None and asked.id == question.id
        if not edited.answer or not is_asked:
            note = edited.problem if is_asked else "the question has already been answered"
            app.notify(note, severity="warning", markup=False)
            return
        self.session.send(edited.answer)
        self.to_end()
        self._panel.return_focus()

    @on(AskPanel.Refusing)
    def _refusing(self) -> None:
        self._refuses = True
        self._panel.return_focus()
        self._show_enter_hint()

    def _on_key_elsewhere(self, key: events.Key) -> None:
        self.composer.post_message(key)

    @on(AskPanel.Settled)
    def _on_settled(self) -> None:
        self.session.resume()
        self.to_end()
        self._panel.return_focus()

    @on(TranscriptView.Typed)
    def _on_typed_elsewhere(self, message: TranscriptView.Typed) -> None:
        self.to_composer()
        self.composer.insert(message.text)

    @property
    def view(self) -> TranscriptView:
        return self._view
