"""Stages of the decision on a tool call: what they say, how their verdicts combine, and how a replay repeats them.

A call passes the stages of `engine/runs/call_stages.py` in order. Each gets it as the stages before have decided it,
and returns it as it was or with a stricter verdict: a person must approve it, or it is denied. The strictest verdict
stands, of two that ask the later one, and after a denial no other stage is asked. Only then is a person asked, and
only then does the call run.

The log records the stage whose verdict stands, the decider (`DecidedCall.decider`). A replay asks every stage again:
the decider must return the recorded verdict, and no other stage a stricter one. So a stage has two functions: one for a
Run, which may await I/O, and one for a replay, which has only the log. A pure stage has one `Judge` for both
(`engine.runs.call_stages.pure_stage`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from perstack.core.base.records import JsonObject
from perstack.core.definitions.permissions import StandingApproval
from perstack.core.definitions.skills import (
    ARGUMENTS_STAGE,
    CATALOGUE_STAGE,
    RULES_STAGE,
    STRICTNESS_WORDS,
    DecidedCall,
    Strictness,
    Subject,
    named_arguments,
    without_verdict,
)
from perstack.core.messages.messages import ToolCallPart
from perstack.core.permissions.policy_calls import Difference, PolicyCall
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StagedCall:
    """A call of a reply, as the stages so far have decided it."""

    part: ToolCallPart
    decided: DecidedCall


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """Verdict of a stage on a call that needs approval or is denied."""

    decision: Literal["ask", "deny"]
    rule: str  # short reason, for people
    problem: str = ""  # message for the model about a denied call; if empty, the message names the rule


Judge = Callable[[Run, StagedCall], StageVerdict | None]
"""Returns the verdict of a stage on a call; None to let it pass. Pure: a replay calls it again."""


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A decided call of a log, and what a replay knows about it."""

    run: Run  # state before the decision
    part: ToolCallPart
    decided: DecidedCall
    schemas: Mapping[str, JsonObject] | None  # schemas of the offered tools, by name; None if unknown
    is_host_tool: bool  # True for a tool that no server or plugin can take back
    subject: Subject | None  # meaning of its arguments, if it is known
    readings: Sequence[PolicyCall] | None  # the call in each form that rules may have seen; None if that is unknown
    approvals: Sequence[StandingApproval]  # approvals of a person for the whole Job
    is_same_place: bool  # True if the workspace is where the Job ran
    is_resumed: bool  # True if another process may have offered the tools since the reply

    def differs(self, words: str, doubt: str = "") -> Difference:
        """Return the difference «call … is recorded as `words`». `doubt`: why it may be right nevertheless."""
        return Difference(f"call {self.decided.id} of {self.decided.tool_name} is recorded as {words}", doubt)


def with_verdict(decided: DecidedCall, verdict: StageVerdict | None) -> DecidedCall:
    """Return a call with the verdict of a stage."""
    if verdict is None:
        return decided
    if verdict.decision == "ask":
        return decided.model_copy(update={"asks": True, "rule": verdict.rule, "approved_by": ""})
    problem = verdict.problem or f"Not run: {verdict.rule} denies this call. Do not try to get round it."
    denied: dict[str, object] = {"kind": "refused", "asks": False, "approved_by": "", "problem": problem}
    return decided.model_copy(update={**denied, "rule": verdict.rule})


def after_stage(stage: str, previous_decided: DecidedCall, next_decided: DecidedCall) -> DecidedCall:
    """Return the decision after a stage, with the stage that decided it. A milder verdict changes nothing."""
    if next_decided.strictness < previous_decided.strictness:
        return previous_decided
    is_unchanged = next_decided.strictness == previous_decided.strictness and next_decided.rule == previous_decided.rule
    if is_unchanged or next_decided.decider == stage:
        return next_decided
    return next_decided.model_copy(update={"stage": stage})


# How a replay repeats each stage.

