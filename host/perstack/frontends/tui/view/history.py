"""Past Jobs, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.job import JobSummary
from perstack.core.plain import one_line
from perstack.frontends.shared.words import cells, count, local_time, shorten
from perstack.frontends.tui.view.spans import Line, Span, Style

_MARKS: dict[str, tuple[str, Style]] = {
    "running": ("●", "call"),
    "completed": ("✓", "good"),
    "stoppedByError": ("✗", "bad"),
    "stoppedByInteractiveTool": ("?", "ask"),
}
_STOPPED: tuple[str, Style] = ("!", "warn")


def matching(jobs: Sequence[JobSummary], typed: str) -> list[JobSummary]:
    """Those with all the words that were typed in their Expert, id, or query."""
    words = typed.casefold().split()
    return [one for one in jobs if all(word in f"{one.expert_key} {one.id} {one.query}".casefold() for word in words)]


def history_lines(jobs: Sequence[JobSummary], chosen: int, width: int) -> list[Line]:
    """Expert, steps, id and when it was started; the query of the one that is chosen, and of others where there is
    room."""
    if not jobs:
        return [(), (Span("  There is no such Job.", "dim"),)]
    return [_line(job, number == chosen, width) for number, job in enumerate(jobs)]


def _line(job: JobSummary, is_chosen: bool, width: int) -> Line:
    mark, style = _MARKS.get(job.status, _STOPPED)
    facts = f" - {count(job.total_steps, 'step')} ({job.id}) ({local_time(job.started_at):%Y-%m-%d %H:%M})"
    expert = shorten(one_line(job.expert_key), max(8, width - 4 - cells(facts)))
    left = width - 6 - cells(expert) - cells(facts)
    query = shorten(job.query, left) if left > 8 else ""
    return (
        Span("❯ " if is_chosen else "  ", "person"),
        Span(f"{mark} ", style),
        Span(expert, "expert"),
        Span(f" {one_line(facts)}", "" if is_chosen else "dim"),
        Span(f"  {query}", "dim"),
    )
