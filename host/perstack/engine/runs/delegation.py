"""Delegate Runs: the part of the driver that they use, their results, and how one begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from perstack.core.base.actor import By
from perstack.core.definitions.experts import Expert, Limits
from perstack.core.definitions.permissions import Approval, RuleSet
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.jobs.job import Job
from perstack.core.runs.events import ResumeReason
from perstack.core.runs.facts import Answer, DelegatedBy, DelegateHead, Delegation
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.log.run_session import JobSummaryFile, RunSession
from perstack.engine.runs.budget import Deadlines, Spending
from perstack.engine.runs.job_context import Wiring
from perstack.errors import PerstackError


class Drives(Protocol):
    """The part of a driver that delegates use: it drives Runs of one Job."""

    wiring: Wiring
    job: Job
    runs: dict[str, Run]
    kept: JobSummaryFile
    root: str
    limits: Limits
    spending: Spending | None
    deadlines: Deadlines | None
    worker: str
    answers: dict[str, str | Answer | Approval]
    answered_by: By | None
    is_leaving: Callable[[], bool]
    is_stopped: Callable[[], bool]
    on_waiting: Callable[[bool], None]

    @property
    def steps_left(self) -> int | None:
        """The number of steps that the driven Runs may still take together; None without a limit."""
        ...

    def begin_run(
        self,
        expert: Expert,
        query: str,
        *,
        run_id: str | None = None,
        delegated_by: DelegatedBy | None = None,
        within: SandboxPolicy | None = None,
        above: tuple[RuleSet, ...] = (),
        of_job: Limits | None = None,
    ) -> RunSession:
        """Record the start of a new Run."""
        ...

    def take_up(
        self, run: Run, reason: ResumeReason, *, limits: Limits | None = None, above: tuple[RuleSet, ...] = ()
    ) -> RunSession:
        """Record that a stopped Run resumes."""
        ...

    async def drive_in_time(self, session: RunSession, expert: str | None) -> None:
        """Drive a Run for as long as the time limit of the Job, or of an Expert, allows."""
        ...

    def note_interrupt(self, session: RunSession) -> None:
        """Note that a Run is interrupted; queue the Run that the driver was given for another worker."""
        ...


# Results of delegate Runs, and how one begins.


@dataclass(frozen=True, slots=True)
class DelegateOutcome:
    """Result of a delegate's Run. Without a text the Run has stopped and may be resumed."""

    text: str | None
    is_error: bool = False
    run: Run | None = None
    """None if it could not be set up."""

    @classmethod
    def failed(cls, reason: str, run: Run | None = None) -> DelegateOutcome:
        """Create the outcome of a failed delegation."""
        return cls(f"Delegation failed: {reason}", True, run)

    @property
    def head(self) -> DelegateHead | None:
        """The head of the Run's log when it ended; None without a Run."""
        run = self.run
        return None if run is None else DelegateHead(run_id=run.id, seq=run.head.seq, hash=run.head.hash)

    @property
    def stopped(self) -> Run | None:
        """The Run, if it has stopped without a result; None otherwise."""
        return self.run if self.text is None else None

    @classmethod
    def of(cls, run: Run) -> DelegateOutcome:
        """Create the outcome of a Run that is not driven any further for now."""
        if run.status == "completed":
            text = run.result or ""
            return cls(text if run.value is None else json.dumps(run.value, ensure_ascii=False), False, run)
        if run.status == "stoppedByError":
            reason = run.error.message if run.error is not None else "unknown error"
            return cls.failed(reason, run)
        return cls(None, False, run)


def begin_delegate(
    driver: Drives, parent: RunSession, delegation: Delegation, of_job: Limits | None = None
) -> RunSession:
    """Record the start of a delegate's Run. Raises PerstackError if it cannot be set up.

    `of_job`: limits that the delegate shares with the whole Job; None for those of the driver.
    """
    expert = driver.wiring.project.expert(delegation.expert_key)
    if expert is None:
        raise PerstackError(f"there is no Expert {delegation.expert_key!r} in perstack.toml any more")
    by = DelegatedBy(
        expert_key=parent.expert_key,
        run_id=parent.ref.run_id,
        tool_call_id=delegation.tool_call_id,
        tool_name=delegation.tool_name,
    )
    return driver.begin_run(
        expert,
        delegation.query,
        run_id=delegation.run_id,
        delegated_by=by,
        above=parent.run.permissions,
        within=parent.run.start.sandbox,
        of_job=of_job,
    )
