"""What every event of a Run has."""

from __future__ import annotations

from pydantic import computed_field

from perstack.core.base import Fact


class RunEvent(Fact):
    """What every event of a Run has."""

    type: str
    id: str
    timestamp: int
    """Milliseconds since 1970, UTC."""
    job_id: str
    run_id: str
    expert_key: str
    step_number: int

    @computed_field
    def step(self) -> int:
        """`step_number` again, for one-liners."""
        return self.step_number
