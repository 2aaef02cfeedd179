"""Lines of the History: Jobs, and a Job's Runs, checkpoints, events and changes of files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perstack.core.base.text import count, one_line
from perstack.core.jobs.summary import JobSummary, PlacedRun
from perstack.core.runs.log_rows import EventContext, run_label
from perstack.doors.shared import file_changes, log_view
from perstack.doors.shared.status_phrases import run_status_of, status_of
from perstack.doors.shared.text import break_anywhere, cells, local_time, minute, pad, shorten
from perstack.snapshots.rewind import Rewind
from perstack.snapshots.tree_diff import FileDiff
from perstack_tui.view.styled_text import TAB, Line, Span, Style, wrap

# Changes of files.

_STYLES: dict[file_changes.LineKind, Style] = {"file": "strong", "hunk": "call", "+": "add", "-": "remove", " ": ""}
_CHANGES: dict[str, Style] = {"added": "add", "removed": "remove", "changed": "warn"}
_MAX_PATCH_LINES = 100_000  # maximum lines shown of a patch; the command line shows all lines


def files_lines(files: Sequence[FileDiff], width: int) -> list[Line]:
    """Return lines with each file and its counts, then the lines of the diff."""
    if not files:
        return []
    result: list[Line] = []
    for change, path, lines in file_changes.file_rows(files):
        label = f"{pad(change, 8)} {one_line(lines)}  "
        first, *more_lines = _break_lines(path, max(8, width - cells(label) - 2))
        result.append((Span("  "), Span(label, _CHANGES.get(change, "")), Span(first)))
        result += [(Span(" " * (2 + cells(label))), Span(line)) for line in more_lines]
    result += [(), (Span(f"  {file_changes.stat_words(files)}", "dim"),), ()]
    for kind, line in file_changes.patch_lines(files):
        style = _STYLES[kind]
        result += [
            (Span("  "), Span(piece, style)) for piece in _break_lines(file_changes.display_line(kind, line), width - 2)
        ]
        if len(result) > _MAX_PATCH_LINES:
            return [*result, (Span("  … and more lines", "dim"),)]
    return result


def plan_lines(plan: Rewind, width: int) -> list[Line]:
    """Return a rewind's changes and the files it leaves unchanged."""
    return [
        *_text_lines(file_changes.definition_warnings(plan), width, "warn"),
        *_text_lines(file_changes.kept_lines(plan), width, "dim"),
        *files_lines(plan.files, width),
    ]


def wrapped_lines(text: str, width: int, style: Style = "") -> list[Line]:
    """Return the text as lines broken between words."""
    return [(Span("  "), Span(line, style)) for line in wrap(text, max(8, width - 4))]


def _text_lines(texts: Iterable[str], width: int, style: Style) -> list[Line]:
    lines = [line for text in texts for line in wrapped_lines(text, width, style)]
    return [*lines, ()] if lines else []


def _break_lines(text: str, width: int) -> list[str]:
    return break_anywhere(text.replace("\t", TAB), width)


