"""What History shows, as lines: Jobs, and of one its Runs, checkpoints and events."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.job import JobSummary
from perstack.core.plain import one_line
from perstack.core.run_tree import PlacedRun
from perstack.frontends.shared.entry_rows import calls_before, question_at, rows_of
from perstack.frontends.shared.log_entries import Entry, Place, expert_of
from perstack.frontends.shared.log_rows import Around, run_label
from perstack.frontends.shared.run_tree import how_words
from perstack.frontends.shared.words import cells, count, local_time, pad, run_status_of, shorten, status_of
from perstack.frontends.tui.view.spans import Line, Span, Style

_STANDS: dict[str, tuple[str, Style]] = {
    "finishStep": ("", ""),
    "finishRun": ("completed", "good"),
    "errorRun": ("failed", "bad"),
    "stopRunByDelegate": ("waits for delegates", "dim"),
    "stopRunByInteractiveTool": ("asks", "ask"),
    "stopRunByExceededMaxSteps": ("at the step limit", "warn"),
    "stopRunByExceededBudget": ("at a limit", "warn"),
    "stopRunByInterrupt": ("interrupted", "warn"),
    "startRewind": ("before a rewind", "warn"),
}
"""Why a Run stands at a checkpoint, by the event that makes it."""

_COLOUR_OF: dict[str, Style] = {
    "completed": "good",
    "stoppedByError": "bad",
    "stoppedByInteractiveTool": "ask",
    "stoppedByDelegate": "dim",
    "running": "call",
    "queued": "call",
}
"""Of how a Job, or a Run, stands."""

_COLOURS: dict[str, Style] = {"yellow": "warn", "red": "bad", "green": "good", "magenta": "ask", "cyan": "call"}
_WORD = 9
_LABEL = 18


def name_of(job: JobSummary) -> str:
    """A Job in one line: `{expertKey} - {totalSteps} steps ({jobId}) ({startedAt})`."""
    began = f"{local_time(job.started_at):%Y-%m-%d %H:%M}"
    return one_line(f"{job.expert_key} - {count(job.total_steps, 'step')} ({job.id}) ({began})")


def name_of_place(place: Place) -> str:
    """A checkpoint in one line: `Step {stepNumber} ({checkpointId})`."""
    return one_line(f"Step {place.entry.step} ({place.id})")


def matching(jobs: Sequence[JobSummary], typed: str) -> tuple[JobSummary, ...]:
    """Those in whose line or query every word that was typed stands."""
    words = typed.lower().split()
    return tuple(job for job in jobs if all(word in f"{name_of(job)} {one_line(job.query)}".lower() for word in words))


def job_line(job: JobSummary, is_chosen: bool, width: int) -> Line:
    """A Job, with what it was asked and where it stands."""
    status = "damaged" if job.damaged else status_of(job)
    name = shorten(name_of(job), max(20, width - cells(status) - 5))
    left = width - 5 - cells(name) - cells(status)
    about = job.error or "" if job.damaged else job.query
    query = shorten(one_line(about), left) if left > 8 else ""
    return (
        Span(name, "strong" if is_chosen else ""),
        Span(f"  {pad(query, max(0, left))}", "dim"),
        Span(f"  {status}", _COLOUR_OF.get(job.status, "warn")),
    )


def run_line(one: PlacedRun, before: str, is_chosen: bool, width: int) -> Line:
    """A Run at its place in the tree: its id, its Expert, how it stands, how it came to be."""
    run = one.run
    status = run_status_of(run)
    style = _COLOUR_OF.get(run.status, "warn")
    words = ", ".join(filter(None, (count(run.steps, "step"), one_line(how_words(one)))))
    name = shorten(run.id, max(8, width // 2))
    expert = shorten(run.expert_key or "?", _LABEL)
    left = width - cells(before) - cells(name) - cells(expert) - cells(status) - 6
    return (
        Span(before, "rule"),
        Span(name, "strong" if is_chosen else ""),
        Span(f"  {expert}", "expert"),
        Span(f"  {status}", style),
        Span(f"  {shorten(words, left)}" if left > 4 else "", "dim"),
    )


def place_line(place: Place, is_chosen: bool, width: int, *, is_marked: bool = False) -> Line:
    """A checkpoint, with the Expert whose it is and why the Run stands there."""
    word, style = _STANDS.get(place.type, (place.type, "dim"))
    mark = "● " if is_marked else ""
    label = shorten(run_label(place.expert, place.run_id), _LABEL)
    name = shorten(name_of_place(place), max(20, width - cells(mark) - cells(label) - cells(word) - 4))
    left = width - cells(mark) - cells(name) - cells(label) - cells(word) - 6
    question = question_at(place) if place.asks and left > 8 else ""
    return (
        Span(mark, "person"),
        Span(name, "strong" if is_chosen else ""),
        Span(f"  {label}", "expert"),
        Span(f"  {word}" if word else "", style),
        Span(f"  {shorten(question, left)}" if question else "", "dim"),
    )


def event_line(entry: Entry, is_chosen: bool, width: int) -> Line:
    """An event in one line: when, whose, in which step, and the first of what it says."""
    at = f"{local_time(entry.timestamp):%H:%M:%S}"
    label = pad(one_line(run_label(expert_of(entry.log), entry.log.run_id)), _LABEL if width >= 70 else 10)
    row = next(iter(rows_of(entry, _around(entry))), None)
    word, text, style = (entry.type, "", "dim") if row is None else (row.word, row.text, _COLOURS.get(row.colour, ""))
    head = f"{at} " if width >= 70 else ""
    step = f" {entry.step:>4} "
    left = max(4, width - cells(head) - cells(label) - cells(step) - _WORD - 1)
    return (
        Span(head, "dim"),
        Span(label, "expert"),
        Span(step),
        Span(f"{pad(one_line(word), _WORD)} ", style),  # type: ignore[arg-type]
        Span(shorten(text, left), "" if is_chosen else "dim"),
    )


def event_texts(entry: Entry) -> list[tuple[str, str]]:
    """Everything that an event says, each under its word."""
    return [(row.word, row.text) for row in rows_of(entry, _around(entry))] or [(entry.type, "")]


def _around(entry: Entry) -> Around:
    return Around(calls_before(entry) if entry.type == "callTools" else {}, full=True)
