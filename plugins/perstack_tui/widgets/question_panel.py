"""A question, approval or unsettled call, shown and answered in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget
from typing_extensions import override

from perstack.core.base.text import count
from perstack.core.jobs.answer_reading import DENIES
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack_tui.session import Session
from perstack_tui.view.questions import (
    CHOSEN,
    REFUSING_HINT,
    SETTLEMENTS,
    UNSETTLED_HINT,
    answer_of_key,
    question_hint,
    question_lines,
    unsettled_lines,
)
from perstack_tui.view.styled_text import Line, Span, wrap
from perstack_tui.widgets.lines import LinesView

_FILE_CHECK_INTERVAL_S = 1.0  # minimum seconds until the file of an edit is read again
_MAX_HEIGHT_SHARE = 0.6  # maximum share of a tab's height; the transcript keeps the rest


class AskPanel(Vertical, can_focus=True, can_focus_children=False):
    """The question panel.

    While it has the focus, one key decides an approval; questions are answered in the input below.
    """

    DEFAULT_CSS = """
    AskPanel {
        display: none;
        height: auto;
        border-left: thick $ask;
        padding: 0 0 0 1;
        margin: 0 1;
        & LinesView { height: auto; }
        & .hint { margin: 1 0 0 0; }
        &:focus { border-left: thick $primary; }
    }
    """

    @dataclass
    class Answered(Message):
        """An answer given by a key."""

        text: str

    @dataclass
    class Editing(Message):
        """The user wants to edit the arguments of the call before it runs."""

        question: OpenQuestion

    class Refusing(Message):
        """The user denies a call, and may add a reason."""

    class Settled(Message):
        """The unsettled calls are settled, so that the Job can be resumed."""

    def __init__(self, workspace: Path, forward_key: Callable[[events.Key], None], leave: Callable[[], None]) -> None:
        """Pass a key after the deciding one to `forward_key`; give the focus away with `leave`."""
        super().__init__()
        self._forward_key = forward_key
        self._leave = leave
        self._is_leaving = self._waits_for_keys = False
        self._workspace = workspace
        self._session: Session | None = None
        self._question: OpenQuestion | None = None
        self._chosen_index = 0
        self._has_decided = False  # True once a key has decided: further keys are not for this question
        self._visible_lines = 0  # number of question lines visible at once
        # the question's lines once the last of them has been visible; None before
        self._read_lines: list[Line] | None = None
        self._notes: Sequence[str] = ()  # lines below the hint
        self._is_refused = False  # True while the reason for a no is typed
        self._cached_lines: list[Line] = []  # the question's lines, made for `_cache_key` at `_cached_at`
        self._cache_key: tuple[str, str, int] | None = None
        self._cached_at = 0.0
        self._chosen_line = 0  # the first line of the chosen open call
        self._lines = LinesView()
        self._hint = LinesView(classes="hint")

    @override
    def compose(self) -> ComposeResult:
        yield self._lines
        yield self._hint

    @property
    def is_shown(self) -> bool:
        return bool(self.display)

    @property
    def scrolls(self) -> bool:
        """True if the question has more lines than are visible."""
        return self.is_shown and self._lines.whole_height() > self._visible_lines

    @property
    def takes_keys(self) -> bool:
        """True if the question is answered with keys instead of text."""
        return self.is_shown and (self._question is None or bool(self._question.call_digest))

    def show(self, job_session: Session, notes: Sequence[str] = ()) -> bool:
        """Show what the session waits for, with `notes` below the hint. Return whether it is new."""
        previous = (self._question, self.is_shown)
        self._notes = notes
        self._session, self._question = job_session, job_session.open_question
        is_unsettled = job_session.resume_from is None and bool(job_session.unsettled) and not job_session.is_busy
        self.display = self._question is not None or is_unsettled
        is_new = (self._question, self.is_shown) != previous
        if is_new:
            self._has_decided = self._is_refused = False
            self._chosen_index = 0
            self._lines.scroll_to(y=0, animate=False)
        self.draw()
        return self.is_shown and is_new

    def draw(self) -> None:
        """Draw the question within the available height."""
        if self._session is None or not self.is_shown:
            return
        width = max(20, (self.size.width or self.screen.size.width - 4) - 3)
        if self._question is not None:
            lines = self._question_lines(self._question, self._session.spent, width)
            hints = self._question_hints(self._question, lines, width)
        else:
            lines = unsettled_lines(self._session.unsettled, self._session.settlements, self._chosen_index, width)
            hints = self._fit_hints(UNSETTLED_HINT, lines, width)
        self._chosen_line = next((index for index, line in enumerate(lines) if line and line[0].text == CHOSEN), 0)
        self._lines.show(lines)
        self._lines.styles.height = min(len(lines), self._visible_lines)
        self._hint.show([(Span(text, "dim"),) for text in hints])
        self._hint.styles.height = len(hints)

    def _question_hints(self, question: OpenQuestion, lines: list[Line], width: int) -> list[str]:
        """Return the hint lines of a question. A call can be approved only once its last line has been visible."""
        hints = self._fit_hints(question_hint(question), lines, width)
        if len(lines) <= self._visible_lines:
            self._read_lines = lines
        return hints if self._has_read else self._fit_hints(question_hint(question, is_whole=False), lines, width)

    def _on_scrolled(self) -> None:
        """Allow a yes once the end has been visible after scrolling by the person."""
        if (
            self._lines.scroll_offset.y + self._visible_lines >= len(self._cached_lines)
            and self._read_lines != self._cached_lines
        ):
            self._read_lines = self._cached_lines
            self.draw()

    @property
    def _has_read(self) -> bool:
        return self._question is None or not self._question.call_digest or self._read_lines == self._cached_lines

    def _question_lines(self, question: OpenQuestion, spent: str, width: int) -> list[Line]:
        """Return the question's lines, made again after a second: the file of an edit may have changed."""
        cache_key, now = (question.id, spent, width), time.monotonic()
        if cache_key != self._cache_key or now - self._cached_at > _FILE_CHECK_INTERVAL_S:
            self._cached_lines, self._cache_key, self._cached_at = (
                question_lines(question, self._workspace, width, spent),
                cache_key,
                now,
            )
        return self._cached_lines

    def _fit_hints(self, hint: str, lines: Sequence[Line], width: int) -> list[str]:
        """Return the hint lines, which are always visible, and set the number of visible lines of the question."""
        is_away = self.screen.focused is not self  # not `has_focus`, which changes only after `on_focus`
        prefix = "Tab, then " if is_away else ""
        hint = prefix + hint if self.takes_keys else f"{hint}, then Enter"
        hint = REFUSING_HINT if self._is_refused else hint
        hint_lines = [line for text in (hint, *self._notes) for line in wrap(text, width)]
        height = self.parent.size.height if isinstance(self.parent, Widget) else 0
        max_lines = int((height or self.screen.size.height) * _MAX_HEIGHT_SHARE) - 1
        if len(lines) > max_lines - len(hint_lines) and not self._is_refused:
            hint_lines += wrap(f"{prefix}{self._scroll_keys} show all {count(len(lines), 'line')}", width)
        self._visible_lines = max(1, max_lines - len(hint_lines))
        return hint_lines

    @property
    def _scroll_keys(self) -> str:
        return "PgUp, PgDn" if self._question is None else "Up, Down, PgUp, PgDn"

    def on_resize(self) -> None:
        self.draw()

    def take_focus(self) -> None:
        """Take the focus at once, so that the next key goes here."""
        self._has_decided = self._is_leaving = self._is_refused = False
        self.screen.set_focus(self)
        self.draw()

    def return_focus(self) -> None:
        """Give the focus to the input after the queued keys are handled."""
        self._is_leaving = True
        if not self._waits_for_keys:
            self._leave_after_keys()

    def _leave_after_keys(self) -> None:
        self._waits_for_keys = self._is_leaving and bool(self.message_queue_size)
        if self._waits_for_keys:
            self.call_later(self._leave_after_keys)
        elif self._is_leaving:
            self._is_leaving = False
            self._leave()

    def on_focus(self) -> None:
        """Update the hint, which depends on the focus."""
        self.draw()

    def on_blur(self) -> None:
        """Update the hint, which depends on the focus."""
        self.draw()

    def scroll_pages(self, pages: int) -> None:
        self._lines.scroll_relative(y=pages * max(1, self._visible_lines - 1), animate=False)
        self.call_after_refresh(self._on_scrolled)

    def on_key(self, key: events.Key) -> None:
        """Decide an approval or settle a call by one key."""
        is_typed = key.is_printable or key.key in ("enter", "backspace")
        if is_typed and (self._has_decided or not self.takes_keys):
            self._forward_key(events.Key(key.key, key.character))
            self.return_focus()
        elif key.key in ("up", "down") and self._question is not None:
            self._lines.scroll_relative(y=-1 if key.key == "up" else 1, animate=False)
            self.call_after_refresh(self._on_scrolled)
        elif key.key in ("home", "end") and self._question is not None:
            self._lines.scroll_to(y=0 if key.key == "home" else self._lines.whole_height(), animate=False)
            self.call_after_refresh(self._on_scrolled)
        elif self._question is not None and self._question.call_digest:
            self._decide(self._question, key.character or "")
        elif self._question is None and self._session is not None:
            self._settle(self._session, key.key)
        else:
            return
        key.stop()

    def _decide(self, question: OpenQuestion, key: str) -> None:
        if key in ("e", "E") and self._has_read:
            self.post_message(self.Editing(question))
            return
        answer = answer_of_key(question, key) if self._has_read else None
        self._has_decided = answer is not None or key in ("n", "N")
        if answer is not None:
            self.post_message(self.Answered(answer))
        elif self._has_decided:
            self._is_refused = True
            self.draw()
            self.post_message(self.Refusing())

    def _settle(self, job_session: Session, key: str) -> None:
        calls = job_session.unsettled
        if key in ("up", "down"):
            self._chosen_index = (self._chosen_index + (1 if key == "down" else -1)) % len(calls)
        elif key in SETTLEMENTS:
            job_session.settlements[calls[self._chosen_index].key] = SETTLEMENTS[key][0]
            self._chosen_index = min(self._chosen_index + 1, len(calls) - 1)
        elif key == "enter":
            self._has_decided = True
            self.post_message(self.Settled())
        self.draw()
        if key != "enter":
            self._lines.scroll_to(y=max(0, self._chosen_line - self._visible_lines // 2), animate=False)


def refusal(reason: str) -> str:
    """Return the answer no, with the reason, which the model reads, if there is one."""
    return f"{DENIES}: {reason}" if reason.strip() else DENIES
