"""Iterations: an Expert is run, what it has made is measured, and it is run again, until that is good enough.

series = await host.iterations.begin("fixer", "Make the tests pass")
print(series.best_iteration, series.status)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from perstack.core.definition_secrets import measured_without_secrets
from perstack.core.definitions import Expert, Iterate
from perstack.core.ids import check_job_id
from perstack.core.iterations.events import FailSeries, ResumeSeries, StartSeries
from perstack.core.iterations.evolve import aimed, check_resumable
from perstack.core.iterations.state import SeriesState
from perstack.core.overrides import check_budget
from perstack.engine.clock import new_ids
from perstack.engine.emit import OnEvent
from perstack.engine.jobs import Jobs
from perstack.engine.logs.series import SeriesLog, SeriesPage
from perstack.engine.series_drive import OnFact, SeriesDrive, SeriesWiring
from perstack.engine.setup import Setup
from perstack.errors import UsageError


class Iterations:
    """All series of iterations of one storage."""

    def __init__(self, jobs: Jobs, setup: Setup) -> None:
        self._log = SeriesLog(setup.storage, setup.audit)
        self._wiring = SeriesWiring(self._log, jobs, setup)
        self._setup = setup
        self._driving: dict[str, SeriesDrive] = {}

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
        """Run an Expert until what it makes is good enough, or no iteration is left; `iterate` of it says how.

        `on_event` is told the events of all its Jobs, `on_fact` those of the series. A cancelled call is recorded as a
        pause, and what goes wrong as a failure: `resume` goes on. Nothing is written before Expert, model and provider
        are known to be there. Raises UsageError if they are not, if the Expert has no `iterate`, or if the id is taken.
        `max_cost` (US dollars) and `max_tokens` are what all its Jobs may spend together; before each the rest is
        decided on, and when nothing is left it pauses.
        """
        definition = self._setup.definition(expert_key)
        expert = definition.experts[0]
        written = _settings(expert)
        most = written.max_iterations if max_iterations is None else max_iterations
        check_budget(max_cost, max_tokens=max_tokens)
        settings = aimed(written, most, target, max_cost, max_tokens)
        self._wiring.check_ready(expert.key, settings, definition)
        series_id = await self._new_id() if series_id is None else _checked(series_id)
        if await self._setup.storage.has_job(series_id):
            raise UsageError(f"there is a Job {series_id}: choose another id")
        await self._log.reserve(series_id)
        first = StartSeries(
            series_id=series_id,
            timestamp=self._setup.clock.now(),
            expert_key=expert.key,
            query=query,
            iterate=measured_without_secrets(settings),
            definition=definition,
        )
        async with self._log.lease(series_id):
            drive = SeriesDrive(self._wiring, on_event, on_fact)
            await drive.record(first)
            with self._in_hand(series_id, drive):
                return await drive.to_the_end()

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
        """Go on with a paused or failed series, or add `more` iterations, or a better target, to a completed one.

        `max_cost` and `max_tokens` are new totals for all its Jobs, those that have ended among them.

        Its settings and the definition of its Expert are those that it had, but for the evaluator, which is the one
        that perstack.toml names now. With `current` the definition is today's from now on, for Jobs that begin anew.
        Raises NotFound, UsageError if nothing would be left to be done, and Conflict while it is driven.
        """
        check_budget(max_cost, max_tokens=max_tokens)
        await self._log.load(series_id)
        async with self._log.lease(series_id):
            loaded = await self._log.load(series_id)
            check_resumable(loaded.state, more, target)
            key, definition, new = loaded.state.expert_key, loaded.state.definition, None
            if current or definition is None:
                definition = new = self._setup.definition(key)
            self._wiring.check_ready(key, loaded.state.settings, definition)
            drive = SeriesDrive(self._wiring, on_event, on_fact, loaded)
            resumed = ResumeSeries(
                series_id=series_id,
                timestamp=self._setup.clock.now(),
                more=more,
                target=target,
                max_cost=max_cost,
                max_tokens=max_tokens,
                definition=new,
            )
            await drive.record(resumed)
            with self._in_hand(series_id, drive):
                return await drive.to_the_end()

    def stop_after_step(self, series_id: str) -> bool:
        """A series that this process drives pauses as interrupted when the step that its Job is in has ended.

        False for one that this process does not drive, or whose result it measures: cancel that.
        """
        drive = self._driving.get(series_id)
        return drive is not None and drive.stop_after_step()

    async def fail(self, series_id: str, error: str) -> SeriesState:
        """Record that one has failed; a person may resume it. Raises Conflict while it is driven."""
        async with self._log.lease(series_id):
            drive = SeriesDrive(self._wiring, None, None, await self._log.load(series_id))
            now = self._setup.clock.now()
            await drive.record(ResumeSeries(series_id=series_id, timestamp=now))
            await drive.record(FailSeries(series_id=series_id, timestamp=now, error=error))
            return drive.series

    @contextmanager
    def _in_hand(self, series_id: str, drive: SeriesDrive) -> Generator[None]:
        self._driving[series_id] = drive
        try:
            yield
        finally:
            del self._driving[series_id]

    async def _new_id(self) -> str:
        ids = new_ids(self._setup.clock.now())
        while True:
            series_id = next(ids)
            if not await self._setup.storage.has_job(series_id) and not await self._log.has(series_id):
                return series_id

    async def has(self, series_id: str) -> bool:
        """Whether there is a series of that id."""
        return await self._log.has(series_id)

    async def get(self, series_id: str) -> SeriesState:
        """Where a series stands. Raises NotFound."""
        return await self._log.get(series_id)

    async def list(self, *, limit: int = 100, after: str | None = None) -> SeriesPage:
        """Series, the one written to last first; `after` is the `next` of the page before."""
        return await self._log.list(limit, after)


MOST_ID = 100
"""Characters of an id: those of the Jobs are longer."""


def _checked(series_id: str) -> str:
    if len(check_job_id(series_id)) > MOST_ID:
        raise UsageError(f"{series_id[:20]}… is too long for an id of iterations: use at most {MOST_ID} characters")
    return series_id


def _settings(expert: Expert) -> Iterate:
    if expert.iterate is None:
        raise UsageError(
            f"Expert {expert.key} does not say how it is measured: write [experts.{expert.key}.iterate], with an"
            " evaluator, into perstack.toml"
        )
    return expert.iterate
