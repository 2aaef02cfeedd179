"""Where in the tree of its Job a Run is, in words that hold for every Job that does the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from perstack.core.events import StartRun
from perstack.core.ids import number_of_run
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The place of a Run: the same for the Run of another Job that takes its part there."""

    expert_key: str
    query: str
    calls: tuple[str, ...] = ()
    """The ids of the calls that led to it, the Coordinator's first; empty for a Coordinator."""
    number: int = 0
    """Which it is of the Runs that are the same in all this, in the order in which they began."""
    instruction: str = field(default="", compare=False)
    """Of its Expert, as it is declared."""


def places_of(starts: Iterable[StartRun]) -> dict[str, RunPlace]:
    """The place of each Run by its id; of each, those above it have to be there."""
    by_id = {start.run_id: start for start in sorted(starts, key=lambda start: number_of_run(start.run_id))}
    calls: dict[str, tuple[str, ...]] = {}
    places: dict[str, RunPlace] = {}
    numbers: dict[RunPlace, int] = {}
    for run_id, start in by_id.items():
        above = start.delegated_by
        calls[run_id] = () if above is None else (*calls.get(above.run_id, ()), above.tool_call_id)
        same = RunPlace(start.expert_key, start.query, calls[run_id])
        number = numbers[same] = numbers.get(same, -1) + 1
        places[run_id] = RunPlace(same.expert_key, same.query, same.calls, number, start.expert.instruction)
    return places
