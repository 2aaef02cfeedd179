"""Numbered lists to choose from in the linear mode: Jobs, questions, checkpoints; and the status of the shown Job."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from perstack.core.base.text import count, one_line
from perstack.doors.shared.activity import call_line, todos_words, total_texts, with_duration
from perstack.doors.shared.job_printer import WriteLine
from perstack.doors.shared.log_view import CheckpointRef, places_of, question_at
from perstack.doors.shared.screen import StyledText
from perstack.doors.shared.status_phrases import status_of
from perstack.doors.shared.text import age_text, shorten
from perstack.host import Host
from perstack_tui.session import Session
from perstack_tui.view.history import matching, name_of, name_of_place
from perstack_tui.view.lines import STATES
from perstack_tui.view.models import model_rows

_MAX_SHOWN_LINES = 30  # maximum lines shown of events stored before the Job was opened


class HeldLines:
    """The lines of one Job, which are printed at once, or held while another Job is shown."""

    def __init__(self, write_line: WriteLine) -> None:
        self._write_line = write_line
        self._is_shown = True
        self._held: deque[tuple[str | StyledText, ...]] = deque(maxlen=_MAX_SHOWN_LINES)
        self._left_out = 0

    def hold(self) -> None:
        """Keep only the end of the following lines until `show`."""
        self._is_shown = False

    def show(self) -> None:
        """Print the kept lines, and each following line at once."""
        self._is_shown = True
        if self._left_out:
            self._write_line(f"{count(self._left_out, 'earlier line')} not shown; `perstack log` shows all")
        for line in self._held:
            self._write_line(*line)
        self._held.clear()
        self._left_out = 0

    def write_line(self, *parts: str | StyledText) -> None:
        """Print a line, now or when the Job is shown."""
        if self._is_shown:
            self._write_line(*parts)
            return
        self._left_out += len(self._held) == _MAX_SHOWN_LINES
        self._held.append(parts)


# The status of the shown Job, as lines.

_STATUS_CELLS = 200


def status_lines(job_session: Session, now: int) -> list[str]:
    """Return the status, each Run's activity and its duration, the todos, and the totals."""
    live = job_session.transcript.live
    lines = [STATES[job_session.state]]
    for lane in live.lanes.values():
        works = [call_line(work, now, _STATUS_CELLS) for work in lane.work.values()]
        activity = (
            "the model writes" if lane.text else with_duration(lane.doing or "begins", lane.since, now, _STATUS_CELLS)
        )
        lines += [f"{lane.label}: {text}" for text in works or [activity]]
    first = next(iter(live.lanes.values()), None) or live.latest
    if first is not None and first.todos:
        lines.append(todos_words(first))
    if live.steps:
        lines.append(", ".join(total_texts(live, now if job_session.is_busy else live.began or now)))
    return lines


_SEARCHED_JOBS = 1_000  # number of newest Jobs that are searched
_MAX_LISTED_JOBS = 20
_LINE_CELLS = 200


# Numbered lists to choose from.


class Lists:
    """The latest lists, so that a number identifies an entry."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._jobs: list[str | None] = []
        self._places: Sequence[CheckpointRef] = ()
        self._of: str | None = None

    async def history(self, words: str) -> list[str]:
        """Return past Jobs as lines, newest first. Raises PerstackError."""
        page = await self._host.jobs.list(limit=_SEARCHED_JOBS)
        jobs = matching(page.jobs, words)
        self._jobs = [summary.id for summary in jobs[:_MAX_LISTED_JOBS]]
        lines = [
            shorten(f"{number}. {name_of(summary)} {status_of(summary)}: {summary.query}", _LINE_CELLS)
            for number, summary in enumerate(jobs[:_MAX_LISTED_JOBS], 1)
        ]
        hidden_count = len(jobs) - _MAX_LISTED_JOBS
        if hidden_count > 0:
            lines.append(f"{count(hidden_count, 'more Job')}; /history WORDS finds them")
        if not lines and page.next is not None:
            return [f"none of the newest {len(page.jobs):,} Jobs contains these words"]
        return (
            [*lines, "/open NUMBER opens one"] if lines else ["no Job contains these words" if words else "no Jobs yet"]
        )

    async def inbox(self) -> list[str]:
        """Return every open question as lines, oldest first. Raises PerstackError."""
        items, now = await self._host.inbox(), self._host.clock.now()
        self._jobs = [item.job_id for item in items]
        lines: list[str] = []
        for number, item in enumerate(items, 1):
            lines.append(shorten(f"{number}. {item.who}: {item.text} ({age_text(item.since, now)})", _LINE_CELLS))
            if item.task_id is not None and not item.damaged:
                lines.append(one_line(f"  a task is answered by: perstack answer {item.task_id} ANSWER"))
        return [*lines, "/open NUMBER opens one"] if lines else ["nothing waits for you"]

    async def checkpoints(self, job_id: str | None) -> list[str]:
        """Return the checkpoints of a Job as lines. Raises PerstackError."""
        self._places, self._of = () if job_id is None else places_of(await self._host.jobs.logs(job_id)), job_id
        lines = [
            shorten(
                f"{number}. {name_of_place(checkpoint_ref)} {checkpoint_ref.expert}{_question_note(checkpoint_ref)}",
                _LINE_CELLS,
            )
            for number, checkpoint_ref in enumerate(self._places, 1)
        ]
        return [*lines, "/branch NUMBER starts a branch there"] if lines else ["this Job has no checkpoint yet"]

    async def models(self, job_session: Session) -> list[str]:
        """Return the models that a session's Expert may use as lines. Raises PerstackError."""
        experts, key = self._host.experts, job_session.expert_key or ""
        rows = model_rows(experts.model(key), await experts.models(key), job_session.model, "")
        lines = [shorten(f"{row.name}: {row.note}".removesuffix(": "), _LINE_CELLS) for row in rows]
        return [*lines, "/model NAME uses one from the next Run on"] if lines else ["no models are known"]

    def job(self, typed: str) -> str | None:
        """Return the id of the Job with that number; None if there is none."""
        index = _number(typed, len(self._jobs))
        return None if index is None else self._jobs[index]

    def place(self, typed: str, job_id: str | None) -> CheckpointRef | None:
        """Return the checkpoint with that number, if the last list was of this Job; otherwise None."""
        index = _number(typed, len(self._places)) if job_id == self._of else None
        return None if index is None else self._places[index]


def _question_note(checkpoint_ref: CheckpointRef) -> str:
    return f" asks {question_at(checkpoint_ref)}".rstrip() if checkpoint_ref.asks else ""


def _number(typed: str, max_number: int) -> int | None:
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 6):
        return None
    return int(typed) - 1 if 0 < int(typed) <= max_number else None
