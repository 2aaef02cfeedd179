"""Store schedules: each is the single log of a Job in the space `schedules`, with its state as the index entry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress

from pydantic import ValidationError

from perstack.core.base.ids import Owner
from perstack.core.schedules.schedule import (
    ScheduleState,
    StoredScheduleEvent,
    check_schedule_name,
    damaged_schedule,
    evolve_schedule,
    parse_schedule_event,
)
from perstack.engine.anchors.trail import AuditTrail
from perstack.engine.log.event_log import Appended, Loaded
from perstack.engine.log.indexed_log import IndexedLog, IndexedLogFormat
from perstack.engine.log.storage import IndexEntries, StoredSummary, log_of
from perstack.errors import Conflict, StorageError
from perstack.next_steps import Inspect
from perstack.ports.storage import Storage
from perstack.system.concurrency import uninterrupted


def _itself(state: ScheduleState) -> ScheduleState:
    return state


def _jobs(state: ScheduleState) -> Sequence[str]:
    """Return nothing: Jobs of a schedule are deleted like others, and the current one may not have begun."""
    return ()


SCHEDULES = IndexedLogFormat[ScheduleState, StoredScheduleEvent, ScheduleState](
    kind="schedule",
    title="schedule ",
    missing="nothing has happened to a schedule {of} yet in {location}",
    listed=Inspect("schedules"),
    check=check_schedule_name,
    parse=parse_schedule_event,
    owner=lambda event: event.schedule,
    after=evolve_schedule,
    summary=_itself,
    damaged=damaged_schedule,
    jobs=_jobs,
    store=IndexEntries(frozenset(("name", "version", "lines", "updatedAt"))),
)


class ScheduleLog(IndexedLog[ScheduleState, StoredScheduleEvent, ScheduleState]):
    """Store of all schedules. It decides nothing."""

    def __init__(self, storage: Storage, audit: AuditTrail) -> None:
        """Create; `audit` sends the heads of schedules to an anchor, if there is one, whenever no Job is running."""
        super().__init__(storage, SCHEDULES)
        self._audit = audit

    async def latest(self, name: str) -> Loaded[ScheduleState] | None:
        """Return the state of a schedule; None if nothing has happened to it. Raises Damaged.

        A schedule that occurs each minute has a million events a year, so the fold starts from the index entry, if its
        hash is in the log.
        """
        kept = await SCHEDULES.store.read(self._space, name)
        return await self._since(name, kept) or (await self.readable(name)).or_raise().loaded

    async def add(
        self, name: str, loaded: Loaded[ScheduleState] | None, events: Sequence[StoredScheduleEvent]
    ) -> Appended[ScheduleState]:
        """Append events. Raises Conflict if another process has appended in the meantime."""
        if loaded is None:
            with suppress(Conflict):  # a process that died before the first event has left an empty log
                await self._space.create_job(name)
        return await uninterrupted(self.append(name, loaded, events))

    async def append(
        self, of: str, loaded: Loaded[ScheduleState] | None, events: Sequence[StoredScheduleEvent]
    ) -> Appended[ScheduleState]:
        """Append events, and send the head to the anchor unless a Job is running."""
        await self._audit.expect(Owner("schedule", of))
        appended = await super().append(of, loaded, events)
        if appended.state.current is None:
            await self._audit.at_rest(Owner("schedule", of), appended.head)
        return appended

    async def _since(self, name: str, kept: StoredSummary) -> Loaded[ScheduleState] | None:
        """Fold the log from the index entry on; None if there is no entry, or it does not belong to this log."""
        head = kept.head
        if head is None or kept.text is None:
            return None
        loaded: Loaded[ScheduleState] | None = None
        # the fold of the whole log reports the error
        with suppress(ValidationError, ValueError, LookupError, StorageError):
            state = ScheduleState.model_validate_json(kept.text)
            async with aclosing(self._log.events(log_of(name), after=head.seq - 1)) as lines:
                async for line in lines:
                    if loaded is not None:
                        loaded = Loaded(evolve_schedule(loaded.state, line.event), line.head)
                    elif line.head == head:
                        loaded = Loaded(state, head)
                    else:
                        return None
            return loaded
        return None
