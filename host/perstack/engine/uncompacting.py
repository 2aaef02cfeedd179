"""Going back to the state before a compaction, in a branch."""

from __future__ import annotations

from perstack.core.events import CompactHistory, Retry, StartCompaction, StoredEvent
from perstack.core.run_facts import ContinuedFrom
from perstack.core.runs.state import Run
from perstack.engine.read import JobReader
from perstack.errors import UsageError
from perstack.next_steps import Look


async def before_compaction(reader: JobReader, run: Run) -> ContinuedFrom:
    """The place before the latest compaction of a Coordinator's Run. Raises UsageError if there was none."""
    events = [line.event for line in await reader.events(run.id, job_id=run.start.job_id)]
    last = next((place for place in range(len(events) - 1, 0, -1) if isinstance(events[place], CompactHistory)), None)
    if last is None:
        words = f"{run.id} has no compaction to go back before; those of delegates are not undone"
        raise UsageError(words, next_steps=(Look("log", run.start.job_id),))
    place = last
    while _is_of_summary(events[place - 1]):
        place -= 1
    return ContinuedFrom(run_id=run.id, checkpoint_id=events[place - 1].id, as_it_was=True)


def _is_of_summary(event: StoredEvent) -> bool:
    return isinstance(event, StartCompaction) or (isinstance(event, Retry) and event.overflow is None)
