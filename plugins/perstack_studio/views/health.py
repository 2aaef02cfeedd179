"""State of what runs without a person: schedules, tasks, iterations, workers and their queue, the storage, and trust.

Each section is read separately: if its source fails, it has the reason in place of its content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.doors.shared.next_step_phrases import cli_phrase
from perstack.errors import NotAgreed, PerstackError, UsageError
from perstack.iterations.evolve import SeriesSummary
from perstack.iterations.state import SeriesState
from perstack.ports.dispatcher import Load, WorkerInfo
from perstack.schedules.calendar import calendar_of
from perstack.schedules.schedules import ScheduleStatus
from perstack.state_guard.guarded_state import require_own_state
from perstack.system.concurrency import leaf_errors
from perstack.tasks.summaries import TaskSummary
from perstack_studio.costs import number
from perstack_studio.plots import Plot, line_plot
from perstack_studio.studio import Studio, render_page, studio_of

MAX_LISTED = 50  # maximum listed tasks, and newest Jobs that are searched for running ones
_MAX_SERIES = 10
_MAX_TRIES = 200  # maximum iterations of a series that a plot shows, the latest
_SECTION_TIMEOUT_S = 5.0  # maximum seconds to read a section: a queue or a storage may not answer
_SIZE_TIMEOUT_S = 1.0  # maximum seconds to measure the storage; then its size is left out

T = TypeVar("T")


def pages() -> Iterable[BaseRoute]:
    yield Route("/health", _show_health, methods=["GET"])


@dataclass(frozen=True, slots=True)
class Section:
    """The content of a section, or the reason why there is none."""

    value: object = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A schedule with its times in its own time zone."""

    status: ScheduleStatus
    next: str
    last: str
    skipped: str
    is_due: bool  # True if its next occurrence is in the past: no scheduler has run since


@dataclass(frozen=True, slots=True)
class ListedSeries:
    """A series of iterations, with its scores."""

    series_summary: SeriesSummary
    series: SeriesState | None  # None if its log cannot be read
    plot: Plot | None  # None with fewer than two measured iterations


@dataclass(frozen=True, slots=True)
class QueueState:
    """Workers, the load of their queue, and the drivers of running Jobs."""

    location: str  # location of the dispatcher; empty without one
    workers: tuple[WorkerInfo, ...]
    load: Load | None
    drivers: tuple[tuple[JobSummary, str], ...]  # running Jobs with the holder of each lease; empty without a lease
    searched_jobs: int  # number of Jobs that were searched for running ones


async def read_section(read: Callable[[Studio], Awaitable[T]], studio: Studio) -> Section:
    """Return a section. If `read` raises or takes too long, its failure is the reason, in one line."""
    try:
        return Section(await asyncio.wait_for(read(studio), _SECTION_TIMEOUT_S))
    except TimeoutError:
        return Section(failure=f"there was no answer within {_SECTION_TIMEOUT_S:g} seconds")
    except Exception as error:  # noqa: BLE001 - a storage or a dispatcher of a plugin may raise anything
        cause = leaf_errors(error)[0]
        text = cause.text_for(cli_phrase) if isinstance(cause, PerstackError) else f"{type(cause).__name__}: {cause}"
        return Section(failure=" ".join(text.split()))


async def _show_health(request: Request) -> Response:
    studio = studio_of(request)
    names = ("schedules", "tasks", "iterations", "queue", "storage", "trust")
    reads = (_schedules, _tasks, _iterations, _queue, _storage, _trust)
    sections = await asyncio.gather(*(read_section(read, studio) for read in reads))
    return await render_page(
        request, "health.html", sections=dict(zip(names, sections, strict=True)), max_listed=MAX_LISTED
    )


async def _schedules(studio: Studio) -> list[ListedSchedule]:
    now = studio.host.clock.now()
    return [listed_schedule(status, now) for status in await studio.host.schedules.list()]


