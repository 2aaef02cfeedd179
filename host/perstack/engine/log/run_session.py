"""Write the log of a driven Run: its state in memory, and the events that are not on disk yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from inspect import Signature, iscoroutinefunction, signature
from typing import TYPE_CHECKING, NamedTuple, Self, TypedDict, TypeVar, cast

from perstack.core.base.chain import EMPTY_LOG, Head, SealedBatch, format_line, link
from perstack.core.base.ids import event_id_of
from perstack.core.base.records import encode_record
from perstack.core.definitions.settings import Limits
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import RunPlace, places_of
from perstack.core.runs.facts import EventStamp
from perstack.core.runs.runtime_start import InitializeRuntime
from perstack.core.runs.start import StartRun
from perstack.core.runs.state import Run, begin
from perstack.core.secrets.masking import masked_words
from perstack.errors import UsageError
from perstack.ports.hooks import Listener
from perstack.ports.storage import RunRef, Storage
from perstack.system.clock import SYSTEM, Clock
from perstack.system.concurrency import leave_own_task, shield_until_done
from perstack.system.user import notice
from perstack.version import VERSION

if TYPE_CHECKING:
    from perstack.core.runs.events import Event, StoredEvent
    from perstack.core.runs.events.lifecycle import ResumeRun

# Show events to listeners.

EventListener = Callable[["Event", bytes], None]  # listener that receives an event and its line as stored in the log

OnEvent = EventListener | Callable[["Event"], None]
"""A caller's listener: it receives an event, and its line as stored in the log if it takes a second argument."""


def as_listener(on_event: OnEvent | None) -> EventListener | None:
    """Return a listener that receives an event and its line. Raises UsageError for a function that takes neither."""
    if on_event is None:
        return None
    if iscoroutinefunction(on_event) or iscoroutinefunction(type(on_event).__call__):
        raise UsageError("on_event is called, not awaited: pass a plain function, or iterate over `Host.stream`")
    try:
        parameters = signature(on_event)
    except ValueError:  # some functions written in C have none
        return cast("EventListener", on_event)
    if _accepts(parameters, 2):
        return cast("EventListener", on_event)
    if not _accepts(parameters, 1):
        raise UsageError(f"on_event is called with an event, or with an event and its line, but takes {parameters}")
    event_listener = cast("Callable[[Event], None]", on_event)

    @wraps(event_listener)
    def listener(event: Event, line: bytes) -> None:
        return event_listener(event)  # for the Emitter, which refuses a coroutine

    return listener


def _accepts(parameters: Signature, count: int) -> bool:
    try:
        parameters.bind(*(None,) * count)
    except TypeError:
        return False
    return True


class DisplayStamp(TypedDict):
    """Common fields of events that are shown but not stored."""

    id: str
    timestamp: int
    job_id: str
    run_id: str


def runtime_start_event(start: StartRun, limits: Limits, location: str, now: int) -> InitializeRuntime:
    """Create the event for the start of work on a Run. `location` is the storage's, `now` milliseconds since 1970."""
    return InitializeRuntime(
        id=f"{start.run_id}-init",
        timestamp=now,
        job_id=start.job_id,
        run_id=start.run_id,
        runtime_version=VERSION,
        expert_key=start.expert_key,
        model=start.model,
        provider=start.provider,
        max_steps=limits.max_steps,
        storage=masked_words(location),
    )


class Emitter:
    """Calls every listener with each event. A listener that raises is reported once and removed.

    SystemExit, KeyboardInterrupt and CancelledError interrupt the Job, and leave the call that drives it.
    """

    def __init__(self, listeners: Sequence[Listener], on_event: EventListener | None) -> None:
        """Register the listeners of plugins, and `on_event` of the caller if there is one."""
        self._listeners: list[Callable[[Event, bytes], object]] = [listener.on_event for listener in listeners]
        if on_event is not None:
            self._listeners.append(on_event)

    def __call__(self, event: Event, line: bytes) -> None:
        """Show an event to all listeners."""
        for listener in tuple(self._listeners):
            try:
                result = listener(event, line)
                if isinstance(result, Coroutine):
                    result.close()
                    raise TypeError("it returns a coroutine, which nobody awaits")
            except Exception as error:  # noqa: BLE001 - a listener's fault must not end a Run
                self._listeners.remove(listener)
                name = getattr(listener, "__qualname__", repr(listener))
                text = f"listener {name} raised {type(error).__name__}: {error}; it is not called any more"
                notice(text)
            except BaseException as error:
                self._listeners.remove(listener)
                if not leave_own_task(error):
                    raise

    def display(self, event: Event) -> None:
        """Show an event that is not stored."""
        if self._listeners:
            self(event, event.to_json())


