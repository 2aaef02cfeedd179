"""Logs of Runs: parse their events, load Runs and Jobs, derive caches, and follow a Job from another process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import cache
from typing import TYPE_CHECKING

from perstack.core.base.chain import Head, SealedLine, open_line, read_remains
from perstack.core.base.ids import event_id_of
from perstack.core.runs.facts import ContinuedFrom
from perstack.core.runs.start import TooNew, upgrade
from perstack.dataclass import dataclass
from perstack.engine.log.event_log import EventLog, InvalidEvent, StoredLine, UnknownEvent, read_intact, run_ids
from perstack.errors import Damaged, NotFound
from perstack.next_steps import Inspect
from perstack.ports.storage import RunRef, Storage
from perstack.support.storage import every_id

if TYPE_CHECKING:
    from perstack.core.jobs.checkpoints import CheckpointFile, RunSetting
    from perstack.core.jobs.job import Job

    # for types only: a list of Jobs needs no state of a Run, and neither it nor a new Run needs the classes of events
    from perstack.core.runs.events import StoredEvent
    from perstack.core.runs.events.lifecycle import RedactEvent
    from perstack.core.runs.state import Run

# Logs of Runs.


@dataclass(frozen=True, slots=True)
class RunLog:
    """The unparsed log of a Run, up to the first damage."""

    run_id: str
    lines: list[bytes]  # the JSON of one event each, with the digest and hash of the chain, without newline
    damage: Damaged | None = None  # the damage after the last line; None without any


class RunLogFormat:
    """Rules for the logs of Runs. Create one for each read: it looks for redactions only once."""

    def __init__(self, storage: Storage, known_runs: dict[str, Run] | None = None) -> None:
        """Read base Runs from `storage`, unless `known_runs` has the states at the end of their logs."""
        self._storage = storage
        self._known_runs = {} if known_runs is None else known_runs
        self._redactions: dict[RunRef, list[RedactEvent]] = {}

    def name(self, ref: RunRef) -> str:
        return ref.run_id

    async def event(self, ref: RunRef, seq: int, sealed: SealedLine) -> StoredEvent:
        """Parse an event, upgraded to today's shape; a redacted one as the log's `redactEvent` leaves it.

        Raises UnknownEvent, and InvalidEvent if no `redactEvent` covers removed content, or if the event's ids name
        another place: files named after such ids would be written in the wrong place.
        """
        redacted_remains = read_remains(sealed.payload)
        if redacted_remains is None:
            return event_of(ref, seq, sealed.payload)
        from perstack.core.runs.redacted_events import UnverifiedRedaction, restore_event  # few logs have one

        if ref not in self._redactions:
            self._redactions[ref] = redactions_in(ref, (await read_intact(self._storage, ref))[0])
        try:
            return restore_event(redacted_remains, sealed.digest, seq, self._redactions[ref])
        except UnverifiedRedaction as error:
            raise _invalid_event(InvalidEvent, ref, seq, str(error)) from error

    async def follow(self, run: Run | None, event: StoredEvent, head: Head) -> Run:
        """Return the Run's state after one more event. Raises Damaged if the log does not begin with `startRun`."""
        if run is not None:
            from perstack.core.runs.evolve import evolve

            return evolve(run, event, head)
        if event.type == "startRun":
            from perstack.core.runs.state import begin

            return begin(event, head, await self._base_run(event.job_id, event.continued_from))
        raise Damaged(f"the log of {event.run_id} does not begin with startRun", readable=0)

    async def _base_run(self, job_id: str, origin: ContinuedFrom | None) -> Run | None:
        if origin is None:
            return None
        end = self._known_runs.get(origin.run_id)
        if end is not None and event_id_of(end.id, end.head.seq) == origin.checkpoint_id:
            return end
        ref = RunRef(job_id, origin.run_id)
        return await load_run(self._storage, ref, through=origin.checkpoint_id, known_runs=self._known_runs)


def run_logs(storage: Storage, known_runs: dict[str, Run] | None = None) -> EventLog[Run, StoredEvent]:
    """Return the logs of all Runs, for one read. `known_runs`: final states of Runs that others may continue from."""
    return EventLog(storage, RunLogFormat(storage, known_runs))


async def load_job(
    storage: Storage, job_id: str, observe: Callable[[StoredEvent, Run], None] = lambda event, run: None
) -> Job:
    """Fold all logs of a Job; `observe` gets each event and the state after it. Raises NotFound and Damaged."""
    from perstack.core.jobs.job import Job

    job = Job(job_id)
    for run_id in await run_ids(storage, job_id):
        run = await load_run(storage, RunRef(job_id, run_id), known_runs=job.runs, observe=observe)
        if run is not None:
            job.update(run)
            job.stored[run_id] = run
    return job


async def load_run(
    storage: Storage,
    ref: RunRef,
    *,
    through: str | None = None,
    known_runs: dict[str, Run] | None = None,
    observe: Callable[[StoredEvent, Run], None] = lambda event, run: None,
) -> Run | None:
    """Return a Run's state at its end, or after the event with the id `through`; None for an empty log.

    `observe` gets each event and the state after it. Raises Damaged, and NotFound if `through` is not in the log.
    """
    log = run_logs(storage, known_runs)
    run: Run | None = None
    max_events = _max_events(ref, through)
    async with aclosing(log.fold(ref, limit=max_events)) as lines:
        async for line, run in lines:
            observe(line.event, run)
            if through is not None and max_events in (None, line.seq) and is_checkpoint(line.event, through):
                return run
    if through is not None:
        raise NotFound(f"there is no checkpoint {through} in {ref.run_id}", next_steps=(Inspect("log", ref.job_id),))
    return run


