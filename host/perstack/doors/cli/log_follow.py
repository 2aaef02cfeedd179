"""`perstack log --follow`: events of a Job that another process drives, until it stops."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.base.text import one_line
from perstack.core.runs.events import StoredEvent
from perstack.doors.cli.driving import outcome_line
from perstack.doors.cli.live import LiveView, RowPrinter
from perstack.doors.cli.log_print import EventFilter, select
from perstack.doors.cli.terminal import Screen, print_out, write_json_line
from perstack.doors.shared.activity import JobActivity
from perstack.doors.shared.log_view import entries_of
from perstack.engine.log.event_log import StoredLine
from perstack.engine.log.run_log import RunLog
from perstack.host import Host


class LogFollower:
    """A view of the events added to a Job's logs after those given at first."""

    def __init__(
        self, logs: Sequence[RunLog], run_id: str | None, wanted: EventFilter, *, full: bool, as_json: bool
    ) -> None:
        """Show what is added after these logs, of one Run or of all if `run_id` is None."""
        self.rows = RowPrinter(Screen.of_stdout(), full=full)
        self._logs = {log.run_id: RunLog(log.run_id, list(log.lines)) for log in logs}
        self._known = {log.run_id: len(log.lines) for log in logs}
        self._run_id = run_id
        self._wanted = wanted
        self._full = full
        self._as_json = as_json

    async def until_stopped(self, host: Host, job_id: str) -> None:
        """Show new events, and at the end the Job's outcome, when no process drives it any more."""
        view = None if self._as_json else LiveView(rows=self.rows, state=JobActivity(full=self._full))
        try:
            async for line in host.jobs.watch(job_id, queued=True):
                has_rows = self._is_shown(line)
                if view is not None:
                    view.take(line.event, has_rows=has_rows)
                elif has_rows:
                    write_json_line(line.line)
        finally:
            if view is not None:
                view.pause()
        if view is not None:
            job = await host.job(job_id)
            if job.status == "completed":
                print_out()
                print_out(job.text or "")
            print_out(one_line(outcome_line(job)))

    def _is_shown(self, line: StoredLine[StoredEvent]) -> bool:
        run_id = line.event.run_id
        if line.seq <= self._known.get(run_id, 0) or self._run_id not in (None, run_id):
            return False
        log = self._logs.setdefault(run_id, RunLog(run_id, []))
        log.lines.append(line.line)
        if self._wanted.names_no_kind and self._wanted.steps is None:
            return True
        added = entries_of(log)[-1]
        every = [entry for one in self._logs.values() for entry in entries_of(one)]
        return added in select(every if self._wanted.delegations else [added], self._wanted)
