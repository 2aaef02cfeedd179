"""A model of one Job: the result of each command, and whether concurrent commands' results can be explained.

A Job follows a plan, given as words in its query, one per reply: `ask` a person, `pay`, `look` slowly, `fail` once, or
hit a rate `limit` once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations

STAGES = ("ask", "pay", "look", "fail", "limit")
KINDS = ("run", "resume", "answer", "signal", "cancel", "delete", "run-due")
TOKENS = 11
"""Tokens of each reply."""


@dataclass(frozen=True)
class Planned:
    """State of an existing Job at rest: nobody drives it."""

    plan: tuple[str, ...]
    nonce: str
    """Distinguishes the Job from a deleted one with the same id."""
    status: str = "unbegun"
    """Or `asks`, `failed`, `limited`, `interrupted`, `completed`."""
    replies: int = 0
    answers: int = 0
    played: frozenset[int] = frozenset()
    """Places in the plan where a generation has already failed."""
    signals: frozenset[str] = frozenset()
    is_due: bool = field(default=False, compare=False)
    """Whether the due time of a limited Job has come."""

    @property
    def question_count(self) -> int:
        """Number of questions asked so far."""
        return self.plan[: self.replies].count("ask")


def query_for(plan: Sequence[str], nonce: str) -> str:
    """Return the query for a Job that follows a plan."""
    return f"plan <{' '.join(plan)}> {nonce}."


def read_plan(query: str) -> tuple[tuple[str, ...], str]:
    """Return the plan and the nonce of a query."""
    match = re.search(r"plan <([a-z ]*)> ([\w-]+)\.", query)
    assert match is not None, query
    return tuple(match[1].split()), match[2]


State = Planned | None
"""None: the Job does not exist."""


@dataclass(frozen=True)
class Op:
    """One command."""

    kind: str
    job: str
    host: int = 0
    plan: tuple[str, ...] = ()
    nonce: str = ""
    question: int | None = None
    """Number of the question to answer; None: the open one."""
    question_id: str | None = None
    signal: str = ""


def apply_command(state: State, op: Op) -> tuple[State, bool]:
    """Return the Job after a command, starting at rest, and whether the command is accepted."""
    match op.kind:
        case "run":
            new = state is None or state.status == "unbegun"
            return (driven(Planned(op.plan, op.nonce)), True) if new else (state, False)
        case "delete":
            return None, state is not None
        case "run-due":
            is_due = state is not None and state.status == "limited" and state.is_due
            return (driven(state) if is_due and state is not None else state), True
        case "cancel":
            return state, False
    if state is None or state.status == "unbegun":
        return state, False
    if op.kind == "resume":
        return _resume(state)
    if op.kind == "answer":
        return _answer(state) if op.question in (None, state.question_count) else (state, False)
    if op.signal in state.signals:
        return state, True
    heard = replace(state, signals=state.signals | {op.signal})
    done, accepted = _answer(heard) if state.status == "asks" else _resume(heard)
    return (done, True) if accepted else (state, False)


def _resume(state: Planned) -> tuple[State, bool]:
    return (state, False) if state.status in ("asks", "completed") else (driven(state), True)


def _answer(state: Planned) -> tuple[State, bool]:
    return (driven(replace(state, answers=state.answers + 1)), True) if state.status == "asks" else (state, False)


def driven(state: Planned) -> Planned:
    """Return the Job at its next stop."""
    state = replace(state, is_due=False)
    while state.replies <= len(state.plan):
        if state.question_count > state.answers:
            return replace(state, status="asks")
        stage = state.plan[state.replies] if state.replies < len(state.plan) else "end"
        if stage in ("fail", "limit") and state.replies not in state.played:
            status = "failed" if stage == "fail" else "limited"
            return replace(state, status=status, played=state.played | {state.replies})
        state = replace(state, replies=state.replies + 1)
    return replace(state, status="completed")


@dataclass(frozen=True)
class Outcome:
    """Result of a command: accepted, refused with a message, or cancelled."""

    accepted: bool
    refusal: str = ""
    cancelled: bool = False


def explains(before: State, ops: Sequence[Op], outcomes: Sequence[Outcome], now: State) -> bool:
    """Return whether running the commands in some order explains the results.

    A refused command may have met another that was running.
    """
    done = list(zip(ops, outcomes, strict=True))
    if any(outcome.cancelled for outcome in outcomes) or any(
        op.kind == "cancel" and outcome.accepted for op, outcome in done
    ):
        return any(_is_between(before, op, now) for op in ops) or now == before
    return any(_ends_in(before, order, now) for order in _possible_orders(done))


def _possible_orders(done: Sequence[tuple[Op, Outcome]]) -> Iterator[tuple[tuple[Op, Outcome], ...]]:
    free = [outcome for outcome in done if outcome[0].kind == "run-due" or not outcome[1].accepted]
    for number in range(len(free) + 1):
        for left_out in combinations(free, number):
            yield from permutations([outcome for outcome in done if outcome not in left_out])


def _ends_in(state: State, order: Sequence[tuple[Op, Outcome]], now: State) -> bool:
    for number, (op, outcome) in enumerate(order, 1):
        if op.kind == "run" and not outcome.accepted and state is None and number < len(order):
            state = Planned(op.plan, op.nonce)  # created, and deleted before it began
            continue
        state, accepted = apply_command(state, op)
        if accepted != outcome.accepted:
            return False
    return state == now


def _is_between(before: State, op: Op, now: State) -> bool:
    """Return whether a cancellation of this command may leave the Job in this state."""
    end, accepted = apply_command(before, op)
    if now == end:
        return True
    if not accepted or end is None or now is None or (now.plan, now.nonce) != (end.plan, end.nonce):
        return False
    first = before if before is not None and before.nonce == now.nonce else Planned(now.plan, now.nonce)
    return (
        now.status in ("unbegun", "interrupted")
        and first.replies <= now.replies <= end.replies
        and first.answers <= now.answers <= end.answers
        and first.played <= now.played <= end.played
        and first.signals <= now.signals <= end.signals
    )
