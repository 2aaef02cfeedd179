"""What History shows, as lines: Jobs, and the checkpoints of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from perstack.core.job import JobSummary
from perstack.core.plain import one_line
from perstack.frontends.shared.words import cells, count, local_time, pad, shorten, status_of
from perstack.frontends.tui.view.spans import Line, Span

_T = TypeVar("_T")


class Place(NamedTuple):
    """A checkpoint of a Job."""

    step: int
    id: str
    expert: str


def name_of(job: JobSummary) -> str:
    """A Job in one line: `{expertKey} - {totalSteps} steps ({jobId}) ({startedAt})`."""
    began = f"{local_time(job.started_at):%Y-%m-%d %H:%M}"
    return one_line(f"{job.expert_key} - {count(job.total_steps, 'step')} ({job.id}) ({began})")


def name_of_place(place: Place) -> str:
    """A checkpoint in one line: `Step {stepNumber} ({checkpointId})`."""
    return one_line(f"Step {place.step} ({place.id})")


def matching(jobs: Sequence[JobSummary], typed: str) -> tuple[JobSummary, ...]:
    """Those in whose line or query every word that was typed stands."""
    words = typed.lower().split()
    return tuple(job for job in jobs if all(word in f"{name_of(job)} {one_line(job.query)}".lower() for word in words))


def job_lines(jobs: Sequence[JobSummary], chosen: int, width: int) -> list[Line]:
    """A line for each Job, with what it was asked and where it stands."""
    if not jobs:
        return [(), (Span("  No Job is of these words.", "dim"),)]

    def line(job: JobSummary, is_chosen: bool) -> Line:
        status = status_of(job)
        name = shorten(name_of(job), max(20, width - cells(status) - 6))
        left = width - 6 - cells(name) - cells(status)
        query = shorten(one_line(job.query), left) if left > 8 else ""
        return (
            Span("❯ " if is_chosen else "  ", "person"),
            Span(name, "strong" if is_chosen else ""),
            Span(f"  {pad(query, max(0, left))}", "dim"),
            Span(f"  {status}", "good" if job.status == "completed" else "warn"),
        )

    return _lines(jobs, chosen, line)


def place_lines(places: Sequence[Place], chosen: int, width: int) -> list[Line]:
    """A line for each checkpoint, with the Expert whose it is."""
    if not places:
        return [(), (Span("  This Job has no checkpoint yet.", "dim"),)]

    def line(place: Place, is_chosen: bool) -> Line:
        return (
            Span("❯ " if is_chosen else "  ", "person"),
            Span(shorten(name_of_place(place), max(20, width - 24)), "strong" if is_chosen else ""),
            Span(f"  {one_line(place.expert)}", "expert"),
        )

    return _lines(places, chosen, line)


def _lines(those: Sequence[_T], chosen: int, line: Callable[[_T, bool], Line]) -> list[Line]:
    return [line(one, number == chosen) for number, one in enumerate(those)]
