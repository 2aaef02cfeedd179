"""Events of a Job as lines, which are only ever appended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from perstack.core.runs import display_events, events
from perstack.core.runs.log_rows import LogRow, run_label
from perstack.dataclass import dataclass
from perstack.doors.shared.activity import JobActivity, LogLine
from perstack.doors.shared.file_edits import edit_by
from perstack.doors.shared.next_steps import said_plainly
from perstack.doors.shared.text import count, shorten

_ROW_CELLS = 300  # cells of a row. Text of the model and of a person is never cut.
_MAX_CHANGE_LINES = 40  # maximum lines of an edit
_SHOWN_EVENTS = 30  # maximum lines shown of events stored before the Job was opened
_MAX_KEPT_CHARS = 100_000  # maximum characters kept of the last text that was cut


@dataclass(slots=True)
class _Coming:
    printed: str = ""
    left: str = ""


class Printer:
    """The lines of one Job. Text from outside is indented, so that it cannot be mistaken for a line of the program."""

    def __init__(self, put: Callable[[str], None]) -> None:
        """Write lines with `put`."""
        self._put = put
        self._is_shown = True
        self._held: deque[str] = deque(maxlen=_SHOWN_EVENTS)
        self._left_out = 0
        self._live = JobActivity()
        self._coming: dict[str, _Coming] = {}
        self.cut = ""  # the full text of the line that was cut last

    # --- holding output -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Keep only the end of the following lines until `show`."""
        self._is_shown = False

    def show(self) -> None:
        """Print the kept lines, and each following line at once."""
        self._is_shown = True
        if self._left_out:
            self._put(f"{count(self._left_out, 'line')} before these left out; `perstack log` shows all of it")
        for line in self._held:
            self._put(line)
        self._held.clear()
        self._left_out = 0

    def line(self, text: str) -> None:
        """Print a line, now or when the Job is shown."""
        if self._is_shown:
            self._put(text)
            return
        self._left_out += len(self._held) == _SHOWN_EVENTS
        self._held.append(text)

    # --- events ---------------------------------------------------------------------------------------------------

    def remarked(self, word: str, text: str) -> None:
        """Print a message of this program."""
        self.line(f"{word}: {text}")

    def heard(self, event: events.Event, told: Sequence[LogLine], live: JobActivity) -> None:
        """Print an event."""
        self._live = live
        if isinstance(event, events.ErrorRun | events.StopRunByInterrupt):
            self._break_off(event.run_id)
        match event:
            case display_events.StreamText():
                self._hear(event)
            case events.FinishGeneration():
                self._reply(event, told)
            case events.CallTools():
                self._call(event, told)
            case events.FinishRun():
                self._finish(event, told)
            case display_events.SkillDisconnected() if event.reason:
                self.line(f"skill: {event.said(said_plainly)}")
            case events.RequestApproval() | events.CallInteractiveTool():
                self._asks_later(event)
            case _:
                self._rows([one for one in told if one.row.item != "place"])

    def _asks_later(self, event: events.RequestApproval | events.CallInteractiveTool) -> None:
        """Print that a question must wait. Questions that can be answered now are shown in full below."""
        if self._live.asks_later(event.run_id):
            what = "your answer"
            if isinstance(event, events.RequestApproval):
                what = f"your approval of {event.tool_name} ({event.rule})"
            label = run_label(event.expert_key, event.run_id)
            self._row(event.run_id, label, LogRow("waits", f"for {what} when the other delegates have stopped"))

    def _rows(self, told: Sequence[LogLine]) -> None:
        for one in told:
            self._row(one.run_id, one.label, one.row)

    def _row(self, run_id: str, label: str, row: LogRow) -> None:
        shown = shorten(row.text, _ROW_CELLS)
        if shown.endswith("…") and not row.text.endswith("…"):
            self.cut = row.text[:_MAX_KEPT_CHARS]
        self.line(f"{self._of(run_id, label)}{row.word}: {shown}".rstrip(": "))

    def _of(self, run_id: str, label: str) -> str:
        """Return the prefix of a delegate's line; empty for the Coordinator."""
        return f"{label} " if self._live.is_delegate(run_id) else ""

    def _text(self, prefix: str, lines: Sequence[str]) -> None:
        for one in lines:
            self.line(f"  {prefix}{one}" if one.strip() else "")

    def _hear(self, event: display_events.StreamText) -> None:
        coming = self._coming.setdefault(event.run_id, _Coming())
        whole, end, coming.left = (coming.left + event.delta).rpartition("\n")
        if end:
            coming.printed += whole + end
            self._text(self._of(event.run_id, run_label(event.expert_key, event.run_id)), whole.split("\n"))

    def _break_off(self, run_id: str) -> None:
        coming = self._coming.pop(run_id, None)
        if coming is not None and coming.left.strip():
            self._text("", [f"{coming.left} …"])

    def _reply(self, event: events.FinishGeneration, told: Sequence[LogLine]) -> None:
        label = run_label(event.expert_key, event.run_id)
        coming = self._coming.pop(event.run_id, _Coming())
        self._rows([one for one in told if one.row.item == "thought"])
        text = event.message.text
        rest = text.removeprefix(coming.printed)
        if coming.printed and rest == text:  # the stream was cut off, and started again
            self._row(event.run_id, label, LogRow("again", "the whole of the reply"))
        if rest.strip():
            self._text(self._of(event.run_id, label), rest.strip("\n").split("\n"))
        self._rows([one for one in told if one.row.item is None])

    def _call(self, event: events.CallTools, told: Sequence[LogLine]) -> None:
        run = self._live.run(event.run_id)
        calls = [call for call in event.calls if call.kind not in ("delegate", "interactive")]
        for one, decided in zip(told, calls, strict=False):
            call = None if run is None else run.calls.get(decided.id)
            part = None if call is None else call.part
            change = () if part is None or part.raw_args is not None else edit_by(part.tool_name, part.args).lines
            if not change or part is None:
                self._row(one.run_id, one.label, one.row)
                continue
            self._row(
                one.run_id, one.label, LogRow("calls", f"{part.tool_name} {part.args.get('path')}, which changes")
            )
            more = len(change) - _MAX_CHANGE_LINES
            self._text("", [*change[:_MAX_CHANGE_LINES], *([f"… {count(more, 'more line')}"] if more > 0 else [])])
            if more > 0:
                self.cut = "\n".join(change)[:_MAX_KEPT_CHARS]

    def _finish(self, event: events.FinishRun, told: Sequence[LogLine]) -> None:
        run = self._live.run(event.run_id)
        is_said = run is not None and event.text == run.said
        if self._live.is_delegate(event.run_id):
            self._rows([one._replace(row=one.row._replace(text="")) for one in told[:1]])
        elif not is_said and event.text.strip():
            self._text("", event.text.strip("\n").split("\n"))
        self._rows(told[1:])
