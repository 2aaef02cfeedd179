"""Lines of a Run's log, read in parts: a step is found by a search, so a long log is never read completely.

A damaged or unknown event must not hide the others, so lines are read here, and parsed where they are shown.
"""

from __future__ import annotations

import sys

from perstack.core.base.ids import check_id, check_job_id
from perstack.core.jobs.summary import JobSummary, RunSummary
from perstack.core.runs.events import StoredEvent
from perstack.dataclass import dataclass
from perstack.doors.shared.log_view import LogEntry, entries_of, parse_line
from perstack.engine.log.event_log import read_intact
from perstack.engine.log.run_log import RunLog
from perstack.engine.log.storage_access import read_summary
from perstack.errors import Damaged, NotFound
from perstack.ports.storage import RunRef, Storage
from perstack_studio.places import likely_seq, search_place
from perstack_studio.studio import Studio

MAX_STEP_EVENTS = 1_000  # maximum shown events of one step
_MAX_PREPARING_EVENTS = 50  # maximum events before a step that prepare it, such as compactions and texts of people
_MAX_REDACTED = 50  # maximum consecutive redacted events that are skipped to find the step of a place


async def find_job(studio: Studio, job_id: str) -> JobSummary:
    """Return the stored summary of a Job, which may be a step old, without reading a log. Raises NotFound."""
    stored = await read_summary(studio.host.jobs.storage, check_job_id(job_id), JobSummary)
    if stored is None or stored.id != job_id or not studio.served_project.definitions.offers(stored.expert_key):
        return await studio.served_project.job(job_id)
    return stored


async def find_run(studio: Studio, job_id: str, run_id: str) -> tuple[JobSummary, RunSummary]:
    """Return the summaries of a Job and one of its Runs. Raises NotFound."""
    summary = await find_job(studio, job_id)
    for candidate in (summary, None):
        candidate = candidate or await studio.served_project.current_job(job_id)
        run_summary = next((run for run in candidate.runs if run.id == run_id), None)
        if run_summary is not None:
            return candidate, run_summary
    raise NotFound(f"Job {job_id} has no Run {run_id}")


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A line of a log at its place."""

    seq: int  # place in the log, from 1
    entry: LogEntry

    @property
    def event(self) -> StoredEvent | None:
        """The event; None if it was redacted, or if this version does not know it."""
        try:
            return parse_line(self.entry.line)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class StepLines:
    """The events of one step, and the events that prepared it."""

    step: int
    previous: int | None  # number of the previous step; None for the first
    next: int | None
    entries: tuple[StoredEntry, ...]
    is_cut: bool  # True if the step has more events
    damage: str  # why the log cannot be read after these entries; empty if it can


@dataclass(frozen=True, slots=True)
class RunLines:
    """The log of a Run in a storage."""

    storage: Storage
    ref: RunRef
    run_summary: RunSummary | None = None  # says about where a step is; without one it is searched from the first event

    @classmethod
    def of(cls, studio: Studio, job_id: str, run_id: str, run_summary: RunSummary | None = None) -> RunLines:
        return cls(studio.host.jobs.storage, RunRef(check_job_id(job_id), check_id(run_id, "run")), run_summary)

    async def read(self, after: int, limit: int | None) -> tuple[StoredEntry, ...]:
        """Return the events after a place. Raises Damaged if the first of them is damaged."""
        lines, damage = await read_intact(self.storage, self.ref, after, limit)
        if damage is not None and not lines:
            raise damage
        log = RunLog(self.ref.run_id, lines, damage)
        return tuple(StoredEntry(seq, entry) for seq, entry in enumerate(entries_of(log), after + 1))

    async def step_at(self, seq: int) -> int | None:
        """Return the step of the event at a place, or of the next if it is redacted; None after the readable part."""
        for place in range(seq, seq + _MAX_REDACTED):
            try:
                entries = await self.read(place - 1, 1)
            except Damaged:
                return None
            if not entries:
                return None
            if entries[0].entry.step:
                return entries[0].entry.step
        return None

    async def first_seq_of(self, step: int) -> int:
        """Return the place of the first event of a step or of a later one; the place after the end without one."""
        first_probe = 1 if self.run_summary is None else likely_seq(self.run_summary, step)
        return await search_place(self.step_at, step, first_probe, sys.maxsize)

    async def step(self, step: int) -> StepLines:
        """Return the events of a step. Raises NotFound, and Damaged if the log cannot be read up to it."""
        first = await self.first_seq_of(step)
        if await self.step_at(first) != step:
            await self.read(first - 1, 1)  # raises Damaged if the log is damaged there
            raise NotFound(f"{self.ref.run_id} has no step {step}")
        following = await self.step_at(end := await self.first_seq_of(step + 1))
        after = max(0, first - 1 - _MAX_PREPARING_EVENTS)
        entries = await self.read(after, min(end - 1 - after, _MAX_PREPARING_EVENTS + MAX_STEP_EVENTS))
        earlier = [item for item in entries if item.seq < first]
        earlier_ends = [item.seq for item in earlier if item.entry.type == "finishStep"]
        begin = earlier_ends[-1] + 1 if earlier_ends else first
        step_entries = [item for item in entries if item.seq >= begin]
        finished = next(
            (item.seq for item in step_entries if item.seq >= first and item.entry.type == "finishStep"), None
        )
        if following is not None and finished is not None:  # what follows prepares the next step
            step_entries = [item for item in step_entries if item.seq <= finished]
        previous = await self.step_at(first - 1) if first > 1 else None
        damage = await self._damage_at(end) if following is None else ""
        return StepLines(step, previous, following, tuple(step_entries), entries[-1].seq < end - 1, damage)

    async def _damage_at(self, seq: int) -> str:
        try:
            await self.read(seq - 1, 1)
        except Damaged as error:
            return str(error)
        return ""
