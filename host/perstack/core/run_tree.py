"""How the Runs of a Job follow from each other: delegates, continuations and branches, as a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from perstack.core.base import Fact
from perstack.core.ids import is_place, number_of_run, place_of
from perstack.core.job import RunSummary
from perstack.core.run_facts import ContinuedFrom

How = Literal["begun", "delegate", "continuation", "branch", "answer", "uncompacted"]
"""What a Run is: begun by a person, called by another Run, or begun where another one ended or stood earlier,
with another answer to what was asked there (`answer`), or with what has left its context since (`uncompacted`)."""


class PlacedRun(Fact):
    """A Run in the tree of its Job."""

    run: RunSummary
    how: How
    parent: str | None = None
    """The Run that it follows from; None for one that a person began, or whose parent is not there."""
    at: str | None = None
    """The checkpoint of the parent that it begins at."""
    depth: int = 0
    """How many it follows from. A continuation is no deeper than the Run that it continues."""


def tree_of(runs: Sequence[RunSummary], places: Mapping[str, ContinuedFrom]) -> tuple[PlacedRun, ...]:
    """The Runs, each after the one that it follows from. `places` says of those that continue another one how.

    Every Run is there once, whatever the logs say: where they lead in a circle, that begins anywhere.
    """
    known = {run.id: run for run in runs}
    placed = {run.id: _placed(run, known, places.get(run.id)) for run in runs}
    below: dict[str | None, list[str]] = {}
    for run in sorted(runs, key=lambda one: (number_of_run(one.id), one.id)):
        below.setdefault(placed[run.id].parent, []).append(run.id)
    found: dict[str, PlacedRun] = {}
    todo = [(one, 0) for one in reversed([*below.get(None, ()), *known])]
    while todo:
        run_id, depth = todo.pop()
        if run_id in found:
            continue
        found[run_id] = placed[run_id].model_copy(update={"depth": depth})
        # what continues it comes after all that it called or was branched from
        after = sorted(below.get(run_id, ()), key=lambda one: placed[one].how == "continuation")
        todo += [(one, depth + (placed[one].how != "continuation")) for one in reversed(after)]
    return tuple(found.values())


def whole_below(runs: Sequence[RunSummary], run_id: str | None) -> tuple[RunSummary, ...]:
    """A Run and all that it and its delegates have called; with None all."""
    if run_id is None:
        return tuple(runs)
    found = {run_id}
    for run in sorted(runs, key=lambda one: number_of_run(one.id)):
        if run.delegated_by in found:
            found.add(run.id)
    return tuple(run for run in runs if run.id in found)


def _placed(run: RunSummary, known: Mapping[str, RunSummary], place: ContinuedFrom | None) -> PlacedRun:
    if run.delegated_by is not None:
        return PlacedRun(run=run, how="delegate", parent=run.delegated_by if run.delegated_by in known else None)
    if place is None:
        return PlacedRun(run=run, how="begun")
    base = known.get(place.run_id)
    how: How = "continuation"
    if place.answers or place.as_it_was:
        how = "answer" if place.answers else "uncompacted"
    elif base is not None and is_place(place.checkpoint_id) and place_of(place.checkpoint_id)[2] < base.head_seq:
        how = "branch"
    return PlacedRun(run=run, how=how, parent=None if base is None else base.id, at=place.checkpoint_id)
