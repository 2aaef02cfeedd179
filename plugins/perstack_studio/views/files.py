"""The files of a Job: what each step changed, the difference between two checkpoints, and a rewind after its diff."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.base.text import visible_text
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.events.files import FinishRewind, RecordSnapshot, StartRewind
from perstack.core.runs.log_rows import run_label
from perstack.dataclass import dataclass
from perstack.doors.shared.file_changes import (
    KEPT_REASONS,
    definition_warnings,
    line_counts,
    nothing_to_rewind,
    removal_warning,
)
from perstack.doors.shared.log_view import expert_of, parse_line, places_in
from perstack.engine.log.run_log import RunLog
from perstack.errors import PerstackError, UsageError
from perstack.snapshots.changes import deltas_of, snapshots_of
from perstack.snapshots.rewind import Rewind
from perstack_studio.changed_files import MAX_FILES, ShownFiles, shown_files
from perstack_studio.studio import Studio, read_form, render_page, see_other, studio_of

MAX_STEPS = 300  # maximum steps, and rewinds, that a page lists, the latest
NOW = "now"  # stands for the current files of the workspace, in place of a checkpoint


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the files, and the plan of a rewind and its form."""
    yield Route("/jobs/{job}/files", _show_files, methods=["GET"])
    yield Route("/jobs/{job}/rewind", _show_plan, methods=["GET"])
    yield Route("/jobs/{job}/files/rewind", _rewind, methods=["POST"])


@dataclass(frozen=True, slots=True)
class FileStep:
    """A step that changed files, and the checkpoint after it."""

    run_id: str
    label: str  # the Expert with the number of its Run
    step: int
    at: int  # milliseconds since 1970
    counts: str  # numbers of files and lines, as text; empty if unknown
    checkpoint_id: str  # empty while the step has not ended


@dataclass(frozen=True, slots=True)
class PastRewind:
    """A rewind of files by a person."""

    id: str  # checkpoint with the files before it
    to: str
    by: str
    at: int  # milliseconds since 1970
    is_finished: bool


@dataclass(frozen=True, slots=True)
class FileHistory:
    """The changes that a Job's snapshots recorded."""

    first_run_id: str  # Run with the first snapshot; empty without any
    steps: tuple[FileStep, ...]  # the latest first
    rewinds: tuple[PastRewind, ...]  # the latest first
    problems: tuple[str, ...]  # reasons why snapshots are missing, and damage of logs


def history_of(job_id: str, logs: Sequence[RunLog]) -> FileHistory:
    """Return the steps that changed files, and the rewinds, of each log up to its first damage."""
    by_run = {log.run_id: log for log in logs}
    points = snapshots_of(job_id, logs)
    checkpoints = {
        (place.run_id, place.entry.step): place.id for log in logs for place in places_in(log) if place.entry.step
    }
    steps: list[FileStep] = []
    for delta in deltas_of(points):
        if delta.before == delta.point.tree or delta.point.by is None:
            continue
        run_id, step = delta.point.by
        counts = _count_text(by_run[delta.point.run_id].lines[delta.point.seq - 1])
        log = by_run.get(run_id)
        label = run_label("" if log is None else expert_of(log), run_id)
        steps.append(FileStep(run_id, label, step, delta.point.at, counts, checkpoints.get((run_id, step), "")))
    rewinds, problems = _rewinds_and_problems(logs)
    return FileHistory(points[0].run_id if points else "", tuple(reversed(steps)), rewinds, problems)


def _count_text(line: bytes) -> str:
    try:
        event = parse_line(line)
    except ValueError:
        return ""
    if not isinstance(event, RecordSnapshot):
        return ""
    numbers = ((event.added, "added"), (event.changed, "changed"), (event.removed, "removed"))
    files = ", ".join(f"{number:,} {word}" for number, word in numbers if number)
    line_text = line_counts(event.lines_added or 0, event.lines_removed or 0)
    return f"{files} ({line_text})" if files and line_text else files


_HISTORY_PREFIXES = (b'{"type":"startRewind"', b'{"type":"finishRewind"', b'{"type":"recordSnapshot"')


def _rewinds_and_problems(logs: Sequence[RunLog]) -> tuple[tuple[PastRewind, ...], tuple[str, ...]]:
    starts: list[StartRewind] = []
    finished_ids: set[str] = set()
    problems = dict.fromkeys(str(log.damage) for log in logs if log.damage is not None)
    for line in (line for log in logs for line in log.lines if line.startswith(_HISTORY_PREFIXES)):
        try:
            event = parse_line(line)
        except ValueError:
            continue
        if isinstance(event, StartRewind):
            starts.append(event)
        elif isinstance(event, FinishRewind):
            finished_ids.add(event.start)
        elif isinstance(event, RecordSnapshot) and event.problem:
            problems[f"A snapshot was not taken: {event.problem}"] = None
    starts.sort(key=lambda start: start.timestamp, reverse=True)
    rewinds = (
        PastRewind(start.id, start.to_checkpoint, str(start.by), start.timestamp, start.id in finished_ids)
        for start in starts
    )
    return tuple(rewinds), tuple(problems)


