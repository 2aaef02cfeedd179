"""Series of iterations in a storage: each is the one log of a Job in the space `iterations`."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from pydantic import ValidationError

from perstack.core.chain import EMPTY_LOG, Head, open_line, seal
from perstack.core.ids import check_job_id, run_id_of
from perstack.core.iteration_events import StartSeries, StoredSeriesEvent, parse_series_event
from perstack.core.iterations import (
    SeriesState,
    SeriesSummary,
    begin_series,
    damaged_series,
    evolve_series,
    summary_of_series,
)
from perstack.core.verification import head_in, with_head
from perstack.engine.guarding import guarded
from perstack.engine.load import readable
from perstack.errors import Conflict, Damaged, NotFound, StorageError, UsageError
from perstack.ports.storage import RunRef, Storage

SPACE = "iterations"
ENDED = "its process ended"


@dataclass(frozen=True, slots=True)
class LoadedSeries:
    """A series, and the end of its log."""

    state: SeriesState
    head: Head


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """Some series, the one written to last first, and the cursor that continues after them."""

    series: tuple[SeriesSummary, ...]
    next: str | None


class SeriesLog:
    """Reads and writes series, and decides nothing."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage.space(SPACE)
        self._place = storage.location

    async def has(self, series_id: str) -> bool:
        return await self._storage.has_job(series_id)

    async def reserve(self, series_id: str) -> None:
        """Make a place for a new one. Raises UsageError if there is one of that id."""
        try:
            await self._storage.create_job(check_job_id(series_id))
        except Conflict as error:
            # one that is empty was left by a process that died before its first fact
            if await self._storage.read(_ref(series_id), limit=1):
                raise UsageError(
                    f"there are iterations {series_id}; go on with: perstack resume {series_id}"
                ) from error

    @asynccontextmanager
    async def lease(self, series_id: str) -> AsyncGenerator[None]:
        """The right to drive one; what an earlier driver left running has ended. Raises Conflict, naming the holder, if
        another has it.
        """
        holder = f"pid {os.getpid()} on {socket.gethostname()}"
        async with self._storage.lease(series_id, holder), guarded(self._storage):
            yield

    async def append(self, loaded: LoadedSeries | None, event: StoredSeriesEvent) -> tuple[LoadedSeries, bytes]:
        """The series with one more fact, and the fact's line. Raises Conflict if another driver wrote first."""
        head = EMPTY_LOG if loaded is None else loaded.head
        lines, end = seal(head, [event.to_json()])
        await self._storage.append(_ref(event.series_id), head.seq, lines)
        state = after(None if loaded is None else loaded.state, event)
        await self._storage.put_summary(event.series_id, with_head(summary_of_series(state).to_json(), end))
        return LoadedSeries(state, end), lines[0]

    async def load(self, series_id: str) -> LoadedSeries:
        """Fold its facts. Raises NotFound, and Damaged."""
        loaded, damage = await self._as_far_as_readable(series_id)
        if damage is not None:
            raise damage
        if loaded is None:
            raise NotFound(f"there are no iterations {series_id} in {self._place}; `perstack iterations` lists them")
        return loaded

    async def _as_far_as_readable(self, series_id: str) -> tuple[LoadedSeries | None, Damaged | None]:
        kept = await self._storage.summary(check_job_id(series_id))  # before the log, which may only grow meanwhile
        lines, damage = await readable(self._storage, _ref(series_id))
        damage = damage or _against_kept(series_id, lines, kept)
        loaded: LoadedSeries | None = None
        for seq, line in enumerate(lines, start=1):
            sealed = open_line(line)
            try:
                state = after(None if loaded is None else loaded.state, parse_series_event(sealed.payload))
            except ValidationError:
                words = "no event that this version knows: a newer one has written it"
            except (ValueError, IndexError, UsageError) as error:
                words = f"it does not follow from what comes before it ({error})"
            else:
                loaded = LoadedSeries(state, Head(seq, sealed.hash))
                continue
            return loaded, Damaged(f"{series_id}, event {seq}: {words}", readable=seq - 1)
        return loaded, damage

    async def get(self, series_id: str) -> SeriesState:
        """Where it stands: one that is running and that nobody drives is paused."""
        state = (await self.load(series_id)).state
        if state.status != "running" or await self._storage.lease_info(series_id) is not None:
            return state
        return state.model_copy(update={"status": "paused", "pause_reason": "checkpoint", "message": ENDED})

    async def list(self, limit: int, after: str | None) -> SeriesPage:
        """The one written to last first. One that does not read is a row that says so."""
        page = await self._storage.jobs(limit=limit, after=after)
        found: list[SeriesSummary] = []
        for series_id in page.ids:
            try:
                found.append(await self._summary(series_id))
            except NotFound:  # one whose process died before its first fact
                continue
            except StorageError as error:
                found.append(await self._of_damaged(series_id, error))
        return SeriesPage(tuple(found), page.next)

    async def _summary(self, series_id: str) -> SeriesSummary:
        cached = await self._storage.summary(series_id)
        with suppress(ValidationError):
            summary = None if cached is None else SeriesSummary.model_validate_json(cached)
            if summary is not None and summary.status != "running":
                return summary
        return summary_of_series(await self.get(series_id))

    async def _of_damaged(self, series_id: str, error: StorageError) -> SeriesSummary:
        loaded: LoadedSeries | None = None
        with suppress(StorageError):
            loaded, _ = await self._as_far_as_readable(series_id)
        return damaged_series(series_id, None if loaded is None else loaded.state, str(error))


def _against_kept(series_id: str, lines: Sequence[bytes], kept: bytes | None) -> Damaged | None:
    """job.json bears the place in the log that it tells of: a shorter log was cut, one with another hash made anew."""
    head = None if kept is None else head_in(kept)
    if head is None:
        return None
    if len(lines) < head.seq:
        words = f"the log has {len(lines)} events, and job.json tells of {head.seq}: put it back from a copy"
        return Damaged(f"{series_id}: {words}", readable=len(lines))
    if open_line(lines[head.seq - 1]).hash != head.hash:
        words = "the log was written anew: its hash there is not the one in job.json; put it back from a copy"
        return Damaged(f"{series_id}, event {head.seq}: {words}", readable=0)
    return None


def after(state: SeriesState | None, event: StoredSeriesEvent) -> SeriesState:
    """The series after one fact more. Raises ValueError if it cannot follow."""
    if state is not None:
        return evolve_series(state, event)
    if isinstance(event, StartSeries):
        return begin_series(event)
    raise ValueError("the first is not startSeries")


def _ref(series_id: str) -> RunRef:
    return RunRef(series_id, run_id_of(series_id, 1))
