"""From logs on disk to state in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from perstack.core.chain import EMPTY_LOG, Head, Sealed, open_line, taken_out
from perstack.core.events import ContinuedFrom, RedactEvent, ResumeRun, StartRun, StoredEvent, parse_event
from perstack.core.ids import event_id_of
from perstack.core.job import Job
from perstack.core.places import is_at_home
from perstack.core.runs.evolve import begin, evolve
from perstack.core.runs.state import Run
from perstack.core.upgrades import TooNew, upgrade
from perstack.engine.logs.lines import readable, run_ids
from perstack.errors import Damaged, NotFound
from perstack.next_steps import Look
from perstack.ports.storage import RunRef, Storage

_PAGE = 10_000


@dataclass(slots=True)
class LoadedJob:
    """A Job and the last state of each of its Runs."""

    job: Job
    runs: dict[str, Run] = field(default_factory=dict[str, Run])


class DoesNotFollow(Damaged):
    """A whole event that cannot come after those before it."""

    def __init__(self, run_id: str, seq: int, error: Exception) -> None:
        self.run_id = run_id
        self.seq = seq
        self.words = f"it does not follow from what comes before it ({error})"
        super().__init__(f"{run_id}, event {seq}: {self.words}", readable=seq - 1)


async def load_job(storage: Storage, job_id: str) -> LoadedJob:
    """Fold all logs of a Job. Raises NotFound, and Damaged."""
    loaded = LoadedJob(Job(job_id))

    def apply(event: StoredEvent, _: Run) -> None:
        loaded.job.apply(event)

    for run_id in await run_ids(storage, job_id):
        run = await load_run(storage, RunRef(job_id, run_id), known=loaded.runs, observe=apply)
        if run is None:
            continue
        loaded.runs[run_id] = run
        loaded.job.anchor(run_id, run.head.seq, run.head.hash)
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

    `observe` is told every event, with the state after it. None for a Run whose log is empty. Raises NotFound if
    `through` is not in the log.
    """
    run: Run | None = None
    head = EMPTY_LOG
    redactions: Redactions = {}
    while lines := await storage.read(ref, after=head.seq, limit=_page_size(ref, head.seq, through)):
        for line in lines:
            sealed = open_line(line)  # the storage has checked it against the chain
            head = Head(head.seq + 1, sealed.hash)
            event = await stored_event(storage, ref, head.seq, sealed, redactions)
            try:
                if run is not None:
                    run = evolve(run, event, head)
                elif isinstance(event, StartRun):
                    run = begin(event, head, await _base(storage, ref.job_id, event.continued_from, known or {}))
                else:
                    raise Damaged(f"the log of {ref.run_id} does not begin with startRun", readable=0)
                observe(event, run)
            except (LookupError, ValueError) as error:
                raise DoesNotFollow(ref.run_id, head.seq, error) from error
            if through is not None and is_checkpoint(event, through):
                return run
    if through is not None:
        raise NotFound(f"there is no checkpoint {through} in {ref.run_id}", next_steps=(Look("log", ref.job_id),))
    return run


def event_of(ref: RunRef, seq: int, payload: bytes) -> StoredEvent:
    """The event at place `seq`, in today's shape.

    Raises Damaged if it is whole but this version cannot read it, or if its ids name another place: what is done by
    them, such as writing files that are named after them, would be done elsewhere.
    """
    try:
        event = upgrade(parse_event(payload))
        if is_at_home(event, ref.job_id, ref.run_id, seq):
            return event
        words = NOT_AT_HOME
    except TooNew as error:
        words = str(error)
    except ValueError:
        words = "this version does not know such an event: a newer one has written it"
    raise unread(ref, seq, words)


NOT_AT_HOME = "its ids do not say this place, so it was not written here"


def unread(ref: RunRef, seq: int, words: str) -> Damaged:
    """The error for an event that is whole, and cannot be read."""
    return Damaged(f"{ref.run_id}, event {seq}: {words}; the {seq - 1} before it can be read", readable=seq - 1)


Redactions = dict[RunRef, list[RedactEvent]]
"""The redactEvents of logs, as far as they were looked for."""


async def stored_event(
    storage: Storage, ref: RunRef, seq: int, sealed: Sealed, known: Redactions | None = None
) -> StoredEvent:
    """The event at place `seq`; of one that was redacted what the log's `redactEvent` leaves of it. Raises Damaged.

    With `known` a log is looked through once for all of its redacted events.
    """
    left = taken_out(sealed.payload)
    if left is None:
        return event_of(ref, seq, sealed.payload)
    from perstack.core.redaction import NotVouchedFor, stand_in  # few logs have one

    known = {} if known is None else known
    if ref not in known:
        known[ref] = redactions_in(ref, (await readable(storage, ref))[0])
    try:
        return stand_in(left, sealed.digest, seq, known[ref])
    except NotVouchedFor as error:
        raise unread(ref, seq, str(error)) from error


def redactions_in(ref: RunRef, lines: Iterable[bytes]) -> list[RedactEvent]:
    """The redactEvents of a log, in order."""
    found: list[RedactEvent] = []
    for seq, line in enumerate(lines, 1):
        if line.startswith(b'{"type":"redactEvent"'):
            with suppress(Damaged):
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


def _page_size(ref: RunRef, after: int, through: str | None) -> int:
    """How many events to read at once: none beyond the place wanted, for what follows it may be damaged."""
    run_id, _, seq = (through or "").rpartition("-")
    if run_id != ref.run_id or not seq.isdigit():
        return _PAGE
    return max(0, min(_PAGE, int(seq) - after))


async def _base(storage: Storage, job_id: str, place: ContinuedFrom | None, known: dict[str, Run]) -> Run | None:
    if place is None:
        return None
    end = known.get(place.run_id)
    if end is not None and event_id_of(end.id, end.head.seq) == place.checkpoint_id:
        return end
    return await load_run(storage, RunRef(job_id, place.run_id), through=place.checkpoint_id, known=known)