def listed_schedule(status: ScheduleStatus, now: int) -> ListedSchedule:
    def text(at: int | None) -> str:
        return "" if at is None else calendar_of(status.schedule).format_minute(at)

    try:
        times = text(status.next), text(None if status.last is None else status.last.at), text(status.skipped)
    except UsageError:  # the time zone is unknown; the page shows the error of the status
        times = "", "", ""
    return ListedSchedule(status, *times, is_due=status.next is not None and status.next <= now)


async def _tasks(studio: Studio) -> tuple[tuple[TaskSummary, ...], bool]:
    """Return the tasks with the latest changes, and whether there are more."""
    tasks_page = await studio.host.tasks.list(limit=MAX_LISTED)
    hides = studio.served_project.definitions.hides
    return tuple(task for task in tasks_page.tasks if not hides(task.agent_id)), tasks_page.next is not None


async def _iterations(studio: Studio) -> list[ListedSeries]:
    newest = (await studio.host.iterations.list(limit=_MAX_SERIES)).series
    offers = studio.served_project.definitions.offers
    return list(await asyncio.gather(*(_listed_series(studio, each) for each in newest if offers(each.expert_key))))


async def _listed_series(studio: Studio, series_summary: SeriesSummary) -> ListedSeries:
    try:
        series = await studio.host.iterations.get(series_summary.id)
    except PerstackError:
        return ListedSeries(series_summary, None, None)
    return ListedSeries(series_summary, series, score_plot(series))


def score_plot(series: SeriesState) -> Plot | None:
    """Return the plot of the scores of measured iterations; None if there are fewer than two."""
    tries = [(iteration.number, iteration.score) for iteration in series.iterations if iteration.score is not None][
        -_MAX_TRIES:
    ]
    if len(tries) < 2:
        return None
    return line_plot(
        "Score by try",
        tries,
        number,
        [(at, str(at)) for at, _ in tries],
        limit=series.settings.target,
        titles=[f"try {at}: {score:g}{', the best' if at == series.best_iteration else ''}" for at, score in tries],
        best=next((index for index, (at, _) in enumerate(tries) if at == series.best_iteration), None),
    )


async def _queue(studio: Studio) -> QueueState:
    """Return the workers and their load, both empty without a dispatcher, and the drivers of running Jobs."""
    host = studio.host
    dispatcher = host.dispatcher
    jobs_page = await studio.served_project.page_of_jobs(limit=MAX_LISTED)
    running = [summary for summary in jobs_page.jobs if summary.status == "running"]
    leases = await asyncio.gather(*(host.storage.lease_info(summary.id) for summary in running))
    holders = ["" if lease is None else lease.holder for lease in leases]
    drivers = tuple(zip(running, holders, strict=True))
    if dispatcher is None:
        return QueueState("", (), None, drivers, len(jobs_page.jobs))
    workers, load = await dispatcher.workers(), await dispatcher.load()
    return QueueState(dispatcher.location, tuple(workers), load, drivers, len(jobs_page.jobs))


async def _storage(studio: Studio) -> tuple[str, int | None, list[tuple[str, str]]]:
    """Return the location, the size in bytes, None if measuring it takes too long, and the failed checks."""
    storage, checks = studio.host.storage, await studio.host.storage_admin.check()
    failed = [(check.about, f"{check.text} {check.remedy}") for check in checks if not check.is_there]
    try:
        size = await asyncio.wait_for(storage.size(), _SIZE_TIMEOUT_S)
    except TimeoutError:
        size = None
    return storage.location, size, failed


async def _trust(studio: Studio) -> list[tuple[str, str]]:
    """Return name and reason of each thing that is not agreed to; empty if everything is."""
    not_agreed: list[tuple[str, str]] = []
    try:
        studio.host.check_agreed()
    except NotAgreed as error:
        not_agreed.append(("Definition", error.text_for(cli_phrase)))
    try:
        await require_own_state(studio.host.storage)
    except NotAgreed as error:
        not_agreed.append(("State", error.text_for(cli_phrase)))
    change = studio.served_project.definitions.live.pending_change
    if change is not None:
        not_agreed.append(("Changed definition", change.note.text_for(cli_phrase)))
    return not_agreed
