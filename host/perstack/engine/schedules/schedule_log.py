"""Schedules in a storage: each is the one log of a Job in the space `schedules`, with an entry of its whole state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress

from pydantic import ValidationError

from perstack.core.owners import Owner
from perstack.core.schedules.events import StoredScheduleEvent, parse_schedule_event
from perstack.core.schedules.evolve import evolve_schedule
from perstack.core.schedules.state import ScheduleState, check_schedule_name, damaged_schedule
from perstack.engine.audit import Auditing
from perstack.engine.logs.kept import Entry, Kept, log_of
from perstack.engine.logs.log import Appended, Loaded
from perstack.engine.logs.summarized import Summarized, SummarizedLog
from perstack.engine.spaces import SCHEDULE_SPACE
from perstack.errors import Conflict, StorageError
from perstack.next_steps import Look
from perstack.ports.storage import Storage
from perstack.ports.uninterrupted import uninterrupted


def _itself(state: ScheduleState) -> ScheduleState:
    return state


def _jobs(state: ScheduleState) -> Sequence[str]:
    """None: those of a schedule are deleted as others are, and the one that is at work may not have begun."""
    return ()


SCHEDULES = Summarized[ScheduleState, StoredScheduleEvent, ScheduleState](
    kind="schedule",
    space=SCHEDULE_SPACE,
    title="schedule ",
    missing="nothing has happened to a schedule {of} yet in {location}",
    listed=Look("schedules"),
    check=check_schedule_name,
    parse=parse_schedule_event,
    after=evolve_schedule,
    summary=_itself,
    damaged=damaged_schedule,
    jobs=_jobs,
    keeping=Entry(frozenset(("name", "version", "lines", "updatedAt"))),
)


class ScheduleLog(SummarizedLog[ScheduleState, StoredScheduleEvent, ScheduleState]):
    """Reads and writes schedules, and decides nothing."""

    def __init__(self, storage: Storage, audit: Auditing | None = None) -> None:
        """`audit` sends the heads of schedules to an anchor, if there is one: whenever no Job is at work."""
        super().__init__(storage, SCHEDULES)
        self._audit = audit

    async def latest(self, name: str) -> Loaded[ScheduleState] | None:
        """Where one stands; None if nothing has happened to it. Raises Damaged.

        One that starts each minute has a million events in a year, so its entry is where the fold begins, if the log
        has the hash there that the entry names.
        """
        kept = await SCHEDULES.keeping.read(self._space, name)
        return await self._since(name, kept) or (await self.readable(name)).whole().loaded

    async def add(
        self, name: str, loaded: Loaded[ScheduleState] | None, events: Sequence[StoredScheduleEvent]
    ) -> Appended[ScheduleState]:
        """Write more events. Raises Conflict if the log does not end there any more: another was quicker."""
        if loaded is None:
            with suppress(Conflict):  # a process that died before the first fact has left an empty one
                await self._space.create_job(name)
        return await uninterrupted(self.append(name, loaded, events))

    async def append(
        self, of: str, loaded: Loaded[ScheduleState] | None, events: Sequence[StoredScheduleEvent]
    ) -> Appended[ScheduleState]:
        if self._audit is not None:
            await self._audit.expect(Owner("schedule", of))
        appended = await super().append(of, loaded, events)
        if self._audit is not None and appended.state.current is None:
            await self._audit.stopped(Owner("schedule", of), appended.head)
        return appended

    async def _since(self, name: str, kept: Kept) -> Loaded[ScheduleState] | None:
        """From the entry on; None if it is not there, or is not of this log."""
        head = kept.head
        if head is None or kept.text is None:
            return None
        loaded: Loaded[ScheduleState] | None = None
        with suppress(ValidationError, ValueError, LookupError, StorageError):  # which is said of the whole log then
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
