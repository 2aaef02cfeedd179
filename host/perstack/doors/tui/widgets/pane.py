"""A tab: a Job with its transcript, what it asks, the input and how it stands; or the Experts to choose from."""

from __future__ import annotations

import time
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message

from perstack.core.answers import asked_by
from perstack.core.definitions import Expert
from perstack.frontends.shared.live_state import LiveState
from perstack.frontends.shared.questions import chosen
from perstack.frontends.tui.session import Session
from perstack.frontends.tui.view.experts import expert_lines, filtered
from perstack.frontends.tui.view.hints import hint_of
from perstack.frontends.tui.view.spans import Line, Span, one
from perstack.frontends.tui.view.standing import standing_line
from perstack.frontends.tui.view.typed import Typed
from perstack.frontends.tui.widgets.asking import AskPanel, refusal
from perstack.frontends.tui.widgets.bar import Bar
from perstack.frontends.tui.widgets.composer import Composer
from perstack.frontends.tui.widgets.lines import LinesView
from perstack.frontends.tui.widgets.transcript import TranscriptView

_QUIET = 0.7
"""Seconds without a key after which what asks may take the keys: what is being typed is no answer to it."""


class JobPane(Vertical):
    """All that is seen of one tab."""

    DEFAULT_CSS = """
    JobPane { height: 1fr; }
    JobPane TranscriptView, JobPane #experts { width: 100%; height: 1fr; padding: 0 1; }
    JobPane #names { display: none; }
    JobPane #problem { display: none; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "other", show=False, priority=True)]

    class Chosen(Message):
        """An Expert was chosen, or a Job begun: the tab has another name."""

    def __init__(self, session: Session, typed: Typed, *, id: str) -> None:
        super().__init__(id=id)
        self.session = session
        self._view = TranscriptView(session.transcript, session.host.clock.now, id="transcript")
        self._experts = LinesView(id="experts")
        self._experts.can_focus = False
        self._panel = AskPanel(session.host.workspace, self._typed_on, self.to_composer)
        self._names = Bar(id="names")
        self.composer = Composer(typed, session.host.workspace, enter=self._sent, choose=self._choosing, id="composer")
        self._standing = Bar(id="standing")
        self._chosen: str | None = None
        self._found_by = ""
        """What was typed when it was chosen."""
        self._refuses = False
        """Whether words for a no are being typed."""
        self._typed_at = 0.0

    def compose(self) -> ComposeResult:
        yield self._view
        yield self._experts
        yield self._panel
        yield self._names
        yield self.composer
        yield self._standing

    def on_mount(self) -> None:
        """Begin with what there is."""
        self.screen.set_focus(self.composer)
        self._typed_at = time.monotonic()  # who has opened it may still be typing: what asks takes no keys at once
        self.update()

    def on_resize(self) -> None:
        """What asks has a share of the height."""
        self._panel.draw()

    # --- what is shown --------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Show how things are now."""
        session = self.session
        is_choosing = session.expert_key is None and session.job_id is None
        self._experts.display, self._view.display = is_choosing, not is_choosing
        self.composer.chooses = is_choosing
        if is_choosing:
            self._show_experts()
        else:
            if self._view.items is not session.transcript:
                self._view.replace(session.transcript)
            else:
                self._view.update()
            if session.coming is not None:
                self._view.prepare(session.coming)
        if self._panel.show(session) and self._panel.takes_keys:
            self._give_keys()
        elif not self._panel.is_shown and self._panel.has_focus:
            self.to_composer()
        self._refuses = self._refuses and self._panel.takes_keys
        self._say_what_enter_does()
        self.show_standing()

    def show_standing(self) -> None:
        """The line below."""
        session, width = self.session, max(20, self.size.width - 2)
        live = LiveState() if session.is_reading else session.transcript.live  # a part would give wrong totals
        line = standing_line(live, session.state, session.host.clock.now(), width, session.began)
        self._standing.set(line)

    def tick(self) -> None:
        """A second has passed."""
        if self.session.is_busy:
            if self.session.transcript.tick():
                self._view.update()
            self.show_standing()

    def _give_keys(self) -> None:
        """The keys are for what asks once nothing has been typed for a moment; a text that is begun goes first."""
        if self._panel.has_focus or not self._panel.takes_keys or self._refuses or self.composer.text:
            return
        left = _QUIET - (time.monotonic() - self._typed_at)
        if left > 0:
            self.set_timer(left, self._give_keys)
        else:
            self._panel.take_focus()

    def _say_what_enter_does(self) -> None:
        self.composer.placeholder = hint_of(self.session, refuses=self._refuses)

    def _offered(self) -> list[Expert]:
        """The Experts that what is typed now finds; of those that other words found none stays chosen."""
        experts = filtered(self.session.host.experts.all(), self.composer.text)
        keys = [one.key for one in experts]
        if self._chosen not in keys or self._found_by != self.composer.text:
            self._chosen = keys[0] if keys else None
        self._found_by = self.composer.text
        return experts

    def _show_experts(self) -> None:
        experts = self._offered()
        width = max(30, self.screen.size.width - 2)
        head: list[Line] = [(), (Span("  Choose an Expert", "strong"),), ()]
        lines = [*head, *expert_lines(experts, self._chosen, width)]
        if not experts:
            lines.append((Span("  none is called so", "dim"),))
        self._experts.show(lines)
        at = [one.key for one in experts].index(self._chosen) + len(head) if self._chosen is not None else 0
        self._experts.scroll_to(y=max(0, at - self._experts.size.height + 2), animate=False)

    # --- what a person does ---------------------------------------------------------------------------------------

    @on(Composer.Changed)
    def _typing(self) -> None:
        self._typed_at = time.monotonic()
        if self.session.expert_key is None and self.session.job_id is None:
            self._show_experts()

    def _choosing(self, step: int) -> None:
        keys = [one.key for one in self._offered()]
        if self._chosen is not None:
            self._chosen = keys[max(0, min(keys.index(self._chosen) + step, len(keys) - 1))]
            self._show_experts()

    @on(Composer.Completing)
    def _completing(self, message: Composer.Completing) -> None:
        self._names.display = bool(message.names)
        if message.names:
            self._names.set((Span("Tab ", "person"), *one("   ".join(message.names), self.size.width - 8, "dim")))

    def action_other(self) -> None:
        """To what asks, if it takes keys; else to what has happened, and back to the input. A file that is being named
        is completed."""
        if self.composer.has_focus and self.composer.complete():
            return
        if (self._panel.takes_keys or self._panel.scrolls) and not self._panel.has_focus and not self._refuses:
            self._panel.take_focus()
        elif self.composer.has_focus and self._view.display:
            self.screen.set_focus(self._view)
        else:
            self.to_composer()

    def scroll_pages(self, pages: int) -> None:
        """Show what is further up or down: of what asks while it has the keys, else of what has happened."""
        if self._panel.has_focus:
            self._panel.scroll_pages(pages)
        else:
            self._view.scroll_relative(y=pages * max(1, self._view.size.height - 2), animate=False)

    def to_composer(self) -> None:
        """The next key is for the input."""
        self.screen.set_focus(self.composer)

    def interrupt(self) -> None:
        """Stop what is at work; if nothing is, leave what was being decided."""
        if self._refuses:
            self._refuses = False
            self._panel.take_focus()
            self._say_what_enter_does()
        else:
            self.session.interrupt()

    def _sent(self, text: str) -> None:
        session = self.session
        if (session.is_busy and session.asking is None) or (
            session.is_elsewhere and text.strip() and session.resume_from is None
        ):
            return
        if session.is_unread:
            session.follow()
            return
        if session.expert_key is None and session.job_id is None:
            self._offered()
            self.choose(self._chosen)
            return
        asking = session.open_question
        if self._refuses and asking is not None:
            text = refusal(text)
        elif asking is not None and asking.call_digest:
            self._panel.take_focus()
            return
        elif asking is not None:
            text = chosen(asked_by(asking), text.strip())
        if not text.strip():
            if session.resume_from is None:
                self.resume()
            return
        self.composer.sent(keep=asking is None)
        session.send(text)

    def choose(self, key: str | None) -> None:
        """This Expert is to work in this tab."""
        if key is not None:
            self.session.expert_key = key
            self.composer.sent(keep=False)
            self.session.transcript.greet(self.session.host.experts.all().get(key))
            self.update()
            self.post_message(self.Chosen())

    def resume(self) -> None:
        """Continue what is stopped; if calls are open, a person looks at them first."""
        if self.session.unsettled and not self._panel.has_focus:
            self._panel.take_focus()
        elif self.session.is_elsewhere or self.session.is_unread:
            self.session.follow()
        elif self.session.resumption is not None and self.session.resumption.needs is None:
            self.session.resume()

    @on(AskPanel.Answered)
    def _answered(self, message: AskPanel.Answered) -> None:
        self.session.send(message.text)
        self._panel.hand_over()

    @on(AskPanel.Refusing)
    def _refusing(self) -> None:
        self._refuses = True
        self._panel.hand_over()
        self._say_what_enter_does()

    def _typed_on(self, key: events.Key) -> None:
        self.composer.post_message(key)

    @on(AskPanel.Settled)
    def _settled(self) -> None:
        self.session.resume()
        self._panel.hand_over()

    @on(TranscriptView.Typed)
    def _typed_elsewhere(self, message: TranscriptView.Typed) -> None:
        self.to_composer()
        self.composer.insert(message.text)

    @property
    def view(self) -> TranscriptView:
        """What has happened."""
        return self._view
