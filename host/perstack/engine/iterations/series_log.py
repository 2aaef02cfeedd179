"""Series of iterations in a storage: each is the one log of a Job in the space `iterations`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

from perstack.core.ids import check_job_id
from perstack.core.iterations.events import StoredSeriesEvent, parse_series_event
from perstack.core.iterations.evolve import abandoned, evolve_series
from perstack.core.iterations.state import SeriesState
from perstack.core.iterations.summary import SeriesSummary, damaged_series, summary_of_series
from perstack.core.owners import Owner
from perstack.dataclass import dataclass
from perstack.engine.audit import Auditing
from perstack.engine.guarding import guarded
from perstack.engine.logs.kept import JobFile, log_of, summary_kept
from perstack.engine.logs.log import Appended, Loaded
from perstack.engine.logs.summarized import Summarized, SummarizedLog
from perstack.engine.spaces import SERIES_SPACE
from perstack.engine.who import this_process
from perstack.errors import Conflict, NotFound, StorageError, UsageError
from perstack.next_steps import Look, Resume
from perstack.ports.storage import Storage

SERIES = Summarized[SeriesState, StoredSeriesEvent, SeriesSummary](
    kind="iterations",
    space=SERIES_SPACE,
    title="",
    missing="there are no iterations {of} in {location}",
    listed=Look("series"),
    check=check_job_id,
    parse=parse_series_event,
    after=evolve_series,
    summary=summary_of_series,
    damaged=damaged_series,
    jobs=lambda series: [one.job_id for one in series.iterations],
    keeping=JobFile(),
)


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """Some series, the one written to last first, and the cursor that continues after them."""

    series: tuple[SeriesSummary, ...]
    next: str | None


class SeriesLog(SummarizedLog[SeriesState, StoredSeriesEvent, SeriesSummary]):
    """Reads and writes series, and decides nothing."""

    def __init__(self, storage: Storage, audit: Auditing | None = None) -> None:
        """`audit` sends the heads of series to an anchor, if there is one."""
        super().__init__(storage, SERIES)
        self._audit = audit

    async def has(self, series_id: str) -> bool:
        return await self._space.has_job(series_id)

    async def reserve(self, series_id: str) -> None:
        """Make a place for a new one. Raises UsageError if there is one of that id."""
        try:
            await self._space.create_job(check_job_id(series_id))
        except Conflict as error:
            # one that is empty was left by a process that died before its first fact
            if await self._space.read(log_of(series_id), limit=1):
                step = Resume(series_id, "series")
                raise UsageError(f"iterations {series_id} exist", next_steps=(step,)) from error

    @asynccontextmanager
    async def lease(self, series_id: str) -> AsyncGenerator[None]:
        """The right to drive one; what an earlier driver left running has ended. Raises Conflict, naming the holder, if
        another has it.
        """
        holder = this_process()
        async with self._space.lease(series_id, holder), guarded(self._space):
            yield

    async def append(
        self, of: str, loaded: Loaded[SeriesState] | None, events: Sequence[StoredSeriesEvent]
    ) -> Appended[SeriesState]:
        if self._audit is not None and (loaded is None or loaded.state.status != "running"):
            await self._audit.expect(Owner("iterations", of))
        return await super().append(of, loaded, events)

    async def stopped(self, loaded: Loaded[SeriesState]) -> None:
        """Send the head of a series that runs no more to the anchor, if there is one."""
        if self._audit is not None:
            await self._audit.stopped(Owner("iterations", loaded.state.id), loaded.head)

    async def get(self, series_id: str) -> SeriesState:
        """Where it stands: one that is running and that nobody drives is paused."""
        return await self._seen(series_id, (await self.load(series_id)).state)

    async def list(self, limit: int, after: str | None) -> SeriesPage:
        """The one written to last first. One that does not read is a row that says so."""
        page = await self._space.jobs(limit=limit, after=after)
        found: list[SeriesSummary] = []
        for series_id in page.ids:
            with suppress(NotFound):  # one whose process died before its first fact
                found.append(await self._stopped(series_id) or await self.summary(series_id))
        return SeriesPage(tuple(found), page.next)

    async def _stopped(self, series_id: str) -> SeriesSummary | None:
        """What job.json says of one, unless more may have happened since."""
        with suppress(StorageError):
            summary = await summary_kept(self._space, series_id, SeriesSummary)
            return None if summary is None or summary.status == "running" else summary
        return None

    async def _shown(self, of: str, loaded: Loaded[SeriesState]) -> SeriesSummary:
        return summary_of_series(await self._seen(of, loaded.state))

    async def _seen(self, series_id: str, series: SeriesState) -> SeriesState:
        is_driven = series.status != "running" or await self._space.lease_info(series_id) is not None
        return series if is_driven else abandoned(series)
