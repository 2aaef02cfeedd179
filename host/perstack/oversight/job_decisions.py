"""Decide which calls about a Job only a person may make: functions for the marks of `oversight.needed_decisions`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Protocol

from perstack.core.definitions.settings import Budget, Limits
from perstack.core.jobs.answer_reading import read_approval
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import UnsettledCall
from perstack.core.runs.facts import Settlement
from perstack.core.runs.open_questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.next_steps import Decide, NextStep
from perstack.oversight.needed_decisions import NeededDecision


@dataclass(frozen=True, slots=True)
class JobSubject:
    """Job of a call, from its logs: a summary is a cache that others may have written."""

    job: Job
    limits: Limits | None = None  # limits that the call gives the Job; None if it gives none
    unsettled: tuple[UnsettledCall, ...] = ()

    @property
    def description(self) -> str:
        """The Job in a sentence."""
        return f"Job {self.job.id} of {self.job.coordinator.start.expert_key}"

    @property
    def question(self) -> OpenQuestion | None:
        """The open question; None if the Job waits for no answer."""
        return self.job.question if self.job.coordinator.status == "stoppedByInteractiveTool" else None


def raised_limits(previous_limits: Limits, next_limits: Limits) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield name, value and new value of each limit of a Job that is higher afterwards; None means no limit."""
    old_budget, new_budget = previous_limits.budget or Budget(), next_limits.budget or Budget()
    budget_values = {name: (getattr(old_budget, name), getattr(new_budget, name)) for name in Budget.model_fields}
    for name, (old_value, new_value) in {
        "max_steps": (previous_limits.max_steps, next_limits.max_steps),
        **budget_values,
    }.items():
        if old_value is not None and (new_value is None or new_value > old_value):
            yield name, old_value, new_value


def _limit_decision(subject: JobSubject, step: NextStep) -> NeededDecision | None:
    if subject.limits is None:
        return None
    raised = tuple(raised_limits(subject.job.coordinator.limits, subject.limits))
    if not raised:
        return None
    changes = ", ".join(f"{name} from {_format_limit(was)} to {_format_limit(value)}" for name, was, value in raised)
    return NeededDecision(f"Raise a limit of {subject.description}: {changes}", step)


def _format_limit(value: float | None) -> str:
    return "no limit" if value is None else f"{_as_integer_if_whole(value):,}"


def _as_integer_if_whole(value: float) -> float:
    return int(value) if value == int(value) else value


def resume_limit_decision(subject: JobSubject, arguments: object) -> NeededDecision | None:
    """Return the decision to resume with a higher limit; None if no limit is raised."""
    if subject.limits is None:
        return None
    raised = raised_limits(subject.job.coordinator.limits, subject.limits)
    options = tuple((name, f"{0 if value is None else _as_integer_if_whole(value)}") for name, _, value in raised)
    return _limit_decision(subject, Decide("resume", subject.job.id, options=options))


def continue_limit_decision(subject: JobSubject | None, arguments: object) -> NeededDecision | None:
    """Return the decision to continue with a higher limit: a new Run has the definition's. None for a new Job."""
    if subject is None:
        return None
    key = subject.job.coordinator.start.expert_key
    return _limit_decision(subject, Decide("continue", subject.job.id, key))


class _WithSettlements(Protocol):
    @property
    def settle(self) -> Mapping[str, Settlement]: ...


