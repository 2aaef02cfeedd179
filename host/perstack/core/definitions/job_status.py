"""Statuses and lifecycles of Jobs, and the form of transition tables of state machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Literal, TypeVar, assert_never

from perstack.dataclass import dataclass

JobStatus = Literal[
    "running",
    "completed",
    "stoppedByInteractiveTool",
    "stoppedByMaxSteps",
    "stoppedByBudget",
    "stoppedByInterrupt",
    "stoppedByError",
    "queued",
]

TYPED_STATUS: dict[str, JobStatus] = {
    "running": "running",
    "completed": "completed",
    "waiting": "stoppedByInteractiveTool",
    "step-limit": "stoppedByMaxSteps",
    "budget": "stoppedByBudget",
    "interrupted": "stoppedByInterrupt",
    "failed": "stoppedByError",
    "queued": "queued",
}


Lifecycle = Literal["running", "paused", "completed", "failed"]


PauseReason = Literal[
    "human_approval", "human_input", "external_dependency", "scheduled_wait", "rate_limit", "checkpoint"
]


def lifecycle_of(status: JobStatus) -> Lifecycle:
    """Return the lifecycle of a status, in the four words that all long work shares."""
    match status:
        case "running":
            return "running"
        case "completed":
            return "completed"
        case "stoppedByError":
            return "failed"
        case "stoppedByInteractiveTool" | "stoppedByMaxSteps" | "stoppedByBudget" | "stoppedByInterrupt" | "queued":
            return "paused"
        case _:
            assert_never(status)


def pause_reason_of(
    status: JobStatus, *, waits_for_limit: bool = False, is_approval: bool = False
) -> PauseReason | None:
    """Return why a paused Job is paused; None if it is not."""
    if status == "stoppedByInteractiveTool" and is_approval:
        return "human_approval"
    if status == "stoppedByInterrupt" and waits_for_limit:
        return "rate_limit"
    if status == "stoppedByInteractiveTool":
        return "human_input"
    if status == "queued":
        return "scheduled_wait"
    return "checkpoint" if lifecycle_of(status) == "paused" else None


# Transition tables of tasks, series and schedules. `core/runs/events/base.py` has another, with two dimensions.

W = TypeVar("W", bound=str)


class IllegalFact(ValueError):
    """An event that cannot follow in the current state: this host never writes it there."""


@dataclass(frozen=True, slots=True)
class Transition(Generic[W]):
    """The states that one type of event may follow, and those it leads to."""

    places: frozenset[W]
    to: frozenset[W] = frozenset()  # empty if the state does not change


def transition(*places: W, to: tuple[W, ...] = ()) -> Transition[W]:
    """Return an entry of a table."""
    return Transition(frozenset(places), frozenset(to))


def check_follows(table: Mapping[str, Transition[W]], fact: str, subject: str, state: W) -> None:
    """Raise IllegalFact if the event cannot follow while `what` is in this state."""
    rule = table.get(fact)
    if rule is None:
        raise IllegalFact(f"a second {fact}")
    if state not in rule.places:
        raise IllegalFact(f"{fact} cannot follow where {subject} is {state}")