_UNKNOWN_TOOLS = "of tools that the log does not describe"
_OTHER_TOOLS = "of a server or plugin whose tools may have changed between the reply and the decision"
_UNKNOWN_ARGUMENTS = "of a plugin that is not there now, or does not say what its tools' arguments are"
_UNREADABLE_RULES = "under rules that this version cannot read"


def catalogue_difference(recorded: LoggedCall) -> Difference | None:
    """Return a difference if a tool that the model was offered was refused as unknown."""
    if recorded.decided.decider != CATALOGUE_STAGE:
        return None  # a tool may exist without having been offered, since a search can reveal it later
    words = "refused because there is no such tool"
    if recorded.schemas is None:
        return recorded.differs(words, _UNKNOWN_TOOLS)
    if recorded.part.tool_name not in recorded.schemas:
        return None
    doubt = "" if recorded.is_host_tool else _OTHER_TOOLS
    return recorded.differs(f"{words}, and the model was offered it", doubt)


def arguments_difference(recorded: LoggedCall) -> Difference | None:
    """Return a difference if right arguments were refused, or wrong ones accepted."""
    is_refused = recorded.decided.decider == ARGUMENTS_STAGE
    schema = None if recorded.schemas is None else recorded.schemas.get(recorded.part.tool_name)
    if recorded.part.raw_args is not None:
        return (
            None
            if is_refused
            else recorded.differs(f"{_recorded_verdict(recorded)}, and its arguments are no JSON object")
        )
    if schema is None:
        return recorded.differs("refused for its arguments", _UNKNOWN_TOOLS) if is_refused else None
    from perstack.core.schemas.json_schema import FULL_STEPS, Checker, Meter

    args = named_arguments(recorded.subject, recorded.part.args)
    violation = Checker(schema).violation(args, Meter(FULL_STEPS))
    if is_refused is (violation is not None):
        return None
    words = (
        f"{_recorded_verdict(recorded)}, and its arguments are wrong"
        if violation
        else "refused for its arguments, which fit"
    )
    return recorded.differs(words, _OTHER_TOOLS if recorded.is_resumed and not recorded.is_host_tool else "")


def rules_difference(recorded: LoggedCall) -> Difference | None:
    """Return a difference if the recorded rules do not make the recorded decision."""
    from perstack.core.permissions.call_rulings import difference_of  # few Runs are replayed

    decided, run = recorded.decided, recorded.run
    if not (run.rules_for((decided,)) or decided.changed or decided.decider == RULES_STAGE):
        return None
    if recorded.readings is None:
        return recorded.differs("decided by rules", _UNKNOWN_ARGUMENTS)
    try:
        return difference_of(
            run.rules, recorded.approvals, decided, recorded.readings, is_same_place=recorded.is_same_place
        )
    except ValueError:
        return recorded.differs("decided by rules", _UNREADABLE_RULES)


def difference_by(stage: str, judge: Judge) -> Callable[[LoggedCall], Difference | None]:
    """Return the function with which a replay repeats a pure stage."""

    def difference(recorded: LoggedCall) -> Difference | None:
        decided = recorded.decided
        verdict = judge(recorded.run, StagedCall(recorded.part, without_verdict(decided)))
        strictness = with_verdict(without_verdict(decided), verdict).strictness
        if decided.decider == stage:
            is_right = strictness == decided.strictness
        else:
            is_right = strictness <= min(decided.strictness, Strictness.ASKED)
        if is_right:
            return None
        effect = "lets it pass" if verdict is None else f"makes it {STRICTNESS_WORDS[strictness]} ({verdict.rule})"
        return recorded.differs(f"{_recorded_verdict(recorded)}, where the stage {stage!r} {effect}")

    return difference


def _recorded_verdict(recorded: LoggedCall) -> str:
    decider = f" by the stage {recorded.decided.decider!r}" if recorded.decided.decider else ""
    return f"{STRICTNESS_WORDS[recorded.decided.strictness]}{decider}"
