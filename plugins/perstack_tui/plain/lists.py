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
from perstack_tui.view.history import checkpoint_title, filter_jobs, job_title
from perstack_tui.view.lines import STATES
from perstack_tui.view.models import model_rows

_MAX_SHOWN_LINES = 30  # maximum held lines of a Job


class JobLines:
    """Printer of the lines of one Job: at once, or later if another Job is shown."""

    def __init__(self, write_line: WriteLine) -> None:
        self._write_line = write_line
        self._is_shown = True
        self._held_lines: deque[tuple[str | StyledText, ...]] = deque(maxlen=_MAX_SHOWN_LINES)
        self._dropped_count = 0

    def hold(self) -> None:
        """Hold the following lines until `show`, at most the last `_MAX_SHOWN_LINES`."""
        self._is_shown = False

    def show(self) -> None:
        """Print the held lines, and from now on each line at once."""
        self._is_shown = True
        if self._dropped_count:
            self._write_line(f"{count(self._dropped_count, 'earlier line')} not shown; `perstack log` shows all")
        for line in self._held_lines:
            self._write_line(*line)
        self._held_lines.clear()
        self._dropped_count = 0

    def write_line(self, *parts: str | StyledText) -> None:
        """Print a line now, or when the Job is shown."""
        if self._is_shown:
            self._write_line(*parts)
            return
        self._dropped_count += len(self._held_lines) == _MAX_SHOWN_LINES
        self._held_lines.append(parts)


# The status of the shown Job, as lines.

_STATUS_CELLS = 200


def status_lines(job_session: Session, now: int) -> list[str]:
    """Return the state, each Run's activity with its duration, the todos, and the totals, as lines."""
    job_activity = job_session.transcript.live
    lines = [STATES[job_session.state]]
    for lane in job_activity.lanes.values():
        call_lines = [call_line(running_call, now, _STATUS_CELLS) for running_call in lane.work.values()]
        activity = (
            "the model writes" if lane.text else with_duration(lane.doing or "begins", lane.since, now, _STATUS_CELLS)
        )
        lines += [f"{lane.label}: {text}" for text in call_lines or [activity]]
    first_lane = next(iter(job_activity.lanes.values()), None) or job_activity.latest
    if first_lane is not None and first_lane.todos:
        lines.append(todos_words(first_lane))
    if job_activity.steps:
        lines.append(", ".join(total_texts(job_activity, now if job_session.is_busy else job_activity.began or now)))
    return lines


_SEARCHED_JOBS = 1_000  # number of newest Jobs that are searched
_MAX_LISTED_JOBS = 20
_LINE_CELLS = 200


# Numbered lists to choose from.


class Lists:
    """The lists that were shown last, whose entries the user names by number."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._job_ids: list[str | None] = []
        self._checkpoint_refs: Sequence[CheckpointRef] = ()
        self._checkpoints_job_id: str | None = None

    async def history(self, words: str) -> list[str]:
        """Return past Jobs as lines, newest first. Raises PerstackError."""
        page = await self._host.jobs.list(limit=_SEARCHED_JOBS)
        jobs = filter_jobs(page.jobs, words)
        self._job_ids = [summary.id for summary in jobs[:_MAX_LISTED_JOBS]]
        lines = [
            shorten(f"{number}. {job_title(summary)} {status_of(summary)}: {summary.query}", _LINE_CELLS)
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
        self._job_ids = [item.job_id for item in items]
        lines: list[str] = []
        for number, item in enumerate(items, 1):
            lines.append(shorten(f"{number}. {item.who}: {item.text} ({age_text(item.since, now)})", _LINE_CELLS))
            if item.task_id is not None and not item.damaged:
                lines.append(one_line(f"  a task is answered by: perstack answer {item.task_id} ANSWER"))
        return [*lines, "/open NUMBER opens one"] if lines else ["nothing waits for you"]

    async def checkpoints(self, job_id: str | None) -> list[str]:
        """Return the checkpoints of a Job as lines. Raises PerstackError."""
        self._checkpoint_refs = () if job_id is None else places_of(await self._host.jobs.logs(job_id))
        self._checkpoints_job_id = job_id
        lines = [
            shorten(
                f"{number}. {checkpoint_title(checkpoint_ref)} {checkpoint_ref.expert}{_question_note(checkpoint_ref)}",
                _LINE_CELLS,
            )
            for number, checkpoint_ref in enumerate(self._checkpoint_refs, 1)
        ]
        return [*lines, "/branch NUMBER starts a branch there"] if lines else ["this Job has no checkpoint yet"]

    async def models(self, job_session: Session) -> list[str]:
        """Return the models that a session's Expert may use as lines. Raises PerstackError."""
        experts, key = self._host.experts, job_session.expert_key or ""
        rows = model_rows(experts.model(key), await experts.models(key), job_session.model, "")
        lines = [shorten(f"{row.name}: {row.note}".removesuffix(": "), _LINE_CELLS) for row in rows]
        return [*lines, "/model NAME uses one from the next Run on"] if lines else ["no models are known"]

    def job_id_at(self, typed: str) -> str | None:
        """Return the id of the Job with the typed number in the last list; None without one."""
        index = _parse_index(typed, len(self._job_ids))
        return None if index is None else self._job_ids[index]

    def checkpoint_at(self, typed: str, job_id: str | None) -> CheckpointRef | None:
        """Return the checkpoint with the typed number; None without one, or if another Job's were listed last."""
        index = _parse_index(typed, len(self._checkpoint_refs)) if job_id == self._checkpoints_job_id else None
        return None if index is None else self._checkpoint_refs[index]


def _question_note(checkpoint_ref: CheckpointRef) -> str:
    return f" asks {question_at(checkpoint_ref)}".rstrip() if checkpoint_ref.asks else ""


def _parse_index(typed: str, max_number: int) -> int | None:
    """Return the index, from 0, of a typed number from 1 to `max_number`; None for other texts."""
    if not (typed.isascii() and typed.isdecimal() and len(typed) < 6):
        return None
    return int(typed) - 1 if 0 < int(typed) <= max_number else None
