"""What delegates need of the driver of the Run that awaits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from perstack.core.by import By
from perstack.core.definitions import Expert, Limits
from perstack.core.events import ResumeReason
from perstack.core.job import Job
from perstack.core.policy.approvals import Approval
from perstack.core.policy.permissions import RuleSet
from perstack.core.questions import Answer
from perstack.core.run_facts import DelegatedBy
from perstack.core.runs.state import Run
from perstack.core.sandbox import SandboxPolicy
from perstack.engine.deadlines import Deadlines
from perstack.engine.kept_summary import KeptSummary
from perstack.engine.session import Session
from perstack.engine.spending import Spending
from perstack.engine.wiring import Wiring


class Drives(Protocol):
    """Drives Runs of one Job."""

    wiring: Wiring
    job: Job
    runs: dict[str, Run]
    kept: KeptSummary
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
        """How many steps more all together may have; None for no limit."""
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
    ) -> Session:
        """Record the start of a new Run."""
        ...

    def take_up(
        self, run: Run, reason: ResumeReason, *, limits: Limits | None = None, above: tuple[RuleSet, ...] = ()
    ) -> Session:
        """Record that a stopped Run goes on."""
        ...

    async def drive_in_time(self, session: Session, expert: str | None) -> None:
        """Drive it for as long as the Job's time, or that of an Expert, allows."""
        ...

    def note_interrupt(self, session: Session) -> None:
        """Record that it is interrupted, and that it waits for another worker if it is the one given to drive."""
        ...
