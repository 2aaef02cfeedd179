"""Iterations: run an Expert, measure what it made, and run it again until the score is good enough.

    series = await host.iterations.begin("fixer", "Make the tests pass")
    print(series.best_iteration, series.status)

A series is an event log, whose next command (run the Expert, evaluate, finish, pause) is a pure function of its state
in `next_step`; `series_driver` performs it. Every run, and every evaluation by an Expert, is a Job whose id
derives from the series' id, so after a crash the series continues with it. One process at a time drives a series, under
a lease. The recorded definition stays in force, except for the evaluator, which is today's.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from perstack.core.base.ids import check_job_id
from perstack.core.definitions.experts import Expert, Iterate
from perstack.core.definitions.secrets import iterate_without_secrets
from perstack.core.definitions.settings import check_budget
from perstack.core.jobs.job_choice import check_query
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.jobs import Jobs
from perstack.engine.log.run_session import OnEvent
from perstack.errors import UsageError
from perstack.iterations.evolve import check_resumable, with_limits
from perstack.iterations.series_driver import OnFact, SeriesDriver, SeriesLog, SeriesPage, check_ready
from perstack.iterations.state import FailSeries, ResumeSeries, SeriesState, StartSeries
from perstack.system.clock import new_ids


class Iterations:
    """All series of iterations in one storage."""

    def __init__(self, jobs: Jobs, source: SetupSource) -> None:
        """Create; `source` has the context in force, which a series keeps while it is driven."""
        setup = source.setup
        self._log = SeriesLog(setup.storage, setup.audit)
        self._storage = setup.storage
        self._clock = setup.clock
        self._jobs = jobs
        self._source = source
        self._driving: dict[str, SeriesDriver] = {}

    async def begin(
        self,
        expert_key: str,
        query: str,
        *,
        series_id: str | None = None,
        max_iterations: int | None = None,
        target: float | None = None,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        on_event: OnEvent | None = None,
        on_fact: OnFact | None = None,
    ) -> SeriesState:
        """Run an Expert until its result is good enough or no iteration is left, as its `iterate` table says.

        A cancelled call is recorded as a pause, and an error as a failure; `resume` continues. `max_cost` (US dollars)
        and `max_tokens` limit the sum over all Jobs. Raises UsageError, before anything is written, if Expert, model,
        provider or `iterate` is missing, or the id is taken.
        """
        setup, query = self._source.setup, check_query(query)
        definition = setup.definition(expert_key)
        expert = definition.experts[0]
        configured = _iterate_settings(expert)
        max_count = configured.max_iterations if max_iterations is None else max_iterations
        check_budget(max_cost, max_tokens=max_tokens)
        settings = with_limits(configured, max_count, target, max_cost, max_tokens)
        check_ready(setup, expert.key, settings, definition)
        series_id = await self._new_id() if series_id is None else _check_series_id(series_id)
        if await self._storage.has_job(series_id):
            raise UsageError(f"there is already a Job {series_id}: choose another id")
        await self._log.reserve(series_id)
        start_event = StartSeries(
            series_id=series_id,
            timestamp=self._clock.now(),
            expert_key=expert.key,
            query=query,
            iterate=iterate_without_secrets(settings),
            definition=definition,
        )
        async with self._log.lease(series_id):
            driver = SeriesDriver(self._log, self._jobs, setup, on_event, on_fact)
            await driver.record(start_event)
            with self._register_driver(series_id, driver):
                return await driver.drive()

    async def resume(
        self,
        series_id: str,
        *,
        more: int = 0,
        target: float | None = None,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        current: bool = False,
        on_event: OnEvent | None = None,
        on_fact: OnFact | None = None,
    ) -> SeriesState:
        """Continue a paused or failed series, or add `more` iterations or a better target to a completed one.

        `max_cost` and `max_tokens` are new totals, including ended Jobs. With `current`, today's definition is in force
        for Jobs that have not begun. Raises NotFound, UsageError if nothing would be left to do, and Conflict while it
        is driven.
        """
        check_budget(max_cost, max_tokens=max_tokens)
        await self._log.load(series_id)
        async with self._log.lease(series_id):
            setup, loaded = self._source.setup, await self._log.load(series_id)
            check_resumable(loaded.state, more, target)
            key, definition, new = loaded.state.expert_key, loaded.state.definition, None
            if current or definition is None:
                definition = new = setup.definition(key)
            check_ready(setup, key, loaded.state.settings, definition)
            driver = SeriesDriver(self._log, self._jobs, setup, on_event, on_fact, loaded)
            resumed = ResumeSeries(
                series_id=series_id,
                timestamp=self._clock.now(),
                more=more,
                target=target,
                max_cost=max_cost,
                max_tokens=max_tokens,
                definition=new,
            )
            await driver.record(resumed)
            with self._register_driver(series_id, driver):
                return await driver.drive()

    def stop_after_step(self, series_id: str) -> bool:
        """Pause a series that this process drives, after its Job's current step. Return False if it cannot."""
        driver = self._driving.get(series_id)
        return driver is not None and driver.stop_after_step()

    async def fail(self, series_id: str, error: str) -> SeriesState:
        """Record that a series has failed; a person may resume it. Raises Conflict while it is driven."""
        async with self._log.lease(series_id):
            loaded = await self._log.load(series_id)
            driver = SeriesDriver(self._log, self._jobs, self._source.setup, None, None, loaded)
            now = self._clock.now()
            await driver.record(ResumeSeries(series_id=series_id, timestamp=now))
            await driver.record(FailSeries(series_id=series_id, timestamp=now, error=error))
            return driver.series

    @contextmanager
    def _register_driver(self, series_id: str, driver: SeriesDriver) -> Generator[None]:
        self._driving[series_id] = driver
        try:
            yield
        finally:
            del self._driving[series_id]

    async def _new_id(self) -> str:
        ids = new_ids(self._clock.now())
        while True:
            series_id = next(ids)
            if not await self._storage.has_job(series_id) and not await self._log.has(series_id):
                return series_id

    async def has(self, series_id: str) -> bool:
        return await self._log.has(series_id)

    async def get(self, series_id: str) -> SeriesState:
        """Return the state of a series. Raises NotFound."""
        return await self._log.get(series_id)

    async def list(self, *, limit: int = 100, after: str | None = None) -> SeriesPage:
        """Return a page of series, latest change first; `after` is the `next` of the previous page."""
        return await self._log.list(limit, after)


MAX_ID_CHARS = 100  # maximum characters of an id; the ids of its Jobs are longer


def _check_series_id(series_id: str) -> str:
    if len(check_job_id(series_id)) > MAX_ID_CHARS:
        start = series_id[:20]
        raise UsageError(f"{start}… is too long for an id of iterations: use at most {MAX_ID_CHARS} characters")
    return series_id


def _iterate_settings(expert: Expert) -> Iterate:
    if expert.iterate is None:
        raise UsageError(
            f"Expert {expert.key} does not say how it is measured: write [experts.{expert.key}.iterate], with an"
            " evaluator, into perstack.toml"
        )
    return expert.iterate
