"""Checks of Jobs, made when a person asks for them: the reports of `Auditor.verify` and `Auditor.replay`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import field

from perstack.audit.verification_report import Report
from perstack.core.base.text import count
from perstack.core.jobs.summary import JobSummary
from perstack.dataclass import dataclass
from perstack.errors import PerstackError
from perstack.host import Host

_MAX_KEPT = 500  # maximum Jobs whose latest check is kept

_PROMISES = {
    "verify": "every digest, hash and kept head matches",
    "replay": "every decision and request follows from the log",
}


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one kind of check."""

    name: str  # `verify` or `replay`
    report: Report | None
    problem: str = ""  # reason why there is no report; empty with one

    @property
    def is_good(self) -> bool:
        return self.report is not None and self.report.ok

    @property
    def status_class(self) -> str:
        """CSS class of the status mark."""
        if not self.is_good:
            return "bad"
        return "good" if self.report is not None and self.report.is_complete else "warn"

    @property
    def words(self) -> str:
        """The outcome in one line."""
        if self.report is None:
            return self.problem
        if not self.report.ok:
            return count(len(self.report.findings), "finding")
        if not self.report.is_complete:
            return "no finding, but not everything could be checked"
        return f"no finding: {_PROMISES[self.name]}"


@dataclass(frozen=True, slots=True)
class Check:
    """The check of one Job."""

    checked_at: int  # milliseconds since 1970
    updated_at: int  # `updated_at` of the Job when the check began
    outcomes: tuple[CheckOutcome, ...]

    def is_current(self, summary: JobSummary) -> bool:
        """Return whether the Job has not changed since the check."""
        return self.updated_at == summary.updated_at


@dataclass(slots=True)
class Checks:
    """The latest check of each Job, in memory only. One Job is checked at a time: it may take seconds."""

    _latest: dict[str, Check] = field(default_factory=dict[str, Check])
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def latest_of(self, job_id: str) -> Check | None:
        return self._latest.get(job_id)

    async def run(self, host: Host, summary: JobSummary) -> Check:
        """Verify and replay a Job, and keep the outcomes as its latest check."""
        async with self._lock:
            verified = await _run_check("verify", host.audit.verify(summary.id))
            replayed = await _run_check("replay", host.audit.replay(summary.id))
            check = Check(host.clock.now(), summary.updated_at, (verified, replayed))
            self._latest.pop(summary.id, None)
            self._latest[summary.id] = check
            if len(self._latest) > _MAX_KEPT:
                del self._latest[next(iter(self._latest))]
            return check


async def _run_check(name: str, work: Awaitable[Report]) -> CheckOutcome:
    try:
        return CheckOutcome(name, await work)
    except PerstackError as error:
        return CheckOutcome(name, None, str(error))
