"""What came of driving a Job."""

from __future__ import annotations

from perstack.core.serving import Came, Served
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it, and where the Job, or the iterations, stand then."""

    came: Came
    served: Served | None = None
    """None if that is not known, or there is no such Job."""
    error: BaseException | None = None
    seconds: float | None = None
    """How long it was driven; None if it was not."""
    is_poison: bool = False
    """It was stopped because it ends every worker."""
