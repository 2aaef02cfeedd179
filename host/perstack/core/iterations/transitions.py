"""Which fact may follow where a series stands. The one table: `evolve_series` and the docs use it."""

from __future__ import annotations

from typing import get_args

from perstack.core.iterations.state import Place
from perstack.core.transitions import Transition, transition

_RUNNING: tuple[Place, ...] = ("between", "working", "measuring")
_ANY: tuple[Place, ...] = get_args(Place)

TRANSITIONS: dict[str, Transition[Place]] = {
    "startIteration": transition("between", to=("working",)),
    "finishArtefact": transition("working", to=("measuring",)),
    "finishIteration": transition("measuring", to=("between",)),
    "pauseSeries": transition(*_RUNNING, to=("paused",)),
    "failSeries": transition(*_RUNNING, to=("failed",)),
    # one whose process has died is still running
    "resumeSeries": transition(*_ANY, to=_RUNNING),
    "finishSeries": transition("between", to=("completed",)),
}
"""By the type of the event. `startSeries` is not in it: it makes the series."""
