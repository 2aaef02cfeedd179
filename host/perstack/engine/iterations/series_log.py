"""Store series of iterations: each is the single log of a Job in the space `iterations`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

from perstack.core.base.ids import Owner, check_job_id
from perstack.core.iterations.evolve import SeriesSummary, abandoned, damaged_series, evolve_series, summary_of_series
from perstack.core.iterations.state import SeriesState, StoredSeriesEvent, parse_series_event
from perstack.dataclass import dataclass
from perstack.engine.anchors.trail import AuditTrail
from perstack.engine.log.event_log import Appended, Loaded
from perstack.engine.log.indexed_log import IndexedLog, IndexedLogFormat
from perstack.engine.log.leases import leftover_programs_ended
from perstack.engine.log.storage import SummaryFiles, log_of, read_summary
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.next_steps import Inspect, Resume
from perstack.ports.storage import Storage
from perstack.system.user import this_process

SERIES = IndexedLogFormat[SeriesState, StoredSeriesEvent, SeriesSummary](
    kind="iterations",
    title="",
    missing="there are no iterations {of} in {location}",
    listed=Inspect("series"),
    check=check_job_id,
    parse=parse_series_event,
    owner=lambda event: event.series_id,
    after=evolve_series,
    summary=summary_of_series,
    damaged=damaged_series,
    jobs=lambda series: [one.job_id for one in series.iterations],
    store=SummaryFiles(),
)


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """A page of series, latest change first, and the cursor for the next page."""

    series: tuple[SeriesSummary, ...]
    next: str | None


class SeriesLog(IndexedLog[SeriesState, StoredSeriesEvent, SeriesSummary]):
    """Store of all series. It decides nothing."""

    def __init__(self, storage: Storage, audit: AuditTrail) -> None:
        """Create; `audit` sends the heads of series to an anchor, if there is one."""
        super().__init__(storage, SERIES)
        self._audit = audit

    async def has(self, series_id: str) -> bool:
        """Return whether there is a series of that id."""
        return await self._space.has_job(series_id)

    async def reserve(self, series_id: str) -> None:
        """Create an empty log for a new series. Raises UsageError if there is a series of that id."""
        try:
            await self._space.create_job(check_job_id(series_id))
        except Conflict as error:
            # an empty log was left by a process that died before the first event
            if await self._space.read(log_of(series_id), limit=1):
                step = Resume(series_id, "series")
                raise UsageError(f"iterations {series_id} exist", next_steps=(step,)) from error

    @asynccontextmanager
    async def lease(self, series_id: str) -> AsyncGenerator[None]:
        """Hold the lease of a series; end what an earlier driver left running. Raises Conflict, naming the holder."""
        holder = this_process()
        async with self._space.lease(series_id, holder), leftover_programs_ended(self._space):
            yield

    async def append(
        self, of: str, loaded: Loaded[SeriesState] | None, events: Sequence[StoredSeriesEvent]
    ) -> Appended[SeriesState]:
        """Append events; when a series starts or resumes, announce a later stop to the anchor first."""
        if loaded is None or loaded.state.status != "running":
            await self._audit.expect(Owner("iterations", of))
        return await super().append(of, loaded, events)

    async def send_head(self, loaded: Loaded[SeriesState]) -> None:
        """Send the head of a series that has stopped to the anchor, if there is one."""
        await self._audit.at_rest(Owner("iterations", loaded.state.id), loaded.head)

    async def get(self, series_id: str) -> SeriesState:
        """Return the state of a series; a running series without a driver is shown as paused."""
        return await self._with_driver_state(series_id, (await self.load(series_id)).state)

    async def list(self, limit: int, after: str | None) -> SeriesPage:
        """Return a page of series, latest change first. A series that cannot be read is a row with its error."""
        page = await self._space.jobs(limit=limit, after=after)
        found: list[SeriesSummary] = []
        for series_id in page.ids:
            with suppress(NotFound):  # its process died before the first event
                found.append(await self._summary_at_rest(series_id) or await self.summary(series_id))
        return SeriesPage(tuple(found), page.next)

    async def _summary_at_rest(self, series_id: str) -> SeriesSummary | None:
        """Return the summary in job.json; None if it is missing, or the series may have continued since."""
        with suppress(StorageError):
            summary = await read_summary(self._space, series_id, SeriesSummary)
            if summary is not None and summary.id == series_id:  # otherwise it was copied from another series
                return None if summary.status == "running" else summary
        return None

    async def _summarize(self, of: str, loaded: Loaded[SeriesState]) -> SeriesSummary:
        return summary_of_series(await self._with_driver_state(of, loaded.state))

    async def _with_driver_state(self, series_id: str, series: SeriesState) -> SeriesState:
        is_driven = series.status != "running" or await self._space.lease_info(series_id) is not None
        return series if is_driven else abandoned(series)
