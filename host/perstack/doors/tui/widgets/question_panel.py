"""What waits for a person, shown and answered in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from perstack.core.answers import DENIES
from perstack.core.runs.asking import OpenQuestion
from perstack.frontends.shared.words import count
from perstack.frontends.tui.session import Session
from perstack.frontends.tui.view.asking import (
    CHOSEN,
    SETTLEMENTS,
    UNSETTLED_HINT,
    asking_hint,
    asking_lines,
    decision,
    unsettled_lines,
)
from perstack.frontends.tui.view.spans import Line, Span, wrap
from perstack.frontends.tui.widgets.lines import LinesView

_SHARE = 0.6
"""Of the height of a tab: the rest is for what has happened."""


class AskPanel(Vertical, can_focus=True, can_focus_children=False):
    """An approval is given by one key while this has the focus; a question is answered below it."""

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

    class Answered(Message):
        """What was said by a key."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Refusing(Message):
        """A no, to which words may be added."""

    class Settled(Message):
        """The open calls are as they were said to be: the Job is to be resumed."""

    def __init__(self, workspace: Path, typed_on: Callable[[events.Key], None], leave: Callable[[], None]) -> None:
        """`typed_on` takes a key after the one that decided, which is meant for the input, and `leave` gives the input
        the keys: at once, as those that follow may be here already."""
        super().__init__()
        self._typed_on = typed_on
        self._leave = leave
        self._is_leaving = self._is_in_turn = False
        self._workspace = workspace
        self._session: Session | None = None
        self._asking: OpenQuestion | None = None
        self._chosen = 0
        self._has_decided = False
        """Whether a key has decided: those that were typed on decide nothing more."""
        self._room = 0
        """Lines of what is asked that are seen at once."""
        self._at_chosen = 0
        """The line at which the chosen one of the open calls begins."""
        self._lines = LinesView()
        self._hint = LinesView(classes="hint")

    def compose(self) -> ComposeResult:
        yield self._lines
        yield self._hint

    @property
    def is_shown(self) -> bool:
        """Whether anything waits."""
        return bool(self.display)

    @property
    def scrolls(self) -> bool:
        """Whether there is more of it than is seen at once."""
        return self.is_shown and self._lines.whole_height() > self._room

    @property
    def takes_keys(self) -> bool:
        """Whether it is answered by a key, rather than by words."""
        return self.is_shown and (self._asking is None or bool(self._asking.call_digest))

    def show(self, session: Session) -> bool:
        """What a Job waits for, if anything. Whether that is news."""
        before = (self._asking, self.is_shown)
        self._session, self._asking = session, session.open_question
        is_unsettled = session.resume_from is None and bool(session.unsettled) and not session.is_busy
        self.display = self._asking is not None or is_unsettled
        is_news = (self._asking, self.is_shown) != before
        if is_news:
            self._has_decided, self._chosen = False, 0
            self._lines.scroll_to(y=0, animate=False)
        self.draw()
        return self.is_shown and is_news

    def draw(self) -> None:
        """Show it in the room that there is."""
        if self._session is None or not self.is_shown:
            return
        width = max(20, (self.size.width or self.screen.size.width - 4) - 3)
        if self._asking is not None:
            lines: list[Line] = asking_lines(self._asking, self._workspace, width)
            hint = asking_hint(self._asking)
        else:
            lines = unsettled_lines(self._session.unsettled, self._session.settled, self._chosen, width)
            hint = UNSETTLED_HINT
        hints = self._hints(hint, lines, width)
        self._at_chosen = next((at for at, line in enumerate(lines) if line and line[0].text == CHOSEN), 0)
        self._lines.show(lines)
        self._lines.styles.height = min(len(lines), self._room)
        self._hint.show([(Span(text, "dim"),) for text in hints])
        self._hint.styles.height = len(hints)

    def _hints(self, hint: str, lines: Sequence[Line], width: int) -> list[str]:
        """What is answered how, which is always seen, and how the rest of what is asked comes into sight."""
        is_away = self.screen.focused is not self  # `has_focus` follows only after `on_focus`
        away = "Tab, then " if is_away else ""
        if self._has_decided:
            hint = "Esc takes it back"
        elif self.takes_keys:
            hint = away + hint
        found = wrap(hint, width)
        height = self.parent.size.height if isinstance(self.parent, Widget) else 0
        most = int((height or self.screen.size.height) * _SHARE) - 1
        if len(lines) > most - len(found):
            found += wrap(f"{away}{self._scrolls_by} show all {count(len(lines), 'line')}", width)
        self._room = max(1, most - len(found))
        return found

    @property
    def _scrolls_by(self) -> str:
        return "PgUp, PgDn" if self._asking is None else "Up, Down, PgUp, PgDn"

    def on_resize(self) -> None:
        """Lines are broken anew."""
        self.draw()

    def take_focus(self) -> None:
        """Have the keys at once: the next one is for this."""
        self._has_decided = self._is_leaving = False
        self.screen.set_focus(self)
        self.draw()

    def hand_over(self) -> None:
        """The input has the keys, as soon as it has those that came here before."""
        self._is_leaving = True
        if not self._is_in_turn:
            self._leave_in_turn()

    def _leave_in_turn(self) -> None:
        self._is_in_turn = self._is_leaving and bool(self.message_queue_size)
        if self._is_in_turn:
            self.call_later(self._leave_in_turn)
        elif self._is_leaving:
            self._is_leaving = False
            self._leave()

    def on_focus(self) -> None:
        self.draw()

    def on_blur(self) -> None:
        self.draw()

    def scroll_pages(self, pages: int) -> None:
        """Show what is further up or down of what is asked."""
        self._lines.scroll_relative(y=pages * max(1, self._room - 1), animate=False)

    def on_key(self, event: events.Key) -> None:
        """One key decides on a call, or says what became of one."""
        is_typed = event.is_printable or event.key in ("enter", "backspace")
        if is_typed and (self._has_decided or not self.takes_keys):
            self._typed_on(events.Key(event.key, event.character))
            self.hand_over()
        elif event.key in ("up", "down") and self._asking is not None:
            self._lines.scroll_relative(y=-1 if event.key == "up" else 1, animate=False)
        elif event.key in ("home", "end") and self._asking is not None:
            self._lines.scroll_to(y=0 if event.key == "home" else self._lines.whole_height(), animate=False)
        elif self._asking is not None and self._asking.call_digest:
            self._decide(self._asking, event.character or "")
        elif self._asking is None and self._session is not None:
            self._settle(self._session, event.key)
        else:
            return
        event.stop()

    def _decide(self, asking: OpenQuestion, key: str) -> None:
        found = decision(asking, key)
        self._has_decided = found is not None or key in ("n", "N")
        if found is not None:
            self.post_message(self.Answered(found))
        elif key in ("n", "N"):
            self.post_message(self.Refusing())

    def _settle(self, session: Session, key: str) -> None:
        calls = session.unsettled
        if key in ("up", "down"):
            self._chosen = (self._chosen + (1 if key == "down" else -1)) % len(calls)
        elif key in SETTLEMENTS:
            session.settled[calls[self._chosen].key] = SETTLEMENTS[key][0]
            self._chosen = min(self._chosen + 1, len(calls) - 1)
        elif key == "enter":
            self._has_decided = True
            self.post_message(self.Settled())
        self.draw()
        if key != "enter":
            self._lines.scroll_to(y=max(0, self._at_chosen - self._room // 2), animate=False)


def refusal(words: str) -> str:
    """A no, with a text for the model if there are any."""
    return f"{DENIES}: {words}" if words.strip() else DENIES
