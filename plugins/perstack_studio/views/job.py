"""One Job: its state, the tree of its Runs as a time line, its cost, and what can be done with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.jobs.summary import JobSummary, PlacedRun
from perstack.dataclass import dataclass
from perstack.doors.shared.next_step_phrases import as_sentence
from perstack.doors.shared.status_phrases import next_step_of_job
from perstack.errors import UsageError
from perstack_studio.checks import Check
from perstack_studio.costs import remaining_budget, spending_plots
from perstack_studio.live import EventStream, format_event
from perstack_studio.plots import Plot
from perstack_studio.studio import Studio, read_form, render_page, see_other, studio_of


def pages() -> Iterable[BaseRoute]:
    """Return the routes: the Job, its changes, and the actions of a person."""
    yield Route("/jobs/{job}", _show_job, methods=["GET"])
    yield Route("/jobs/{job}/events", _stream_state, methods=["GET"])
    yield Route("/jobs/{job}/{action:str}", _perform_action, methods=["POST"])


@dataclass(frozen=True, slots=True)
class RunBar:
    """A Run in the time line, in thousandths of the Job's time."""

    placed: PlacedRun
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class JobState:
    """Content of the page of a Job."""

    summary: JobSummary
    bars: tuple[RunBar, ...]
    next_step: str
    plots: tuple[Plot, ...]  # cost and tokens over time
    remaining: tuple[str, ...]  # remainder of each budget
    check: Check | None = None  # the latest check since the studio was started; None without one

    @classmethod
    def of(cls, summary: JobSummary, tree: Iterable[PlacedRun], check: Check | None = None) -> JobState:
        step = next_step_of_job(summary)
        return cls(
            summary,
            tuple(bars_of(summary, tree)),
            "" if step is None else as_sentence(step),
            tuple(spending_plots(summary)),
            tuple(remaining_budget(summary)),
            check,
        )


async def read_state(studio: Studio, summary: JobSummary) -> JobState:
    """Return what the page of a Job shows. Raises StorageError."""
    return JobState.of(summary, await studio.host.jobs.tree_of(summary), studio.checks.latest_of(summary.id))


def bars_of(summary: JobSummary, tree: Iterable[PlacedRun]) -> Iterable[RunBar]:
    duration_ms = max(1, summary.updated_at - summary.started_at)
    for placed in tree:
        start = (placed.run.started_at - summary.started_at) * 1000 // duration_ms
        width = (placed.run.updated_at - placed.run.started_at) * 1000 // duration_ms
        yield RunBar(placed, max(0, min(start, 999)), max(2, min(width, 1000)))


async def _show_job(request: Request) -> Response:
    studio = studio_of(request)
    state = await read_state(studio, await studio.states.page_summary(request.path_params["job"]))
    return await render_page(request, "job.html", job=state, summary=state.summary, tab="job")


async def _stream_state(request: Request) -> Response:
    """Stream the state of the Job, again after each change."""
    studio, job_id = studio_of(request), request.path_params["job"]
    await studio.states.page_summary(job_id)  # raises NotFound before the stream begins
    if studio.feeds.is_full:
        raise UsageError("too many pages follow Jobs: close some")

    async def render_state() -> str:
        state = await read_state(studio, await studio.states.current(job_id))
        return studio.render("job_state.html", job=state, summary=state.summary)

    async def changes() -> AsyncIterator[str]:
        with studio.feeds.feed(job_id) as feed:
            known_version = -1
            while not studio.feeds.is_closing:
                if not await feed.wait(known_version):
                    yield ": beat\n\n"
                    continue
                known_version = feed.version
                yield format_event("state", await feed.render_once(render_state))
                await studio.feeds.pause()

    return EventStream(changes())


async def _perform_action(request: Request) -> Response:
    """Resume, continue, tell or stop the Job."""
    studio, fields, job_id = studio_of(request), await read_form(request), request.path_params["job"]
    await studio.served_project.job_to_drive(job_id)
    match request.path_params["action"]:
        case "cancel":
            await studio.host.cancel(job_id, by=studio.by)
        case "tell":
            text = fields.get("text", "").strip()
            await studio.host.tell(job_id, text, by=studio.by)
        case "resume":
            work = partial(studio.host.resume, job_id)
            await studio.served_project.job_tasks.start(work, None).wait_until_begun()
        case "continue":
            summary, query = await studio.host.job(job_id), fields.get("query", "").strip()
            if not query:
                raise UsageError("write what the Expert should do next")
            work = partial(studio.host.continue_job, summary.expert_key, query, job_id=job_id)
            await studio.served_project.job_tasks.start(work, None).wait_until_begun()
        case action:
            raise UsageError(f"there is no action {action!r}")
    return see_other(f"/jobs/{job_id}")
