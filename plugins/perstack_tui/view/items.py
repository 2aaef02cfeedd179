"""The items of a Run's branch: texts, tool calls with their results, and notes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from pydantic import JsonValue
from typing_extensions import override

from perstack.core.base.text import count, duration
from perstack.doors.shared.activity import CallActivity, RunActivity, whole_seconds
from perstack.doors.shared.call_diffs import edit_from_args
from perstack.doors.shared.screen import StyledText
from perstack.doors.shared.text import brief, cells, shorten
from perstack_tui.view.styled_text import Line, Span, Style, clean, one_line_of, wrap, wrap_line, wrap_stable
from perstack_tui.view.tree import RenderContext, TreeBranch, TreeItem

MAX_RESULT_LINES = 400  # maximum lines of an unfolded result; the log has all of it
_MAX_TEXT_LINES = 5_000  # maximum lines of a model's text
_FOLDED_THOUGHT_LINES = 2
_FOLDED_CHANGE_LINES = 12  # maximum lines of a folded edit
_MAX_TEXT_CHARS = 200_000  # maximum characters of one text that are processed
# finds syntax that rendering would change
_MARKDOWN = re.compile(r"[*_`#|~]|^\s*(?:[-+]|\d+[.)])\s|\]\(", re.MULTILINE)


_MARKS: dict[Style, str] = {"good": "✓", "bad": "✗", "warn": "!", "ask": "?"}

# keys shown of JSON results, the most important first
_TEXT_KEYS = (
    "error",
    "output",
    "stdout",
    "content",
    "text",
    "message",
    "result",
)


class MessageItem(TreeItem):
    """A text: the user's query, the model's reply, or its reasoning."""

    __slots__ = ("has_gap", "is_markdown", "mark", "style", "text")

    def __init__(
        self, text: str, *, mark: str = "", style: Style = "", is_thought: bool = False, is_markdown: bool = False
    ) -> None:
        """Show the text, folded at first if `is_thought`.

        With `is_markdown` and without a style, render its Markdown.
        """
        super().__init__()
        self.is_markdown = is_markdown and _MARKDOWN.search(text) is not None
        self.text = text[:_MAX_TEXT_CHARS]
        self.mark = mark
        self.has_gap = False  # True if an empty line separates the text from the previous item
        self.style: Style = "dim" if is_thought else style
        self.is_open = not is_thought

    @property
    @override
    def can_fold(self) -> bool:  # type: ignore[override]  # a class constant in other items
        return self.style == "dim"

    @override
    def whole_text(self) -> str:
        return f"{self.mark} {self.text}"

    @override
    def render(self, context: RenderContext) -> list[Line]:
        lines = self._lines(context.width - 2)
        hidden_count = len(lines) - (_MAX_TEXT_LINES if self.is_open else _FOLDED_THOUGHT_LINES)
        if hidden_count > 0:
            lines = [*lines[:-hidden_count], (Span(f"… {count(hidden_count, 'more line')}", self.style),)]
        first = f"{self.mark} " if self.mark else "  "
        body: list[Line] = [
            (Span("  " if index else first, "person" if self.mark else ""), *line) for index, line in enumerate(lines)
        ]
        return [(), *body, ()] if self.has_gap else [*body, ()]

    def _lines(self, width: int) -> list[Line]:
        text = self.text.strip("\n")
        if not self.is_markdown:
            return [(Span(line, self.style),) for line in wrap(text, width)]
        from perstack.doors.shared.markdown import render  # imports the libraries that render Markdown

        return [tuple(map(_to_span, line)) for line in render(text, width)]


def _to_span(part: str | StyledText) -> Span:
    if isinstance(part, str):
        return Span(clean(part))
    style = part.style
    return Span(clean(part.text), "expert" if "fg" in style else "strong" if "bold" in style else "")


class Stream(TreeItem):
    """A streaming text. Lines that further text cannot change are broken only once, so that long texts stay quick."""

    __slots__ = ("_final_lines", "_open_text", "_pieces", "_width", "has_gap", "is_thought")

    def __init__(self, *, is_thought: bool) -> None:
        super().__init__()
        self.is_thought = is_thought
        self.has_gap = False
        self._pieces: list[str] = []
        self._final_lines: list[Line] = []  # the final lines
        self._open_text = ""  # the text after the final lines
        self._width: int = 0

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @override
    def whole_text(self) -> str:
        return self.text

    def append(self, delta: str) -> None:
        text = clean(delta)
        self._pieces.append(text)
        self._open_text += text
        self.mark_changed()

    @override
    def render(self, context: RenderContext) -> list[Line]:
        width = max(1, context.width - 2)
        if width != self._width:
            self._final_lines.clear()
            self._open_text = self.text
            self._width = width
        *complete, partial = self._open_text.split("\n")
        for text in complete:
            self._final_lines += self._styled(wrap_line(text.rstrip(), width))
        final, self._open_text = wrap_stable(partial, width)
        self._final_lines += self._styled(final)
        lines: list[Line] = [*self._final_lines, *self._styled(wrap_line(self._open_text, width)), ()]
        return [(), *lines] if self.has_gap else lines

    def _styled(self, texts: Iterable[str]) -> Iterator[Line]:
        style: Style = "dim" if self.is_thought else ""
        return ((Span("  "), Span(text, style)) for text in texts)


class CallItem(TreeItem):
    """A tool call: its arguments, duration and result."""

    __slots__ = ("_diff_args", "_has_line_numbers", "activity", "asks_later", "diff_lines")

    can_fold = True

    def __init__(self, call_activity: CallActivity) -> None:
        super().__init__()
        self.activity = call_activity
        self.asks_later = False  # True if the approval is asked only after the other delegates have stopped
        self._has_line_numbers = call_activity.result is not None  # True if the diff has the file's line numbers
        # names of the arguments that the diff shows, and the diff's lines
        self._diff_args, self.diff_lines = _diff_of(call_activity)

    @property
    def _wait_text(self) -> str:
        if self.activity.rule is not None:
            moment = " when the other delegates have stopped" if self.asks_later else ""
            return f"needs your approval{moment} ({self.activity.rule})"
        return "has no result: it was interrupted" if self.activity.is_interrupted else ""

    @override
    def whole_text(self) -> str:
        part, activity = self.activity.part, self.activity
        args = "" if part is None else f"{brief(part)}\n{json.dumps(part.args, ensure_ascii=False)}"
        parts = (activity.name, args, self._wait_text, activity.progress, *self.diff_lines, activity.result)
        return "\n".join(text[:_MAX_TEXT_CHARS] for text in parts if text)

    @override
    def render(self, context: RenderContext) -> list[Line]:
        if self.activity.result is not None and not self._has_line_numbers:
            self._has_line_numbers = True
            self._diff_args, self.diff_lines = _diff_of(self.activity)
        return [self._head(context), *self._lines_below(context)]

    def _head(self, context: RenderContext) -> Line:
        activity, is_done = self.activity, self.activity.result is not None
        style: Style = "bad" if activity.is_error else "ask" if self._wait_text else "call"
        mark = "✗" if activity.is_error else "?" if self._wait_text else "●" if is_done else "○"
        time = self._duration_text(context.now)
        free_cells = max(4, context.width - 3 - cells(activity.name) - len(time) - 1)
        arguments = shorten(self._argument_text(), free_cells) if free_cells > 4 else ""
        name = shorten(activity.name, max(4, context.width - 3 - len(time)))
        gap = " " * max(1, context.width - 2 - cells(name) - 1 - cells(arguments) - len(time))
        return (Span(f"{mark} ", style), Span(name, "strong"), Span(" "), Span(arguments), Span(gap), Span(time, "dim"))

    def _argument_text(self) -> str:
        if self.activity.part is None:
            return ""
        args = {name: value for name, value in self.activity.part.args.items() if name not in self._diff_args}
        return brief(self.activity.part.model_copy(update={"args": args}) if self._diff_args else self.activity.part)

    def _duration_text(self, now: int) -> str:
        if self.activity.began is not None:
            return whole_seconds(now - self.activity.began) if now - self.activity.began >= 1000 else ""
        return duration(self.activity.took_ms) if self.activity.took_ms else ""

    def _lines_below(self, context: RenderContext) -> Iterator[Line]:
        width = context.width - 4
        if self._wait_text:
            yield _indented_line(one_line_of(self._wait_text, width, "ask"))
        if self.activity.began is not None and self.activity.progress:
            yield _indented_line(one_line_of(self.activity.progress, width, "dim"))
        if not self.activity.is_error and not self._wait_text:
            yield from self._shown_diff(width)
        if self.is_open:
            yield from self._all_arguments(width)
        elif self.activity.result is not None and (
            self.activity.is_error or not (self.diff_lines or self.activity.kind in ("todo", "clearTodo"))
        ):
            first = summary_line(self.activity.result)
            if first:
                yield _indented_line(one_line_of(first, width, "bad" if self.activity.is_error else "dim"))

    def _shown_diff(self, width: int) -> Iterator[Line]:
        max_lines = MAX_RESULT_LINES if self.is_open else _FOLDED_CHANGE_LINES
        for text in self.diff_lines[:max_lines]:
            yield (Span("    "), *diff_line(text, width))
        if len(self.diff_lines) > max_lines:
            yield (Span("    "), Span(f"… {count(len(self.diff_lines) - max_lines, 'more line')}", "dim"))

    def _all_arguments(self, width: int) -> Iterator[Line]:
        for name, value in () if self.activity.part is None else self.activity.part.args.items():
            if name not in self._diff_args:
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                yield from _text_block(f"{name}: {text}", width, "dim")
        if self.activity.result is not None:
            yield from _text_block(self.activity.result, width, "bad" if self.activity.is_error else "")


class NoteItem(TreeItem):
    """A note of the host with a mark, such as a retry, a limit or an answer."""

    __slots__ = ("style", "text", "word")

    def __init__(self, word: str, text: str, style: Style = "warn") -> None:
        super().__init__()
        self.word = word
        self.text = text
        self.style: Style = style

    @override
    def whole_text(self) -> str:
        return f"{self.word} {self.text}"

    @override
    def render(self, context: RenderContext) -> list[Line]:
        texts = wrap(self.text, max(8, context.width - 3 - cells(self.word)))[:MAX_RESULT_LINES]
        first: Line = (
            Span(f"{_MARKS.get(self.style, '·')} ", self.style),
            Span(f"{self.word} ", self.style),
            Span(texts[0] if texts else ""),
        )
        pad = " " * (3 + cells(self.word))
        return [first, *((Span(pad), Span(text)) for text in texts[1:])]


class ActivityItem(TreeItem):
    """The activity of a Run that has no other item to show it."""

    __slots__ = ("since", "words")

    def __init__(self, words: str, since: int) -> None:
        """Show the words; `since` is in milliseconds since 1970."""
        super().__init__()
        self.words = words
        self.since = since

    @override
    def render(self, context: RenderContext) -> list[Line]:
        duration_ms = context.now - self.since
        text = f"{self.words}  {whole_seconds(duration_ms)}" if duration_ms >= 1000 else self.words
        return [(Span("· ", "dim"), *one_line_of(text, context.width - 2, "dim"))]


_STYLE_BY_STATE: dict[str, Style] = {"completed": "good", "failed": "bad", "stopped": "warn", "asks": "ask"}


class RunBranch(TreeBranch):
    """A Run's branch; a delegate's branch has a head line."""

    __slots__ = ("run",)

    def __init__(self, activity: RunActivity | None = None) -> None:
        """Start without items; `activity` is that of a delegate, None for the root."""
        super().__init__()
        self.run = activity

    @override
    def whole_text(self) -> str:
        return "" if self.run is None else f"{self.run.label} {self.run.query}"

    @override
    def render(self, context: RenderContext) -> list[Line]:
        activity = self.run
        if activity is None:
            return []
        sign = "▾" if self.is_open else "▸"
        end = context.now if activity.ended is None else activity.ended
        time = (
            "" if activity.started is None or end - activity.started < 1000 else whole_seconds(end - activity.started)
        )
        details = ", ".join(part for part in (count(activity.steps, "step") if activity.steps else "", time) if part)
        query = shorten(activity.query, max(4, context.width - 6 - cells(activity.label) - len(details)))
        style = _STYLE_BY_STATE.get(activity.state, "call")
        mark = f"{_MARKS[style]} " if style in _MARKS else ""
        gap = " " * max(1, context.width - 3 - cells(mark + activity.label) - cells(query) - len(details))
        return [
            (
                Span(f"{sign} ", "rule"),
                Span(mark, style),
                Span(activity.label, "expert"),
                Span(" "),
                Span(query, "dim"),
                Span(gap),
                Span(details, "dim"),
            )
        ]


def _diff_of(call_activity: CallActivity) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the arguments that a diff shows, and the diff's lines; both empty without a diff."""
    part = call_activity.part
    if part is None:
        return (), ()
    change = edit_from_args(part.tool_name, part.args, call_activity.result)
    if change.lines:
        return change.arguments, change.lines[2:]  # without the two lines of paths: the head line shows the path
    text = part.args.get("text")
    if part.tool_name != "writeTextFile" or not isinstance(text, str):
        return (), ()
    return ("text",), tuple(f"+{line}" for line in text[:_MAX_TEXT_CHARS].removesuffix("\n").split("\n"))


