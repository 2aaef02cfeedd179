"""What becomes of a delegate's Run, and how one begins."""

from __future__ import annotations

import json

from perstack.core.definitions import Limits
from perstack.core.run_facts import DelegatedBy, DelegateHead, Delegation
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.drives import Drives
from perstack.engine.session import Session
from perstack.errors import PerstackError


@dataclass(frozen=True, slots=True)
class DelegateOutcome:
    """How a delegate's Run came out. No text: it has stopped, and may go on later."""

    text: str | None
    is_error: bool = False
    run: Run | None = None
    """None: it could not even be set up."""

    @classmethod
    def failed(cls, reason: str, run: Run | None = None) -> DelegateOutcome:
        return cls(f"Delegation failed: {reason}", True, run)

    @property
    def head(self) -> DelegateHead | None:
        """Where its log ended."""
        run = self.run
        return None if run is None else DelegateHead(run_id=run.id, seq=run.head.seq, hash=run.head.hash)

    @property
    def stopped(self) -> Run | None:
        """The Run, if it has stopped without a result."""
        return self.run if self.text is None else None

    @classmethod
    def of(cls, run: Run) -> DelegateOutcome:
        """The outcome of a Run that is driven no further for now."""
        if run.status == "completed":
            text = run.result or ""
            return cls(text if run.value is None else json.dumps(run.value, ensure_ascii=False), False, run)
        if run.status == "stoppedByError":
            reason = run.error.message if run.error is not None else "unknown error"
            return cls.failed(reason, run)
        return cls(None, False, run)


def begin_delegate(driver: Drives, parent: Session, delegation: Delegation, of_job: Limits | None = None) -> Session:
    """Record the start of a delegate's Run. Raises PerstackError if it cannot be set up."""
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