def settlement_decision(subject: JobSubject, arguments: _WithSettlements) -> NeededDecision | None:
    """Return the decision on calls without a result; None if no settlement counts a call as done or repeats it."""
    calls = {
        name: unsettled_call
        for unsettled_call in subject.unsettled
        for name in (unsettled_call.key, unsettled_call.call_id)
    }
    decided_settlements: dict[UnsettledCall, Settlement] = {
        calls[name]: settlement
        for name, settlement in arguments.settle.items()
        if settlement in _SETTLEMENT_VERBS and name in calls
    }
    if not decided_settlements:
        return None
    lines = (
        f"{_SETTLEMENT_VERBS[settlement]} {unsettled_call.tool_name} of {unsettled_call.expert_key}"
        f" (call {unsettled_call.key}) with {unsettled_call.args}"
        for unsettled_call, settlement in decided_settlements.items()
    )
    options = tuple(
        ("settle", f"{unsettled_call.key}={settlement}") for unsettled_call, settlement in decided_settlements.items()
    )
    return NeededDecision(
        f"Settle calls of {subject.description} that may have had their effect: {'; '.join(lines)}",
        Decide("resume", subject.job.id, options=options),
        seal="\n".join(
            f"{unsettled_call.run_id} {unsettled_call.call_id} {settlement}"
            for unsettled_call, settlement in decided_settlements.items()
        ),
    )


_SETTLEMENT_VERBS: Mapping[Settlement, str] = {
    "done": "count as done",
    "retry": "repeat",
}
"""Settlements that only a person decides, with the verb for each."""


class _FromCheckpoint(Protocol):
    @property
    def resume_from(self) -> str | None: ...


def branch_decision(subject: JobSubject, arguments: _FromCheckpoint) -> NeededDecision | None:
    """Return the decision to go back in a Job: the branch would not have what people said and refused since."""
    if arguments.resume_from is None:
        return None
    key, job_id = subject.job.coordinator.start.expert_key, subject.job.id
    return NeededDecision(
        f"Rewind {subject.description} to checkpoint {arguments.resume_from}, and continue there",
        Decide("continue", job_id, key, options=(("resume_from", arguments.resume_from),)),
    )


class _WithAnswer(Protocol):
    @property
    def answer_text(self) -> str: ...


def answer_decision(subject: JobSubject, arguments: _WithAnswer) -> NeededDecision | None:
    """Return the decision to answer for a person; None to deny a call that needs approval, since nothing runs then."""
    asking = subject.question
    if asking is None:
        return None
    if asking.call_digest and read_approval(asking, arguments.answer_text).denies:
        return None
    action = "Approve a call" if asking.call_digest else "Answer a question"
    answer = arguments.answer_text
    quoted_question = json.dumps(asking.shown, ensure_ascii=False)
    return NeededDecision(
        f"{action} of {subject.description}, {quoted_question}, with {json.dumps(answer, ensure_ascii=False)}",
        Decide("answer", asking.id, answer),
        seal=asking.call_digest,
        answers=subject.job.id,
    )


class _ToldText(Protocol):
    @property
    def text(self) -> str | None: ...
    @property
    def run(self) -> str | None: ...
    @property
    def drop(self) -> str | None: ...


def tell_decision(subject: JobSubject, arguments: _ToldText) -> NeededDecision:
    """Return the decision to speak for a person: the model takes the text as theirs, and no summary replaces it."""
    run = () if arguments.run is None else (("run", arguments.run),)
    if arguments.drop is not None:
        dropped_texts = [saying.text for saying in subject.job.coordinator.sayings if saying.id == arguments.drop]
        quoted = f": {json.dumps(dropped_texts[0], ensure_ascii=False)}" if dropped_texts else ""
        return NeededDecision(
            f"Remove what a person said to {subject.description}, {arguments.drop}{quoted}",
            Decide("drop_text", subject.job.id, arguments.drop),
        )
    text = arguments.text or ""
    receiver = subject.description if arguments.run is None else f"Run {arguments.run} of {subject.description}"
    return NeededDecision(
        f"Tell {receiver}, as your words: {json.dumps(text, ensure_ascii=False)}",
        Decide("tell", subject.job.id, text, run),
    )


class _MayBeFinal(Protocol):
    @property
    def final(self) -> bool: ...


def close_decision(subject: JobSubject, arguments: _MayBeFinal) -> NeededDecision | None:
    """Return the decision to close a Job for good; None for a stop, since a stopped Job can be resumed."""
    if not arguments.final or subject.job.closed is not None:
        return None
    return NeededDecision(
        f"Close {subject.description} for good: nothing continues it",
        Decide("close", subject.job.id),
    )
