"""`perstack log --follow`: a Job that another process drives, until it stops."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.events import StoredEvent
from perstack.core.plain import one_line
from perstack.engine.logs.log import StoredLine
from perstack.engine.read import RunLog
from perstack.frontends.cli.drive import standing
from perstack.frontends.cli.live import LiveView
from perstack.frontends.cli.log_select import Wanted, select
from perstack.frontends.cli.row_printer import RowPrinter
from perstack.frontends.cli.terminal import Screen, data, out
from perstack.frontends.shared.live_state import LiveState
from perstack.frontends.shared.log_entries import entries_of
from perstack.host import Host


class Following:
    """Shows what is added to a Job's logs after what was in them when it was made."""

    def __init__(
        self, logs: Sequence[RunLog], run_id: str | None, wanted: Wanted, *, full: bool, as_json: bool
    ) -> None:
        self.rows = RowPrinter(Screen.of_stdout(), full=full)
        """What prints the rows, the first ones as well."""
        self._logs = {log.run_id: RunLog(log.run_id, list(log.lines)) for log in logs}
        self._known = {log.run_id: len(log.lines) for log in logs}
        self._run_id = run_id
        self._wanted = wanted
        self._full = full
        self._as_json = as_json

    async def until_stopped(self, host: Host, job_id: str) -> None:
        """Show it, and how the Job stands when nobody drives it any more."""
        view = None if self._as_json else LiveView(rows=self.rows, state=LiveState(full=self._full))
        try:
            async for line in host.watch(job_id, queued=True):
                has_rows = self._is_shown(line)
                if view is not None:
                    view.take(line.event, has_rows=has_rows)
                elif has_rows:
                    data(line.line)
        finally:
            if view is not None:
                view.pause()
        if view is not None:
            job = await host.job(job_id)
            if job.status == "completed":
                out()
                out(job.text or "")
            out(one_line(standing(job)))

    def _is_shown(self, line: StoredLine[StoredEvent]) -> bool:
        run_id = line.event.run_id
        if line.seq <= self._known.get(run_id, 0) or self._run_id not in (None, run_id):
            return False
        log = self._logs.setdefault(run_id, RunLog(run_id, []))
        log.lines.append(line.line)
        if self._wanted.any_kind and self._wanted.steps is None:
            return True
        added = entries_of(log)[-1]
        every = [entry for one in self._logs.values() for entry in entries_of(one)]
        return added in select(every if self._wanted.delegations else [added], self._wanted)