def event_of(ref: RunRef, seq: int, payload: bytes) -> StoredEvent:
    """Parse the event at place `seq`. Raises UnknownEvent, and InvalidEvent if its ids name another place."""
    from perstack.core.runs.events import is_at_home, parse_event

    try:
        event = upgrade(parse_event(payload))
    except TooNew as error:
        raise _invalid_event(UnknownEvent, ref, seq, str(error)) from error
    except ValueError as error:
        reason = "a newer version has written it, and this one does not know such an event"
        raise _invalid_event(UnknownEvent, ref, seq, reason) from error
    if not is_at_home(event, ref.job_id, ref.run_id, seq):
        raise _invalid_event(InvalidEvent, ref, seq, "its ids name another place, so it was not written here")
    return event


def redactions_in(ref: RunRef, lines: Iterable[bytes]) -> list[RedactEvent]:
    """Return the `redactEvent`s of a log, in order."""
    redactions: list[RedactEvent] = []
    for seq, line in enumerate(lines, 1):
        if line.startswith(b'{"type":"redactEvent"'):
            with suppress(InvalidEvent):
                event = event_of(ref, seq, open_line(line).payload)
                redactions += [event] if event.type == "redactEvent" else []
    return redactions


def checkpoint_at(event: StoredEvent) -> str | None:
    """Return the id of the checkpoint that an event makes, or None; `resumeRun` only refers to one."""
    # most events have no such field, and `getattr` with a default is slow for these
    checkpoint_id = getattr(event, "checkpoint_id", None) if _makes_checkpoint(type(event)) else None
    return checkpoint_id if isinstance(checkpoint_id, str) else None


@cache
def _makes_checkpoint(event_type: type[StoredEvent]) -> bool:
    from perstack.core.runs.events.lifecycle import ResumeRun

    return event_type is not ResumeRun and "checkpoint_id" in event_type.model_fields


def is_checkpoint(event: StoredEvent, checkpoint_id: str) -> bool:
    """Return whether a checkpoint's id names this event."""
    return checkpoint_id in (event.id, getattr(event, "checkpoint_id", None)) and event.type != "resumeRun"


def _invalid_event(kind: type[InvalidEvent], ref: RunRef, seq: int, reason: str) -> InvalidEvent:
    return kind(ref, ref.run_id, seq, reason, f"; events before it that can be read: {seq - 1}")


def _max_events(ref: RunRef, through: str | None) -> int | None:
    """Return the number of events up to the checkpoint, since the log may be damaged after it; None for all."""
    run_id, _, seq = (through or "").rpartition("-")
    return int(seq) if run_id == ref.run_id and seq.isdigit() else None


# Caches of a Job, derived from its logs: to compare them, or to write them again.


@dataclass(frozen=True, slots=True)
class DerivedCaches:
    """The caches of a Job, derived from its logs."""

    job: Job
    settings: dict[str, RunSetting]  # the content of each Run's run-setting.json
    checkpoints: dict[str, CheckpointFile]  # the stored checkpoints that are in the logs


async def checkpoint_ids(storage: Storage, job_id: str) -> list[str]:
    """Return the ids of all stored checkpoints of a Job; none if the storage keeps no copies."""
    return await every_id(lambda after: storage.checkpoints(job_id, after=after))


async def derive(storage: Storage, job_id: str) -> DerivedCaches:
    """Compute the caches of a Job from its logs. Raises Damaged and NotFound."""
    from perstack.core.jobs.checkpoints import checkpoint_file, run_setting

    stored_ids = frozenset(await checkpoint_ids(storage, job_id))
    checkpoints: dict[str, CheckpointFile] = {}

    def observe(_: StoredEvent, run: Run) -> None:
        event_id = event_id_of(run.id, run.head.seq)
        if event_id in stored_ids:
            checkpoints[event_id] = checkpoint_file(run)

    job = await load_job(storage, job_id, observe)
    settings = {run_id: run_setting(run.start) for run_id, run in job.runs.items()}
    return DerivedCaches(job, settings, checkpoints)


# Following a Job that another process drives.

_POLL_INTERVAL_S = 1.0  # maximum seconds between two reads of the logs
_EVENTS_PER_READ = 2_000  # events that are read together: checking them blocks the event loop for a moment


async def watch_job(
    storage: Storage,
    job_id: str,
    is_over: Callable[[], Awaitable[bool]] | None = None,
    *,
    after: Mapping[str, int] | None = None,
    on_caught_up: Callable[[], None] = lambda: None,
) -> AsyncGenerator[StoredLine[StoredEvent]]:
    """Yield every stored event of a Job, each Run's in order, until the Job is not driven and all were yielded.

    `after`: the place, by Run, after which to start. `is_over`: continue with a Job that is not driven until this
    returns True. `on_caught_up` is called each time all stored events were yielded.
    """
    positions = dict(after or {})
    async with storage.watch(job_id) as watch:
        while True:
            is_driven = await storage.lease_info(job_id) is not None
            continues = is_driven or (is_over is not None and not await is_over())
            for run_id in await run_ids(storage, job_id):
                log, ref, is_more = run_logs(storage), RunRef(job_id, run_id), True
                while is_more:
                    start = positions.get(run_id, 0)
                    async with aclosing(log.events(ref, after=start, limit=_EVENTS_PER_READ)) as lines:
                        async for line in lines:
                            positions[run_id] = line.seq
                            yield line
                    is_more = positions.get(run_id, 0) - start == _EVENTS_PER_READ
            on_caught_up()
            if not continues:
                return
            await watch.wait(_POLL_INTERVAL_S)
