"""What waits for a person, shown and answered in place."""

from __future__ import annotations

from pathlib import Path

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from perstack.core.answers import DENIES
from perstack.core.runs.asking import OpenQuestion
from perstack.frontends.tui.session import Session
from perstack.frontends.tui.view.asking import (
    SETTLEMENTS,
    UNSETTLED_HINT,
    asking_hint,
    asking_lines,
    decision,
    unsettled_lines,
)
from perstack.frontends.tui.view.spans import Line, Span, wrap
from perstack.frontends.tui.widgets.lines import LinesView


class AskPanel(Vertical, can_focus=True, can_focus_children=False):
    """An approval is given by one key while this has the focus; a question is answered below it."""

    DEFAULT_CSS = """
    AskPanel {
        display: none;
        height: auto;
        max-height: 60%;
        border-left: thick $ask;
        padding: 0 0 0 1;
        margin: 0 1;
        & LinesView { height: auto; max-height: 100%; }
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

    class TypedOn(Message):
        """A key after the one that decided: it is meant for the input."""

        def __init__(self, key: events.Key) -> None:
            super().__init__()
            self.key = key

    class Settled(Message):
        """The open calls are as they were said to be: the Job is to be resumed."""

    def __init__(self, workspace: Path) -> None:
        super().__init__()
        self._workspace = workspace
        self._session: Session | None = None
        self._asking: OpenQuestion | None = None
        self._chosen = 0
        self._has_decided = False
        """Whether a key has decided: those that were typed on decide nothing more."""
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
    def takes_keys(self) -> bool:
        """Whether it is answered by a key, rather than by words."""
        return self.is_shown and (self._asking is None or bool(self._asking.call_digest))

    def show(self, session: Session) -> bool:
        """What a Job waits for, if anything. Whether that is news."""
        before = (self._asking, self.is_shown)
        self._session, self._asking = session, session.open_question
        is_unsettled = session.resume_from is None and bool(session.unsettled) and not session.is_busy
        self.display = self._asking is not None or is_unsettled
        self._draw()
        is_news = (self._asking, self.is_shown) != before
        if is_news:
            self._has_decided, self._chosen = False, 0
        return self.is_shown and is_news

    def _draw(self) -> None:
        if self._session is None or not self.is_shown:
            return
        width = max(20, (self.size.width or self.screen.size.width - 4) - 3)
        if self._asking is not None:
            lines: list[Line] = asking_lines(self._asking, self._workspace, width)
            hint = asking_hint(self._asking)
        else:
            lines = unsettled_lines(self._session.unsettled, self._session.settled, self._chosen, width)
            hint = UNSETTLED_HINT
        self._lines.show(lines)
        self._lines.styles.height = len(lines)
        is_away = self.screen.focused is not self  # `has_focus` follows only after `on_focus`
        away = "Tab, then " if is_away and self.takes_keys else ""
        texts = wrap("Esc takes it back" if self._has_decided else away + hint, width)
        self._hint.show([(Span(text, "dim"),) for text in texts])
        self._hint.styles.height = len(texts)

    def on_resize(self) -> None:
        """Lines are broken anew."""
        self._draw()

    def take_focus(self) -> None:
        """Have the keys at once: the next one is for this."""
        self._has_decided = False
        self.screen.set_focus(self)
        self._draw()

    def on_focus(self) -> None:
        self._draw()

    def on_blur(self) -> None:
        self._draw()

    def on_key(self, event: events.Key) -> None:
        """One key decides on a call, or says what became of one."""
        if self._has_decided and (event.is_printable or event.key in ("enter", "backspace")):
            self.post_message(self.TypedOn(events.Key(event.key, event.character)))
        elif event.key in ("up", "down", "pageup", "pagedown") and self._asking is not None:
            step = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10}[event.key]
            self._lines.scroll_relative(y=step, animate=False)
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
        self._draw()


def refusal(words: str) -> str:
    """A no, with a text for the model if there are any."""
    return f"{DENIES}: {words}" if words.strip() else DENIES
