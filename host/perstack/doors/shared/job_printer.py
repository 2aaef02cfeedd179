"""Print the events of a Job as lines: the model's texts in full, each call as a short line, and other events.

Lines are only appended. `perstack run` and the linear mode of the terminal program print them; below them, `run` draws
the unfinished block. On a terminal with cursor control the text is rendered as Markdown; otherwise it is printed as the
model wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from perstack.core.base.text import count, one_line
from perstack.core.messages.messages import ToolCallPart, text_of
from perstack.core.runs import display_events, events
from perstack.core.runs.log_rows import LogRow, run_label
from perstack.dataclass import dataclass
from perstack.doors.shared.activity import JobActivity, LogLine
from perstack.doors.shared.markdown import Block, Line, TextStream, lines_of
from perstack.doors.shared.screen import Screen, style_of
from perstack.doors.shared.text import brief, shorten
from perstack.next_steps import NextStep

_ROW_CELLS = 300  # maximum cells of a row without a screen. Texts of the model and of a person are never cut.
_MAX_KEPT_CHARS = 100_000  # maximum characters kept of the text that was cut last
_INDENT = "  "
_QUIET = ("", "dim", "cyan", "bold")  # colours of rows that are printed dim, so that the text of the model stands out
_MAX_UNFINISHED_CHARS = (
    1_500  # maximum characters drawn of an unfinished block; of a longer one only the last whole lines
)
_MAX_THOUGHT_CHARS = 1_000  # maximum characters kept of the model's reasoning, of which one line is shown

WriteLine = Callable[..., None]  # a function that writes the parts of a line

_ABANDONS_REPLY = (
    events.StartGeneration
    | events.Retry
    | events.AdaptRequest
    | events.SwitchModel
    | events.ResumeRun
    | events.ErrorRun
    | events.StopRunByInterrupt
)


@dataclass(slots=True)
class _Reply:
    """A reply that is being streamed."""

    stream: TextStream
    deltas: list[str] = field(default_factory=list[str])
    thought: str = ""
    is_thought_shown: bool = False
    is_begun: bool = False  # True once a line of its text was printed


class JobPrinter:
    """The printer of one Job. Text of models and tools is indented: it must not look like a line of this program."""

    def __init__(
        self,
        write_line: WriteLine,
        screen: Callable[[], Screen],
        phrase: Callable[[NextStep], str],
        *,
        is_verbose: bool = False,
    ) -> None:
        """Write lines with `write_line`, for the screen as it is at that moment; `phrase` words next steps.

        `is_verbose` prints results of tools in full.
        """
        self._is_verbose = is_verbose
        self.write_line = write_line
        self._screen = screen
        self._phrase = phrase
        self._live = JobActivity()
        self._replies: dict[str, _Reply] = {}  # unfinished replies by Run
        self._heading = ""
        self.cut = ""  # the full text of the line that was cut last
        self.finished_job_id: str | None = None  # the Job whose result was printed last

    # --- events ---------------------------------------------------------------------------------------------------

    def print_event(self, event: events.Event, lines: Sequence[LogLine], live: JobActivity) -> None:
        """Print an event. Raises what `write_line` raises."""
        self._live = live
        if isinstance(event, _ABANDONS_REPLY):
            self._break_off(event.run_id)
        match event:
            case display_events.InitializeRuntime():
                self._print_head(event)
            case display_events.StreamText() | display_events.StreamReasoning():
                self._add_delta(event)
            case events.FinishGeneration():
                self._finish_reply(event, lines)
            case events.CallTools():
                self._print_calls(event, lines)
            case events.FinishToolCall():
                self._print_result(event, lines)
            case events.FinishRun():
                self._finish(event, lines)
            case display_events.SkillDisconnected() if event.reason:
                self._print_row("", LogRow("skill", event.text_for(self._phrase)))
            case events.RequestApproval() | events.CallInteractiveTool():
                self._print_later_question(event)
            case _:
                self._print_rows(line for line in lines if line.row.item not in ("model", "place"))

    def print_message(self, word: str, text: str) -> None:
        """Print a message of the program."""
        self._print_row("", LogRow(word, text))

    def unfinished(self, run_id: str) -> list[Line]:
        """Return the lines of the Run's unfinished block, as they would be printed."""
        reply = self._replies.get(run_id)
        block = None if reply is None else reply.stream.rest
        if block is None:
            return []
        if block.kind == "text":  # only the end: a block is rendered ten times a second, and a screen shows no more
            line_start = block.text.find("\n", max(0, len(block.text) - _MAX_UNFINISHED_CHARS)) + 1
            block = block._replace(text=block.text[line_start if len(block.text) > _MAX_UNFINISHED_CHARS else 0 :])
        return self._lines_of(run_id, block)

    def _print_head(self, initialize_runtime: display_events.InitializeRuntime) -> None:
        details = f" · {initialize_runtime.model} · Job {initialize_runtime.job_id}"
        heading = shorten(f"{initialize_runtime.expert_key}{details}", self._width)
        if heading != self._heading:  # after an answer the same Job continues, and needs no second heading
            self._heading = heading
            screen, key = self._screen(), shorten(initialize_runtime.expert_key, self._width)
            self.write_line(screen.styled(key, bold=True), screen.styled(heading.removeprefix(key), dim=True))

    def _print_later_question(self, event: events.RequestApproval | events.CallInteractiveTool) -> None:
        """Print that a question must wait. A question that can be answered now is shown in full below the lines."""
        if self._live.is_asked_later(event.run_id):
            awaited = "your answer"
            if isinstance(event, events.RequestApproval):
                awaited = f"your approval of {event.tool_name} ({event.rule})"
            row = LogRow("waits", f"for {awaited} when the other delegates have stopped")
            self._print_row(self._prefix(event.run_id, run_label(event.expert_key, event.run_id)), row)

    # --- rows -----------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        screen = self._screen()
        return screen.width - 1 if screen.height else _ROW_CELLS

    def _print_rows(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            self._print_row(self._prefix(line.run_id, line.label), line.row)

    def _print_row(self, prefix: str, row: LogRow, *, full: str = "") -> None:
        """Print a row in one line, and keep its text if it is cut; `full` is kept instead, if given."""
        screen, start = self._screen(), f"{prefix}{row.word}"
        text = shorten(row.text, max(8, self._width - len(start) - 2))
        if full or (text.endswith("…") and not row.text.endswith("…")):
            self.cut = (full or row.text)[:_MAX_KEPT_CHARS]
        word = screen.styled(f"{start}:" if text else start, **(style_of(row.colour) or {"dim": True}))
        quiet = {"dim": True} if row.colour in _QUIET else {}
        self.write_line(word, screen.styled(f" {text}" if text else "", **quiet))

    def _prefix(self, run_id: str, label: str) -> str:
        """Return the prefix of a delegate's line; empty for the Coordinator."""
        return f"{label} " if self._live.is_delegate(run_id) else ""

    def _print_calls(self, event: events.CallTools, lines: Sequence[LogLine]) -> None:
        # imported late: the first frame does not need it
        from perstack.doors.shared.call_diffs import edit_from_args

        activity = self._live.run(event.run_id)
        calls = [decided_call for decided_call in event.calls if decided_call.kind not in ("delegate", "interactive")]
        for line, decided in zip(lines, calls, strict=False):
            if decided.kind == "attemptCompletion":  # its text follows, as the result
                continue
            call_activity = None if activity is None else activity.calls.get(decided.id)
            part = None if call_activity is None else call_activity.part
            text = line.row.text if part is None else f"{part.tool_name} {_argument_line(part)}"
            change = (
                () if part is None or part.raw_args is not None else edit_from_args(part.tool_name, part.args).lines
            )
            self._print_row(self._prefix(line.run_id, line.label), line.row._replace(text=text), full="\n".join(change))

    def _print_result(self, event: events.FinishToolCall, lines: Sequence[LogLine]) -> None:
        """Print the result of a call. Of a tool's result: the first line and the number of others, or all."""
        activity = self._live.run(event.run_id)
        call_activity = None if activity is None else activity.calls.get(event.tool_call_id)
        is_of_tool = call_activity is not None and call_activity.kind == "tool" and event.by is None
        if event.by is not None and not event.is_error:
            self._print_rows(lines[:1])
            return
        for line in lines:
            prefix, row = self._prefix(line.run_id, line.label), line.row
            if row.item != "result" or event.is_error:
                self._print_row(prefix, row)
            elif is_of_tool:
                room = self._width - len(prefix) - len(row.word) - 2
                text = f"{event.tool_name}: {text_of(event.contents)}"
                self._print_row(prefix, row._replace(text=_first_line(text, room)), full=text)
        if is_of_tool and self._is_verbose:
            for text in text_of(event.contents).splitlines():
                self.write_line(_INDENT, text)

    # --- text of the model ----------------------------------------------------------------------------------------

    def _reply(self, run_id: str) -> _Reply:
        return self._replies.setdefault(run_id, self._new_reply())

    def _new_reply(self) -> _Reply:
        return _Reply(TextStream(is_source=not self._screen().height))

    def _lines_of(self, run_id: str, block: Block) -> list[Line]:
        activity = self._live.run(run_id)
        start = _INDENT + self._prefix(run_id, "" if activity is None else activity.label)
        screen = self._screen()
        if not screen.height:
            return [(start, line) for line in block.text.split("\n")]
        return [(start, *line) for line in lines_of(block, screen, self._width - len(start))]

    def _print_blocks(self, run_id: str, reply: _Reply, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.begins and reply.is_begun:
                self.write_line("")
            reply.is_begun = True
            for line in self._lines_of(run_id, block):
                self.write_line(*(line if "".join(map(str, line[1:])).strip() else ()))

    def _add_delta(self, event: display_events.StreamText | display_events.StreamReasoning) -> None:
        reply = self._reply(event.run_id)
        if isinstance(event, display_events.StreamReasoning):
            reply.thought += event.delta[: max(0, _MAX_THOUGHT_CHARS - len(reply.thought))]
            return
        if reply.thought.strip() and not reply.is_thought_shown:
            reply.is_thought_shown = True
            prefix = self._prefix(event.run_id, run_label(event.expert_key, event.run_id))
            self._print_row(prefix, LogRow("thinks", reply.thought, "dim"))
        reply.deltas.append(event.delta)
        self._print_blocks(event.run_id, reply, reply.stream.add(event.delta))

    def _break_off(self, run_id: str) -> None:
        """Print what arrived of a reply that will not be completed."""
        reply = self._replies.pop(run_id, None)
        if reply is not None and reply.deltas:
            self._print_blocks(run_id, reply, [*reply.stream.add(" …"), *reply.stream.end()])

    def _finish_reply(self, event: events.FinishGeneration, lines: Sequence[LogLine]) -> None:
        label, text = run_label(event.expert_key, event.run_id), event.message.text
        reply = self._replies.pop(event.run_id, None) or self._new_reply()
        streamed = "".join(reply.deltas)
        if not reply.is_thought_shown:
            self._print_rows(line for line in lines if line.row.item == "thought")
        if text.startswith(streamed):
            self._print_blocks(event.run_id, reply, [*reply.stream.add(text[len(streamed) :]), *reply.stream.end()])
        else:  # the streamed parts may have gaps, since a worker drops some for a slow reader
            self._print_blocks(event.run_id, reply, [*reply.stream.add(" …"), *reply.stream.end()])
            self._print_row(self._prefix(event.run_id, label), LogRow("again", "the full reply"))
            self._print_whole(event.run_id, text)
        self._print_rows(line for line in lines if line.row.item in (None, "call") or line.row.word == "error")

    def _print_whole(self, run_id: str, text: str) -> None:
        reply = self._new_reply()
        self._print_blocks(run_id, reply, [*reply.stream.add(text.strip("\n")), *reply.stream.end()])

    def _finish(self, event: events.FinishRun, lines: Sequence[LogLine]) -> None:
        activity = self._live.run(event.run_id)
        if self._live.is_delegate(event.run_id):
            self._print_rows([line._replace(row=line.row._replace(text="")) for line in lines[:1]])
        else:
            if (activity is None or event.text != activity.last_text) and event.text.strip():
                self._print_whole(event.run_id, event.text)
            self.finished_job_id = event.job_id
        self._print_rows(lines[1:])


def _first_line(text: str, width: int) -> str:
    """Return the first line that is not blank, cut to `width` cells, with the number of further lines."""
    first, *others = [line for line in text.splitlines() if line.strip()] or [""]
    more = f" (+{count(len(others), 'line')})" if others else ""
    return shorten(first, max(8, width - len(more))) + more


def _argument_line(part: ToolCallPart) -> str:
    """Return the arguments of a call on one line; a program and its arguments as a command line."""
    program, args = part.args.get("command"), part.args.get("args")
    if isinstance(program, str) and isinstance(args, list) and all(isinstance(arg, str) for arg in args):
        return one_line(" ".join(map(str, (program, *args))))
    return one_line(brief(part))