# Reason of a checkpoint and its style, by the type of the event.
_STATUS_BY_TYPE: dict[str, tuple[str, Style]] = {
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

_STYLE_BY_STATUS: dict[str, Style] = {
    "completed": "good",
    "stoppedByError": "bad",
    "stoppedByInteractiveTool": "ask",
    "stoppedByDelegate": "dim",
    "running": "call",
    "queued": "call",
}

_COLOURS: dict[str, Style] = {"yellow": "warn", "red": "bad", "green": "good", "magenta": "ask", "cyan": "call"}
_WORD_CELLS = 9
_LABEL_CELLS = 18


def job_title(summary: JobSummary) -> str:
    """Return a Job in one line: `{expertKey} - {totalSteps} steps ({jobId}) ({startedAt})`."""
    began = f"{local_time(summary.started_at):%Y-%m-%d %H:%M}"
    return one_line(f"{summary.expert_key} - {count(summary.total_steps, 'step')} ({summary.id}) ({began})")


def checkpoint_title(checkpoint_ref: log_view.CheckpointRef) -> str:
    """Return a checkpoint in one line: `Step {stepNumber} ({checkpointId})`."""
    return one_line(f"Step {checkpoint_ref.entry.step} ({checkpoint_ref.id})")


def filter_jobs(jobs: Sequence[JobSummary], typed: str) -> tuple[JobSummary, ...]:
    """Return the Jobs whose line or query contains every typed word."""
    words = typed.lower().split()
    return tuple(
        summary
        for summary in jobs
        if all(word in f"{job_title(summary)} {one_line(summary.query)}".lower() for word in words)
    )


def job_line(summary: JobSummary, is_chosen: bool, width: int) -> Line:
    """Return a Job's line with its query and status."""
    status = "damaged" if summary.damaged else status_of(summary)
    name = shorten(job_title(summary), max(20, width - cells(status) - 5))
    query_cells = width - 5 - cells(name) - cells(status)
    text = summary.error or "" if summary.damaged else summary.query
    query = shorten(one_line(text), query_cells) if query_cells > 8 else ""
    return (
        Span(name, "strong" if is_chosen else ""),
        Span(f"  {pad(query, max(0, query_cells))}", "dim"),
        Span(f"  {status}", _STYLE_BY_STATUS.get(summary.status, "warn")),
    )


def run_line(placed: PlacedRun, prefix: str, is_chosen: bool, width: int) -> Line:
    """Return a Run's line in the tree: its id, Expert, status and origin."""
    run_summary = placed.run
    status = run_status_of(run_summary)
    style = _STYLE_BY_STATUS.get(run_summary.status, "warn")
    details = ", ".join(filter(None, (count(run_summary.steps, "step"), one_line(log_view.origin_text(placed)))))
    name = shorten(run_summary.id, max(8, width // 2))
    expert = shorten(run_summary.expert_key or "?", _LABEL_CELLS)
    free_cells = width - cells(prefix) - cells(name) - cells(expert) - cells(status) - 6
    return (
        Span(prefix, "rule"),
        Span(name, "strong" if is_chosen else ""),
        Span(f"  {expert}", "expert"),
        Span(f"  {status}", style),
        Span(f"  {shorten(details, free_cells)}" if free_cells > 4 else "", "dim"),
    )


def step_line(step: log_view.StepCheckpoints, is_chosen: bool, width: int, *, is_marked: bool = False) -> Line:
    """Return the line of a step's checkpoints: the latest one, its Expert, its reason, and the question."""
    latest, asked = step.latest, step.asked
    word, style = _STATUS_BY_TYPE.get(latest.type if asked is None else asked.type, (latest.type, "dim"))
    mark = "● " if is_marked else ""
    label = shorten(run_label(latest.expert, latest.run_id), _LABEL_CELLS)
    name = shorten(checkpoint_title(latest), max(20, width - cells(mark) - cells(label) - cells(word) - 4))
    free_cells = width - cells(mark) - cells(name) - cells(label) - cells(word) - 6
    question = log_view.question_at(asked) if asked is not None and free_cells > 8 else ""
    return (
        Span(mark, "person"),
        Span(name, "strong" if is_chosen else ""),
        Span(f"  {label}", "expert"),
        Span(f"  {word}" if word else "", style),
        Span(f"  {shorten(question, free_cells)}" if question else "", "dim"),
    )


def event_line(entry: log_view.LogEntry, is_chosen: bool, width: int) -> Line:
    """Return an event's line: its time, Run, step and first row."""
    time = f"{local_time(entry.timestamp):%H:%M:%S}"
    label = pad(
        one_line(run_label(log_view.expert_of(entry.log), entry.log.run_id)), _LABEL_CELLS if width >= 70 else 10
    )
    row = next(iter(log_view.rows_of(entry, _event_context(entry))), None)
    word, text, style = (entry.type, "", "dim") if row is None else (row.word, row.text, _COLOURS.get(row.colour, ""))
    head = f"{time} " if width >= 70 else ""
    step = f" {entry.step:>4} "
    free_cells = max(4, width - cells(head) - cells(label) - cells(step) - _WORD_CELLS - 1)
    return (
        Span(head, "dim"),
        Span(label, "expert"),
        Span(step),
        Span(f"{pad(one_line(word), _WORD_CELLS)} ", style),  # type: ignore[arg-type]
        Span(shorten(text, free_cells), "" if is_chosen else "dim"),
    )


def event_texts(entry: log_view.LogEntry) -> list[tuple[str, str]]:
    """Return the full texts of an event, as pairs of word and text."""
    return [(row.word, row.text) for row in log_view.rows_of(entry, _event_context(entry))] or [(entry.type, "")]


def _event_context(entry: log_view.LogEntry) -> EventContext:
    return EventContext(log_view.calls_of_last_reply(entry) if entry.type == "callTools" else {}, minute, full=True)
