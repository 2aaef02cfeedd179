"""One Run while it is driven: its state, and the events that are not on disk yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from perstack.core.base import encoded
from perstack.core.chain import EMPTY_LOG, Head, line_of, link
from perstack.core.checkpoint import checkpoint_file, run_setting
from perstack.core.events import ResumeRun, StartRun, StoredEvent
from perstack.core.ids import event_id_of
from perstack.core.job import Job
from perstack.core.run_place import RunPlace, places_of
from perstack.core.runs.begin import begin
from perstack.core.runs.evolve import evolve
from perstack.core.runs.stamp import Stamp
from perstack.core.runs.state import Run
from perstack.engine.clock import SYSTEM
from perstack.engine.emit import Emitter
from perstack.ports.clock import Clock
from perstack.ports.storage import KeepsCopies, RunRef, Storage
from perstack.ports.uninterrupted import uninterrupted as uninterrupted

_E = TypeVar("_E", bound=StoredEvent)


class Session:
    """Folds events into the Run and the Job at once, and writes them together at the next `flush`.

    Listeners see an event when it is on disk, not before.
    """

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
        self.ref = ref
        self.clock = clock
        self.expert_key = expert_key
        self.state: Run | None = None
        self.base: Run | None = None
        """The Run that this one continues from, as it was at that place."""
        self.memo: dict[Hashable, object] = {}
        """What the Run's provider keeps from one request to the next."""
        self.first_try: float | None = None
        """When the generation in hand was tried first in this process, by `time.monotonic`; None between two."""
        self._storage = storage
        self._copies = storage if isinstance(storage, KeepsCopies) else None
        self._job = job
        self._emit = emit
        self._on_written = on_written
        self._head = EMPTY_LOG
        self._on_disk = 0
        self._waiting: list[tuple[StoredEvent, bytes, str, str]] = []
        self._writing = asyncio.Lock()
        self._failure: BaseException | None = None
        """What the first write that failed failed with."""

    @property
    def run(self) -> Run:
        """The state. Raises RuntimeError before `startRun`."""
        if self.state is None:
            raise RuntimeError(f"{self.ref.run_id} has not been started")
        return self.state

    @property
    def next_id(self) -> str:
        """The id of the event, and so of the checkpoint, that comes next."""
        return event_id_of(self.ref.run_id, self._head.seq + 1)

    @property
    def head(self) -> Head:
        return self._head

    @property
    def has_unwritten(self) -> bool:
        return bool(self._waiting)

    @property
    def place(self) -> RunPlace:
        """Where in its Job's tree the Run is."""
        return places_of(tally.start for tally in self._job.runs.values())[self.ref.run_id]

    def take_up(self, run: Run) -> None:
        """Go on from a state that was read from the log."""
        self.state, self._head, self._on_disk = run, run.head, run.head.seq

    def stamp(self, ahead: int = 0, *, step: int | None = None) -> Stamp:
        """The common fields of the event that comes next, or so many after it."""
        current = self.state.step if self.state is not None else 0
        return Stamp(
            id=event_id_of(self.ref.run_id, self._head.seq + 1 + ahead),
            timestamp=self.clock.now(),
            job_id=self.ref.job_id,
            run_id=self.ref.run_id,
            expert_key=self.expert_key,
            step_number=max(1, current if step is None else step),
        )

    def note(self, event: _E) -> _E:
        """Take in a fact. It is in the state now, and on disk after the next `flush`."""
        event, payload = encoded(event)
        digest, self._head = link(self._head, payload)
        if isinstance(event, StartRun):
            self.state = begin(event, self._head, self.base)
        else:
            self.state = evolve(self.run, event, self._head)
        self._job.take(self.state)
        self._waiting.append((event, payload, digest, self._head.hash))
        return event

    def note_all(self, events: Iterable[StoredEvent]) -> None:
        """Take in facts that were decided together."""
        for event in events:
            self.note(event)

    async def flush(self) -> None:
        """Write what was noted, all or nothing, and show it. Raises Conflict if another driver wrote first.

        After a write that failed nothing more is written: what comes later would not continue the log. Each flush then
        raises what the first failed with.
        """
        if not self._waiting and not self._writing.locked():  # what another is writing is not on disk yet
            return
        await uninterrupted(self._write())

    async def _write(self) -> None:
        async with self._writing:
            if self._failure is not None:
                raise self._failure
            batch, self._waiting = self._waiting, []
            if not batch:
                return
            lines = [
                line_of(payload, digest, chained, len(batch) if index == 0 else 1)
                for index, (_, payload, digest, chained) in enumerate(batch)
            ]
            try:
                await self._append(lines, starts=any(_tells_of_a_start(event) for event, *_ in batch))
            except BaseException as error:
                self._failure = error
                raise
            self._job.heads[self.ref.run_id] = Head(self._on_disk, batch[-1][3])
            self._on_written()
            for (event, _, _, _), line in zip(batch, lines, strict=True):
                self._emit(event, line)

    async def _append(self, lines: list[bytes], *, starts: bool) -> None:
        await self._storage.append(self.ref, self._on_disk, lines)
        if starts and self._copies is not None:
            await self._copies.put_run_setting(self.ref, run_setting(self.run.start).to_json())
        self._on_disk += len(lines)

    async def write_checkpoint(self) -> None:
        """Keep the state's file for readers in a hurry. The log alone is enough for all of them."""
        if self._copies is not None:
            file = checkpoint_file(self.run)
            await self._copies.put_checkpoint(self.ref.job_id, file.id, file.to_json())


def _tells_of_a_start(event: StoredEvent) -> bool:
    return isinstance(event, StartRun) or (isinstance(event, ResumeRun) and event.definition is not None)