@dataclass(frozen=True, slots=True)
class DiffChoice:
    """The comparison that a page shows: two checkpoints, one step, or everything that the Job or a Run changed."""

    first: str = ""  # a checkpoint; empty for the start of the Job
    last: str = ""  # a checkpoint or `now`; empty unless two are compared
    run_id: str = ""
    step: str = ""

    @classmethod
    def of(cls, request: Request) -> DiffChoice:
        """Return the choice in the query of a request."""
        params = request.query_params
        return cls(*(params.get(name, "").strip() for name in ("from", "to", "run", "step")))

    def query(self, **changes: str) -> str:
        """Return the choice as the query of a URL, with these changes."""
        values = {"from": self.first, "to": self.last, "run": self.run_id, "step": self.step, **changes}
        return urlencode({name: value for name, value in values.items() if value})

    def comparison(self) -> str | None:
        """Return the comparison as `host.files.diff` takes it."""
        if self.last:
            return f"{self.first}..{'' if self.last == NOW else self.last}"
        if self.first:
            return f"{self.first}.."
        return self.step or None


async def _show_files(request: Request) -> Response:
    studio, choice, only = studio_of(request), DiffChoice.of(request), request.query_params.get("file", "")
    summary = await studio.served_project.current_job(request.path_params["job"])
    history = await asyncio.to_thread(history_of, summary.id, await studio.host.jobs.logs(summary.id))
    rewound = request.query_params.get("rewound", "")
    subject, shown, problem = await _read_diff(studio, summary, history, choice, only)
    return await render_page(
        request,
        "files.html",
        summary=summary,
        tab="files",
        history=history,
        max_steps=MAX_STEPS,
        choice=choice,
        subject=subject,
        shown=shown,
        problem=problem,
        only=only,
        rewound=next((rewind for rewind in history.rewinds if rewind.id == rewound), None),
        address=f"/jobs/{summary.id}/files?{choice.query()}",
    )


async def _read_diff(
    studio: Studio, summary: JobSummary, history: FileHistory, choice: DiffChoice, only_path: str
) -> tuple[str, ShownFiles, str]:
    """Return the subject of the comparison, the files that differ, and why these cannot be shown; empty if they can."""
    run_id = choice.run_id or (history.first_run_id if choice.last and not choice.first else "")
    try:
        diff = await studio.host.files.diff(summary.id, choice.comparison(), run_id=run_id or None)
    except PerstackError as error:
        return "", ShownFiles((), ""), str(error)
    return diff.of, await asyncio.to_thread(shown_files, diff.files, only_path), ""


# Rewinding: the plan, and the form that carries it out.


@dataclass(frozen=True, slots=True)
class ShownRewind:
    """A plan as its page shows it."""

    plan: Rewind
    files: ShownFiles
    warnings: tuple[str, ...]
    kept: tuple[str, ...]
    nothing: str  # why no file would change; empty if one would

    @property
    def is_whole(self) -> bool:
        """False if the page cannot list every file: then the page offers no rewind."""
        return not self.files.unlisted


def make_shown_rewind(plan: Rewind) -> ShownRewind:
    """Return a plan with everything that a person should see before agreeing to it."""
    warnings = (*definition_warnings(plan), removal_warning(plan).removesuffix("; --keep-added keeps them"))
    kept = [f"{visible_text(kept.path)} {KEPT_REASONS[kept.why]}" for kept in plan.kept[:MAX_FILES]]
    if len(plan.kept) > MAX_FILES:
        kept.append(f"… and {len(plan.kept) - MAX_FILES:,} more are kept")
    return ShownRewind(
        plan,
        shown_files(plan.files),
        tuple(filter(None, warnings)),
        tuple(kept),
        "" if plan.files else nothing_to_rewind(plan),
    )


async def _show_plan(request: Request) -> Response:
    studio, keeps_added = studio_of(request), bool(request.query_params.get("keep"))
    studio.check_may_change()  # making a plan first completes an interrupted rewind
    summary = await studio.served_project.job_to_drive(request.path_params["job"])
    checkpoint_id = request.query_params.get("checkpoint", "")
    plan = await studio.host.files.plan_rewind(summary.id, checkpoint_id, keep_added=keeps_added)
    view = await asyncio.to_thread(make_shown_rewind, plan)
    return await render_page(request, "rewind.html", summary=summary, tab="files", view=view, keeps_added=keeps_added)


async def _rewind(request: Request) -> Response:
    """Restore the files, if the plan has not changed since it was shown."""
    studio, fields = studio_of(request), await read_form(request)
    summary = await studio.served_project.job_to_drive(request.path_params["job"])
    if not fields.get("digest"):
        raise UsageError("look at the plan of the rewind first")
    rewound = await studio.host.files.rewind(
        summary.id,
        fields.get("checkpoint", ""),
        keep_added=bool(fields.get("keep")),
        expected=fields["digest"],
        by=studio.by,
    )
    return see_other(f"/jobs/{summary.id}/files" + (f"?rewound={rewound.undo}" if rewound.undo else ""))