_SYNC_DELAY_S = 0.002  # seconds from `flush_soon` to its sync. If a model replies sooner, the next flush syncs

_E = TypeVar("_E", bound="StoredEvent")


class _UnwrittenEvent(NamedTuple):
    """A recorded event that is not in the storage yet, as it is linked to the chain."""

    event: StoredEvent
    payload: bytes
    digest: str
    head: Head  # the end of the log with this event


class RunSession:
    """Writer of one Run's log: folds events into the Run and the Job at once, and writes them at the next `flush`.

    Listeners see an event when it is on disk, not before.
    """

    run: Run  # the state of the Run; there is none before `startRun` is recorded

    def __init__(
        self,
        storage: Storage,
        job: Job,
        emit: Emitter,
        ref: RunRef,
        expert_key: str,
        on_written: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Prepare a new Run, whose first event must be `startRun`; `of` continues an existing one."""
        self.ref = ref
        self.clock = clock
        self.expert_key = expert_key
        self.base: Run | None = None  # the state that this Run continues from, of another Run; None for a new start
        self.memo: dict[Hashable, object] = {}  # data that the provider and features keep between requests
        self.first_attempt: float | None = None
        """Start of the first try of the current generation in this process, by `time.monotonic`; None between
        generations."""
        self.withheld_reasons: Mapping[
            str, str
        ] = {}  # reasons why tools of the provider are not offered, as recorded last
        self._storage = storage
        self._job = job
        self._emit = emit
        self._on_written = on_written
        self._head = EMPTY_LOG
        self._written = EMPTY_LOG
        self._written_run: Run | None = None  # the state at `_written`
        self._waiting: list[_UnwrittenEvent] = []
        self._is_redefined = False  # True if an unwritten event brings a definition
        self._unshown: list[tuple[StoredEvent, bytes]] = []  # written events that are not synced yet
        self._timer: asyncio.TimerHandle | None = None
        self._sync_due = 0.0  # time of the event loop by which the first of `_unshown` must be synced
        self._writing = asyncio.Lock()
        self._failure: BaseException | None = None  # the error of the first failed write

    @classmethod
    def of(
        cls,
        storage: Storage,
        job: Job,
        run: Run,
        emit: Emitter,
        on_written: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
    ) -> Self:
        """Create the writer of a Run that has begun; `run` is the state at the end of its log."""
        session = cls(storage, job, emit, RunRef(job.id, run.id), run.start.expert_key, on_written, clock)
        session.run, session._head, session._written = run, run.head, run.head
        return session

    @property
    def has_begun(self) -> bool:
        """True once `startRun` is recorded."""
        return self._head != EMPTY_LOG

    @property
    def next_id(self) -> str:
        """The id of the next event, and so of its checkpoint."""
        return event_id_of(self.ref.run_id, self._head.seq + 1)

    @property
    def head(self) -> Head:
        """The end of the log, with the events that are not on disk yet."""
        return self._head

    @property
    def has_unwritten(self) -> bool:
        """True if recorded events wait for `flush`."""
        return bool(self._waiting)

    @property
    def place(self) -> RunPlace:
        return places_of(run.start for run in self._job.runs.values())[self.ref.run_id]

    def stamp(self, ahead: int = 0, *, step: int | None = None) -> EventStamp:
        """Return the common fields of the next event, or of the one `ahead` places after it."""
        current = self.run.step if self._head.seq else 0
        return EventStamp(
            id=event_id_of(self.ref.run_id, self._head.seq + 1 + ahead),
            timestamp=self.clock.now(),
            job_id=self.ref.job_id,
            run_id=self.ref.run_id,
            expert_key=self.expert_key,
            step_number=max(1, current if step is None else step),
        )

    def add(self, event: _E) -> _E:
        """Fold an event into the state. It is on disk after the next `flush`."""
        event, payload = encode_record(event)
        digest, self._head = link(self._head, payload)
        if isinstance(event, StartRun):
            self.run = begin(event, self._head, self.base)
            self._is_redefined = True
        else:
            from perstack.core.runs.evolve import evolve  # imported late: it loads all events that may follow the first

            self.run = evolve(self.run, event, self._head)
            if event.type == "resumeRun" and cast("ResumeRun", event).definition is not None:
                self._is_redefined = True
        self._job.update(self.run)
        self._waiting.append(_UnwrittenEvent(event, payload, digest, self._head))
        return event

    def record_all(self, events: Iterable[StoredEvent]) -> None:
        """Fold events that were decided together into the state."""
        for event in events:
            self.add(event)

    async def flush(self) -> None:
        """Write the recorded events, all or nothing, and show them. Raises Conflict if another driver wrote first.

        After a failed write each later flush raises the error of the first failure: it would not continue the log.
        """
        # Events that another task is writing are not on disk yet.
        if self._writing.locked() or (self._waiting and not self._write_now()):
            await shield_until_done(self._write())
        if self._unshown or self._failure is not None:
            self._sync()

    async def flush_soon(self) -> None:
        """Write the recorded events now, so that they outlive this process; sync and show them `_SYNC_DELAY_S` later.

        Until then a power loss may lose them. Raises as `flush`; the next flush raises an error of the later sync.
        """
        is_first = not self._unshown
        if self._writing.locked() or not self._waiting or not self._write_now(synced=False):
            await self.flush()
            return
        loop = asyncio.get_running_loop()
        if is_first:
            self._sync_due = loop.time() + _SYNC_DELAY_S
        if self._timer is None:
            self._timer = loop.call_at(self._sync_due, self._sync_late, loop, self._sync_due)

    def _sync_late(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._timer = None
        if self._unshown and self._sync_due != due:  # a flush came first, and then another `flush_soon`
            self._timer = loop.call_at(self._sync_due, self._sync_late, loop, self._sync_due)
        else:
            self.show_written()

    def show_written(self) -> None:
        """Sync and show the events that `flush_soon` has written. Call it before an unstored event is shown."""
        with suppress(Exception):  # the next flush raises it
            self._sync()

    def _sync(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._unshown:
            try:
                self._storage.sync_now(self.ref)
            except BaseException as error:
                self._failure = error
                raise
            self._show_synced()

    def _write_now(self, *, synced: bool = True) -> bool:
        """Write without waiting. Return False, writing nothing, if the storage would have to wait."""
        if self._is_redefined:  # a copy of the definition follows its append
            return False
        batch, lines = self._seal()
        run = self.run
        try:
            if not self._storage.append_now(self.ref, self._written.seq, lines, synced=synced):
                return False
        except BaseException as error:
            self._failure, self._waiting = error, []
            raise
        self._waiting = []
        self._note_written(batch, lines, run)
        if synced:
            self._show_synced()
        return True

    async def _write(self) -> None:
        async with self._writing:
            if not self._waiting:
                return
            batch, lines = self._seal()
            run, is_redefined = self.run, self._is_redefined
            self._waiting, self._is_redefined = [], False
            try:
                await self._storage.append(self.ref, self._written.seq, lines)
                if is_redefined and self._storage.keeps_copies:
                    from perstack.core.jobs.checkpoints import run_setting

                    await self._storage.put_run_setting(self.ref, run_setting(run.start).to_json())
            except BaseException as error:
                self._failure = error
                raise
            self._note_written(batch, lines, run)
            self._show_synced()

    def _seal(self) -> tuple[list[_UnwrittenEvent], SealedBatch]:
        if self._failure is not None:
            raise self._failure
        batch = self._waiting
        lines = [
            format_line(item.payload, item.digest, item.head.hash, len(batch) if index == 0 else 1)
            for index, item in enumerate(batch)
        ]
        return batch, SealedBatch(lines, self._written, batch[-1].head)

    def _note_written(self, batch: list[_UnwrittenEvent], lines: SealedBatch, run: Run) -> None:
        self._written, self._written_run = lines.next_head, run
        self._unshown += [(item.event, line) for item, line in zip(batch, lines, strict=True)]

    def _show_synced(self) -> None:
        """Show the events that are on disk to listeners, and let job.json count them."""
        pending, self._unshown = self._unshown, []
        if self._written_run is not None:
            self._job.stored[self.ref.run_id] = self._written_run
        self._on_written()
        for event, line in pending:
            self._emit(event, line)

    async def write_checkpoint(self) -> None:
        """Store the state as a checkpoint file for fast readers. It is a cache: the log alone is enough."""
        if self._storage.keeps_copies:
            from perstack.core.jobs.checkpoints import checkpoint_file

            file = checkpoint_file(self.run)
            await self._storage.put_checkpoint(self.ref.job_id, file.id, file.to_json())
