"""Places in the log of a Run, found without reading all of it.

A place is the number of an event in its Run's log, from 1. A jump to a step is a search by probes, since the steps of a
log never decrease. It begins where the step would be if all steps had the same number of events, and widens from there:
a file storage verifies a log up to the place that is read, so a probe in the middle of a long log is slow at first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from perstack.core.base.chain import BrokenSeal, Head, open_line, read_remains
from perstack.core.base.ids import place_of
from perstack.doors.shared.log_view import entries_of
from perstack.engine.log.event_log import InvalidEvent, StoredLine
from perstack.engine.log.run_log import RunLog, event_of
from perstack.errors import PerstackError, UsageError
from perstack.ports.storage import RunRef, Storage

if TYPE_CHECKING:
    from perstack.core.jobs.summary import JobSummary, RunSummary
    from perstack.core.runs.events import StoredEvent

_VERIFIED_EVENTS = 5_000  # events of a log that are verified at once, in some 20 ms; shorter logs are not long
_VERIFICATION_DELAY_S = 0.2  # seconds from the request for a page to the verification, which must not delay the page
_FIRST_DISTANCE = 16  # places between the first probe of a search and the second
_PROBE_LINES = 8  # lines read at once to find a step: a redacted line does not name its step
_MAX_LATER_EVENTS = 200  # maximum events that may have been appended since job.json was written


def likely_seq(run_summary: RunSummary, step: int) -> int:
    """Return where the first event of a step is if all steps of the Run have the same number of events."""
    step_index = min(step, run_summary.steps) - 1
    return max(1, run_summary.head_seq * step_index // max(1, run_summary.steps))


async def search_place(step_at: Callable[[int], Awaitable[int | None]], step: int, first_probe: int, end: int) -> int:
    """Return the first place from 1 that `step_at` does not give an earlier step; `end` if there is none before it.

    Probe `first_probe` and then at distances that double, until the place lies between two probes; then bisect.
    """
    low, high = 0, end
    probe, distance = first_probe, _FIRST_DISTANCE
    while high - low > 1:
        if not low < probe < high:
            probe = (low + high) // 2
        step_there = await step_at(probe)
        if step_there is not None and step_there < step:
            low, probe = probe, probe + distance
        else:
            high, probe = probe, probe - distance
        distance *= 2
    return high


async def seq_of_step(storage: Storage, ref: RunRef, run_summary: RunSummary, step: int) -> int | None:
    """Return the place of the first event of a step up to the summary's head; None if the log has no such step."""
    head_seq, step_at = run_summary.head_seq, partial(_step_at, storage, ref)
    seq = await search_place(step_at, step, likely_seq(run_summary, step), head_seq + 1)
    return seq if seq <= head_seq and await step_at(seq) == step else None


async def _step_at(storage: Storage, ref: RunRef, seq: int) -> int | None:
    """Return the step of the event at a place, or of the next event that names its step; None without one."""
    while lines := await storage.read(ref, after=seq - 1, limit=_PROBE_LINES):
        first = entries_of(RunLog(ref.run_id, lines))[0]
        if first.timestamp:
            return first.step
        seq += len(lines)
    return None


class EarlyVerification:
    """Tasks that verify the logs of long Jobs whose pages were just opened: a jump into them is then fast.

    A file storage verifies a log once, up to the place that is read. Here it is read in parts, and one log at a time:
    pages that are opened meanwhile wait for one part at most.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by Job
        self._turn = asyncio.Lock()

    def begin(self, job_summary: JobSummary) -> None:
        """Verify the long logs of a Job in the background."""
        heads = {run.id: run.head_seq for run in job_summary.runs if run.head_seq > _VERIFIED_EVENTS}
        job_id = job_summary.id
        if heads and job_id not in self._tasks:
            self._tasks[job_id] = asyncio.create_task(self._verify(job_id, heads))
            self._tasks[job_id].add_done_callback(lambda _: self._tasks.pop(job_id, None))

    async def close(self) -> None:
        """Cancel the tasks."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _verify(self, job_id: str, heads: Mapping[str, int]) -> None:
        await asyncio.sleep(_VERIFICATION_DELAY_S)
        async with self._turn:
            for run_id, head_seq in heads.items():
                with suppress(PerstackError):  # whoever reads the log sees the error
                    for seq in (*range(_VERIFIED_EVENTS, head_seq, _VERIFIED_EVENTS), head_seq):
                        await self._storage.read(RunRef(job_id, run_id), after=seq - 1, limit=1)


async def last_events(storage: Storage, ref: RunRef, head_seq: int, count: int) -> list[StoredLine[StoredEvent]] | None:
    """Return the last `count` events up to place `head_seq`, read from the end of the log; None if they are not there.

    Earlier events are not verified here: the page then follows the log, which verifies all of it.
    """
    lines = await storage.end(ref, min(count, head_seq) + _MAX_LATER_EVENTS)
    try:
        last = place_of(event_of_line(lines[-1]).id)[2] if lines else 0
        first = last - len(lines) + 1
        wanted = range(max(1, head_seq - count + 1), head_seq + 1)
        if not lines or first > wanted.start or last < head_seq:
            return None
        events: list[StoredLine[StoredEvent]] = []
        for seq in wanted:
            sealed = open_line(lines[seq - first])
            if read_remains(sealed.payload) is not None:
                return None  # a redacted event can only be read together with the events before it
            event = event_of(ref, seq, sealed.payload)
            events.append(StoredLine(Head(seq, sealed.hash), event, lines[seq - first]))
    except (BrokenSeal, InvalidEvent, UsageError, ValueError):
        return None
    return events


def event_of_line(line: bytes) -> StoredEvent:
    """Return the event of a line. Raises ValueError if this version does not know its shape."""
    from perstack.core.runs.events import parse_event

    return parse_event(open_line(line).payload)
