"""What came of driving a Job."""

from __future__ import annotations

from perstack.core.job import JobSummary
from perstack.core.serving import Came
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it, and where the Job stands then."""

    came: Came
    job: JobSummary | None = None
    """None if that is not known, or there is no such Job."""
    error: BaseException | None = None
    seconds: float | None = None
    """How long it was driven; None if it was not."""
    is_poison: bool = False
    """It was stopped because it ends every worker."""
