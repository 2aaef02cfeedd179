"""The Runs of Jobs: each is a log of its Job's, and may continue from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import field

from perstack.core.chain import Head, Sealed, open_line, taken_out
from perstack.core.events import RedactEvent, ResumeRun, StartRun, StoredEvent, parse_event
from perstack.core.ids import event_id_of
from perstack.core.job import Job
from perstack.core.places import is_at_home
from perstack.core.run_facts import ContinuedFrom
from perstack.core.runs.begin import begin
from perstack.core.runs.evolve import evolve
from perstack.core.runs.state import Run
from perstack.core.upgrades import TooNew, upgrade
from perstack.dataclass import dataclass
from perstack.engine.logs.damage import BadEvent, UnknownEvent
from perstack.engine.logs.lines import readable, run_ids
from perstack.engine.logs.log import EventLog
from perstack.errors import Damaged, NotFound
from perstack.next_steps import Look
from perstack.ports.storage import RunRef, Storage


class RunDefinition:
    """What the logs of Runs are made of, for one look at them: what was redacted is looked for once."""

    def __init__(self, storage: Storage, known: dict[str, Run] | None = None) -> None:
        """`known`: Runs of the same Job, that others may continue from, as they are at the end of their logs."""
        self._storage = storage
        self._known = {} if known is None else known
        self._redactions: dict[RunRef, list[RedactEvent]] = {}

    def name(self, ref: RunRef) -> str:
        return ref.run_id

    async def event(self, ref: RunRef, seq: int, sealed: Sealed) -> StoredEvent:
        """In today's shape; of one that was redacted what the log's `redactEvent` leaves of it.

        Raises UnknownEvent, and BadEvent if nothing vouches for what was taken out, or if its ids name another place:
        what is done by them, such as writing files that are named after them, would be done elsewhere.
        """
        left = taken_out(sealed.payload)
        if left is None:
            return event_of(ref, seq, sealed.payload)
        from perstack.core.redaction import NotVouchedFor, stand_in  # few logs have one

        if ref not in self._redactions:
            self._redactions[ref] = redactions_in(ref, (await readable(self._storage, ref))[0])
        try:
            return stand_in(left, sealed.digest, seq, self._redactions[ref])
        except NotVouchedFor as error:
            raise _bad(BadEvent, ref, seq, str(error)) from error

    async def follow(self, state: Run | None, event: StoredEvent, head: Head) -> Run:
        if state is not None:
            return evolve(state, event, head)
        if isinstance(event, StartRun):
            return begin(event, head, await self._base(event.job_id, event.continued_from))
        raise Damaged(f"the log of {event.run_id} does not begin with startRun", readable=0)

    async def _base(self, job_id: str, place: ContinuedFrom | None) -> Run | None:
        if place is None:
            return None
        end = self._known.get(place.run_id)
        if end is not None and event_id_of(end.id, end.head.seq) == place.checkpoint_id:
            return end
        ref = RunRef(job_id, place.run_id)
        return await load_run(self._storage, ref, through=place.checkpoint_id, known=self._known)


def run_logs(storage: Storage, known: dict[str, Run] | None = None) -> EventLog[Run, StoredEvent]:
    """The logs of all Runs, for one look at them. `known` are the ends of those that others may continue from."""
    return EventLog(storage, RunDefinition(storage, known))


@dataclass(slots=True)
class LoadedJob:
    """A Job and the last state of each of its Runs."""

    job: Job
    runs: dict[str, Run] = field(default_factory=dict[str, Run])


async def load_job(
    storage: Storage, job_id: str, observe: Callable[[StoredEvent, Run], None] = lambda event, run: None
) -> LoadedJob:
    """Fold all logs of a Job; `observe` sees every event, with its Run after it. Raises NotFound, and Damaged."""
    loaded = LoadedJob(Job(job_id))
    for run_id in await run_ids(storage, job_id):
        run = await load_run(storage, RunRef(job_id, run_id), known=loaded.runs, observe=observe)
        if run is not None:
            loaded.runs[run_id] = run
            loaded.job.take(run)
            loaded.job.heads[run_id] = run.head
    return loaded


async def load_run(
    storage: Storage,
    ref: RunRef,
    *,
    through: str | None = None,
    known: dict[str, Run] | None = None,
    observe: Callable[[StoredEvent, Run], None] = lambda event, run: None,
) -> Run | None:
    """The state of a Run at its end, or right after the event (so, at the checkpoint) called `through`.

    `observe` sees every event, with the state after it. None for a Run whose log is empty. Raises Damaged, and NotFound
    if `through` is not in the log.
    """
    log = run_logs(storage, known)
    run: Run | None = None
    place = _place_in(ref, through)
    async with aclosing(log.folded(ref, limit=place)) as lines:
        async for line, run in lines:
            observe(line.event, run)
            if through is not None and place in (None, line.seq) and is_checkpoint(line.event, through):
                return run
    if through is not None:
        raise NotFound(f"there is no checkpoint {through} in {ref.run_id}", next_steps=(Look("log", ref.job_id),))
    return run


def event_of(ref: RunRef, seq: int, payload: bytes) -> StoredEvent:
    """The event at place `seq`, in today's shape. Raises UnknownEvent, and BadEvent if it belongs elsewhere."""
    try:
        event = upgrade(parse_event(payload))
    except TooNew as error:
        raise _bad(UnknownEvent, ref, seq, str(error)) from error
    except ValueError as error:
        reason = "this version does not know such an event: a newer one has written it"
        raise _bad(UnknownEvent, ref, seq, reason) from error
    if not is_at_home(event, ref.job_id, ref.run_id, seq):
        raise _bad(BadEvent, ref, seq, "its ids do not say this place, so it was not written here")
    return event


def redactions_in(ref: RunRef, lines: Iterable[bytes]) -> list[RedactEvent]:
    """The redactEvents of a log, in order."""
    found: list[RedactEvent] = []
    for seq, line in enumerate(lines, 1):
        if line.startswith(b'{"type":"redactEvent"'):
            with suppress(BadEvent):
                event = event_of(ref, seq, open_line(line).payload)
                found += [event] if isinstance(event, RedactEvent) else []
    return found


def checkpoint_at(event: StoredEvent) -> str | None:
    """The id of the checkpoint that an event makes, if it makes one; `resumeRun` only refers to one."""
    found = None if isinstance(event, ResumeRun) else getattr(event, "checkpoint_id", None)
    return found if isinstance(found, str) else None


def is_checkpoint(event: StoredEvent, checkpoint_id: str) -> bool:
    """Whether this event is the place that a checkpoint names."""
    return checkpoint_id in (event.id, getattr(event, "checkpoint_id", None)) and event.type != "resumeRun"


def _bad(kind: type[BadEvent], ref: RunRef, seq: int, reason: str) -> BadEvent:
    return kind(ref, ref.run_id, seq, reason, f"; events before it that can be read: {seq - 1}")


def _place_in(ref: RunRef, through: str | None) -> int | None:
    """How many events to read at most: none beyond the place wanted, for what follows it may be damaged."""
    run_id, _, seq = (through or "").rpartition("-")
    return int(seq) if run_id == ref.run_id and seq.isdigit() else None
