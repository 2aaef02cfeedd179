"""Decisions that only a person makes, declared where operations and their arguments are declared.

A caller of MCP, HTTP or the tools for tasks is a model or a program. What it may do by itself is declared: each
operation, and each argument of one, has a mark. `Free` says that it decides nothing for a person; `Decides` names a
pure function that returns the decision in a call with these arguments, or None without one: a higher limit is a
decision, a lower one is not. Doors collect the decisions of a call with `decisions_in` before they perform it. A
missing mark counts as a decision, so an argument that somebody adds does nothing before it is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, TypeAlias, TypeVar

from perstack.core.base.records import canonical_json
from perstack.core.base.text import approvable_text
from perstack.dataclass import dataclass
from perstack.errors import NeedsPerson
from perstack.next_steps import NextStep


@dataclass(frozen=True, slots=True)
class NeededDecision:
    """One decision that a call needs, before it is made."""

    text: str  # the decision, whole: what it concerns, and from which value to which
    step: NextStep | None = None  # step by which a person makes it; None if unknown
    seal: str = ""  # digest of the whole decision, if the text does not have all of it
    answers: str = ""  # the Job whose open question it answers: a question has a form of its own


Decisions: TypeAlias = tuple[NeededDecision, ...]


@dataclass(frozen=True, slots=True)
class Decides:
    """Mark of an operation or an argument that may be a decision."""

    decision: Callable[[Any, Any], NeededDecision | None]
    """Returns the decision, from the subject that a door has loaded for the call (a Job, a task) and the arguments."""


@dataclass(frozen=True, slots=True)
class Free:
    """Mark of an operation or an argument that decides nothing for a person."""


FREE = Free()
Mark: TypeAlias = Decides | Free

_T = TypeVar("_T")
FreeArgument: TypeAlias = Annotated[_T, FREE]


def mark_in(annotations: Iterable[object]) -> Mark | None:
    """Return the mark among the annotations of an argument; None without one."""
    return next((item for item in annotations if isinstance(item, Decides | Free)), None)


def decisions_in(marks: Mapping[str, Mark | None], subject: object, arguments: object) -> Decisions:
    """Return each decision in a call, once.

    `marks` has the mark of the operation and of each argument, by name.
    """
    decisions: dict[NeededDecision, None] = {}
    for name, mark in marks.items():
        if mark is None:
            decisions[NeededDecision(f"{name}: it is not declared what this decides")] = None
        elif isinstance(mark, Decides) and (decision := mark.decision(subject, arguments)) is not None:
            decisions[decision] = None
    return tuple(decisions)


def person_refusal(decisions: Decisions, advice: str = "", reason: str = "this client cannot ask one") -> NeedsPerson:
    """Return the refusal of a call that decides what only a person decides. `advice`: who else may decide it."""
    texts = "; ".join(filter(None, (*(approvable_text(item.text) for item in decisions), advice)))
    steps = dict.fromkeys(item.step for item in decisions if item.step is not None)
    return NeedsPerson(f"only a person can decide this, and {reason}: {texts}", next_steps=tuple(steps))


def digest_of(decisions: Iterable[NeededDecision]) -> str:
    """Return the digest that binds a person's agreement to exactly these decisions."""
    return sha256(canonical_json([[item.text, item.seal] for item in decisions])).hexdigest()
