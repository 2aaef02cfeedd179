"""What the linear mode prints: events of a Job, and numbered lists of Jobs, questions and checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from perstack.core.base.text import one_line
from perstack.core.runs import display_events, events
from perstack.core.runs.log_rows import LogRow, run_label
from perstack.dataclass import dataclass
from perstack.doors.shared.activity import JobActivity, LogLine, timed, todos_words, totals, work_words
from perstack.doors.shared.file_edits import edit_by
from perstack.doors.shared.job_status import status_of
from perstack.doors.shared.log_view import CheckpointRef, places_of, question_at
from perstack.doors.shared.next_steps import said_plainly
from perstack.doors.shared.text import ago, count, shorten
from perstack.doors.tui.session import Session
from perstack.doors.tui.view.history import matching, name_of, name_of_place
from perstack.doors.tui.view.lines import STATES
from perstack.host import Host

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


# The status of the shown Job, as lines.

_STATUS_CELLS = 200


def status_lines(session: Session, now: int) -> list[str]:
    """Return the status, each Run's activity and its duration, the todos, and the totals."""
    live = session.transcript.live
    found = [STATES[session.state]]
    for lane in live.lanes.values():
        works = [work_words(work, now, _STATUS_CELLS) for work in lane.work.values()]
        doing = "the model writes" if lane.text else timed(lane.doing or "begins", lane.since, now, _STATUS_CELLS)
        found += [f"{lane.label}: {one}" for one in works or [doing]]
    first = next(iter(live.lanes.values()), None) or live.latest
    if first is not None and first.todos:
        found.append(todos_words(first))
    if live.steps:
        found.append(", ".join(totals(live, now if session.is_busy else live.began or now)))
    return found


_SEARCHED_JOBS = 1_000  # number of newest Jobs that are searched
_SHOWN = 20
_WIDEST = 200


# Numbered lists to choose from.


class Lists:
    """The latest lists, so that a number identifies an entry."""

    def __init__(self, host: Host) -> None:
        """List Jobs, questions and checkpoints of `host`."""
        self._host = host
        self._jobs: list[str | None] = []
        self._places: Sequence[CheckpointRef] = ()
        self._of: str | None = None

    async def history(self, words: str) -> list[str]:
        """Return past Jobs as lines, newest first. Raises PerstackError."""
        page = await self._host.jobs.list(limit=_SEARCHED_JOBS)
        found = matching(page.jobs, words)
        self._jobs = [job.id for job in found[:_SHOWN]]
        lines = [
            shorten(f"{number}. {name_of(job)} {status_of(job)}: {job.query}", _WIDEST)
            for number, job in enumerate(found[:_SHOWN], 1)
        ]
        more = len(found) - _SHOWN
        if more > 0:
            lines.append(f"{count(more, 'more Job')}; /history WORDS finds them")
        if not lines and page.next is not None:
            return [f"none of the newest {len(page.jobs):,} Jobs has these words"]
        return [*lines, "/open NUMBER opens one"] if lines else ["no Job has these words" if words else "no Jobs yet"]

    async def inbox(self) -> list[str]:
        """Return every open question as lines, oldest first. Raises PerstackError."""
        items, now = await self._host.inbox(), self._host.clock.now()
        self._jobs = [item.job_id for item in items]
        lines: list[str] = []
        for number, item in enumerate(items, 1):
            lines.append(shorten(f"{number}. {item.who}: {item.text} ({ago(item.since, now)})", _WIDEST))
            if item.task_id is not None and not item.damaged:
                lines.append(one_line(f"  a task is answered by: perstack answer {item.task_id} ANSWER"))
        return [*lines, "/open NUMBER opens one"] if lines else ["nothing waits for you"]

    async def checkpoints(self, job_id: str | None) -> list[str]:
        """Return the checkpoints of a Job as lines. Raises PerstackError."""
        self._places, self._of = () if job_id is None else places_of(await self._host.jobs.logs(job_id)), job_id
        lines = [
            shorten(f"{number}. {name_of_place(one)} {one.expert}{_asks(one)}", _WIDEST)
            for number, one in enumerate(self._places, 1)
        ]
        return [*lines, "/branch NUMBER begins another way there"] if lines else ["this Job has no checkpoint yet"]

    def job(self, typed: str) -> str | None:
        """Return the id of the Job with that number; None if there is none."""
        at = _number(typed, len(self._jobs))
        return None if at is None else self._jobs[at]

    def place(self, typed: str, job_id: str | None) -> CheckpointRef | None:
        """Return the checkpoint with that number, if the last list was of this Job; otherwise None."""
        at = _number(typed, len(self._places)) if job_id == self._of else None
        return None if at is None else self._places[at]


def _asks(place: CheckpointRef) -> str:
    return f" asks {question_at(place)}".rstrip() if place.asks else ""


def _number(typed: str, most: int) -> int | None:
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 6):
        return None
    return int(typed) - 1 if 0 < int(typed) <= most else None
