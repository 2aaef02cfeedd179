"""The Runs that others drive, as their logs grow: folded into the Job of the process that awaits them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing

from perstack.core.events import CallDelegate
from perstack.core.job import Job
from perstack.core.runs.decide import has_ended
from perstack.core.runs.state import Run
from perstack.engine.logs.log import Loaded
from perstack.engine.logs.runs import run_logs
from perstack.ports.storage import RunRef, Storage


class Following:
    """Those of one Job."""

    def __init__(
        self, storage: Storage, job: Job, known: Mapping[str, Run], on_change: Callable[[], None] = lambda: None
    ) -> None:
        """`known` are the states that have been read already; `on_change` is told of each that is newer."""
        self._on_change = on_change
        self._logs = run_logs(storage)
        self._job = job
        self._runs = dict(known)
        self._below: dict[str, set[str]] = {}
        """Which Runs each has decided on."""
        for run_id, tally in job.runs.items():
            if tally.start.delegated_by is not None:
                self._below.setdefault(tally.start.delegated_by.run_id, set()).add(run_id)
        for run in known.values():
            self._note(run.id, {call.delegation.run_id for call in run.calls.values() if call.delegation is not None})

    def put(self, run: Run) -> None:
        """The state of a Run that this process has written to."""
        self._runs[run.id] = run

    def run(self, run_id: str) -> Run | None:
        """As it was seen last."""
        return self._runs.get(run_id)

    def whole(self, run_id: str) -> tuple[str, ...]:
        """A Run and all below it, each after the one above."""
        below = sorted(self._below.get(run_id, ()))
        return (run_id, *(one for child in below for one in self.whole(child)))

    async def look(self, run_id: str) -> Run | None:
        """The Run as it is now, with all below it; None if it has no log. Raises Damaged and StorageError."""
        run = self._runs.get(run_id)
        if run is None or not has_ended(run):
            run = await self._further(run_id, run)
        for below in tuple(self._below.get(run_id, ())):
            await self.look(below)
        return run

    async def _further(self, run_id: str, run: Run | None) -> Run | None:
        since = None if run is None else Loaded(run, run.head)
        changed = False
        async with aclosing(self._logs.folded(RunRef(self._job.id, run_id), since=since)) as lines:
            async for line, state in lines:
                run, changed = state, True
                if isinstance(line.event, CallDelegate):
                    self._note(run_id, {one.run_id for one in line.event.delegates})
        if run is not None and changed:
            self._runs[run_id] = run
            self._job.heads[run_id] = run.head
            self._job.take(run)
            self._on_change()
        return run

    def _note(self, run_id: str, below: set[str]) -> None:
        self._below.setdefault(run_id, set()).update(below)