def summary_line(result: str) -> str:
    """Return the most informative line of a result; for JSON, its text or its values."""
    text = result.strip()
    if text.startswith("{") and len(text) <= _MAX_TEXT_CHARS:
        try:
            parsed: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            text = next((field for name in _TEXT_KEYS if isinstance(field := parsed.get(name), str)), None) or " ".join(
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in parsed.values()
            )
    return next((line for line in text.split("\n") if line.strip()), "")


def diff_line(text: str, width: int) -> Line:
    style: Style = "add" if text.startswith("+") else "remove" if text.startswith("-") else "dim"
    return (Span(_shorten_if_needed(text, width), style),)


def _shorten_if_needed(text: str, width: int) -> str:
    line = clean(text).replace("\n", " ")
    return line if cells(line) <= width else shorten(line, width)


def _indented_line(line: Line) -> Line:
    return (Span("  └ ", "rule"), *line)


def _text_block(text: str, width: int, style: Style) -> Iterator[Line]:
    texts = wrap(text[:_MAX_TEXT_CHARS].strip("\n"), width)
    for line in texts[:MAX_RESULT_LINES]:
        yield (Span("    "), Span(line, style))
    if len(texts) > MAX_RESULT_LINES:
        yield (Span("    "), Span(f"… {count(len(texts) - MAX_RESULT_LINES, 'more line')}", "dim"))
