"""The table of stages that decide the calls of a reply, before any of them runs.

`core/runs/call_stages.py` has the theory. A stage that may deny a call is added as a module with a `Judge` and a row in
`STAGES`; a stage that awaits something gives both functions of `CallStage` itself. The stages decide in the order of
the table. A call that needs a person's approval is passed to `approvals.settle_or_ask`, an allowed or approved call to
`tool_calls.run_tools`.

Only questions of the permission rules are lifted without a person: by approvals for the whole Job (`core.permissions.
call_rulings`), by grants of the project and by the default of `exec` (`approvals`). A question of any other stage
needs an answer each time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from perstack.core.definitions.skills import ARGUMENTS_STAGE, CATALOGUE_STAGE, RULES_STAGE, DecidedCall, Strictness
from perstack.core.messages.messages import ToolCallPart
from perstack.core.permissions.policy_calls import Difference
from perstack.core.runs.call_stages import (
    Judge,
    LoggedCall,
    StagedCall,
    after_stage,
    arguments_difference,
    catalogue_difference,
    difference_by,
    rules_difference,
    with_verdict,
)
from perstack.core.runs.commands import Call
from perstack.core.runs.decide import changed_call_event
from perstack.dataclass import dataclass
from perstack.engine.runs.approvals import approval_subject
from perstack.engine.runs.job_drive import RunDrive


@dataclass(frozen=True, slots=True)
class CallStage:
    """One stage of deciding calls, and how a replay checks its recorded decisions."""

    name: str
    decide: Callable[[RunDrive, Sequence[StagedCall]], Awaitable[Sequence[DecidedCall]]]
    """Returns the verdicts on calls that are not refused yet, in their order; see `with_verdict`."""
    difference: Callable[[LoggedCall], Difference | None]
    """Returns how a recorded decision contradicts this stage. Not called for calls that an earlier stage denied."""


def pure_stage(name: str, judge: Judge) -> CallStage:
    """Return a stage that decides from the state of the Run and the call alone."""

    async def decide(run_drive: RunDrive, calls: Sequence[StagedCall]) -> Sequence[DecidedCall]:
        return [with_verdict(call.decided, judge(run_drive.session.run, call)) for call in calls]

    return CallStage(name, decide, difference_by(name, judge))


async def _look_up(run_drive: RunDrive, calls: Sequence[StagedCall]) -> Sequence[DecidedCall]:
    return [run_drive.catalogue.look_up(call.part) for call in calls]


async def _check_arguments(run_drive: RunDrive, calls: Sequence[StagedCall]) -> Sequence[DecidedCall]:
    return [await run_drive.catalogue.check_arguments(call.part, call.decided) for call in calls]


async def _apply_rules(run_drive: RunDrive, calls: Sequence[StagedCall]) -> Sequence[DecidedCall]:
    parts, decided = [call.part for call in calls], [call.decided for call in calls]
    run, vault, drive = run_drive.session.run, run_drive.vault, run_drive.drive
    catalogue, rules, approvals = run_drive.catalogue, run.rules_for(decided), drive.job.standing_approvals
    if not rules and not any(decided_call.changed for decided_call in decided):
        return decided
    shown_decided = await drive.rulings.apply_to(parts, decided, catalogue, rules, approvals)
    if vault is None:
        return shown_decided
    # the rules also apply to the arguments that tools receive, which contain the masked secrets
    filled_decided = await drive.rulings.apply_to(vault.fill_parts(parts), decided, catalogue, rules, approvals)
    return [vault.stricter_ruling(*rulings) for rulings in zip(shown_decided, filled_decided, strict=True)]


STAGES: tuple[CallStage, ...] = (
    CallStage(CATALOGUE_STAGE, _look_up, catalogue_difference),
    CallStage(ARGUMENTS_STAGE, _check_arguments, arguments_difference),
    CallStage(RULES_STAGE, _apply_rules, rules_difference),
)


async def decide_calls(run_drive: RunDrive, parts: Sequence[ToolCallPart]) -> Sequence[DecidedCall]:
    """Return the decisions of the stages about the calls of a reply.

    Connect to a locked skill before its first call is decided: its tools may differ from the lock.
    """
    decided = await _decide_in_stages(run_drive, parts)
    called_skills = {
        decided_call.skill_name for decided_call in decided if decided_call.kind == "tool" and decided_call.definition
    }
    if called_skills and await run_drive.skills.connect_locked(called_skills):
        await run_drive.skills.refresh()
        return await _decide_in_stages(run_drive, parts)
    return decided


async def _decide_in_stages(run_drive: RunDrive, parts: Sequence[ToolCallPart]) -> Sequence[DecidedCall]:
    calls = [StagedCall(part, DecidedCall(id=part.tool_call_id, tool_name=part.tool_name)) for part in parts]
    for stage in STAGES:
        open_calls = [call for call in calls if call.decided.kind != "refused"]
        if open_calls:
            decisions = zip(open_calls, await stage.decide(run_drive, open_calls), strict=True)
            new_decisions = iter([after_stage(stage.name, call.decided, decided) for call, decided in decisions])
            calls = [
                call if call.decided.kind == "refused" else replace(call, decided=next(new_decisions)) for call in calls
            ]
    return [call.decided for call in calls]


async def decide_change(run_drive: RunDrive, call: Call) -> None:
    """Record the decision of the stages about a call whose arguments a person has changed."""
    session, changed = run_drive.session, replace(call, part=call.changed_part)
    (decided,) = await decide_calls(run_drive, (changed.part,))
    subject = await approval_subject(run_drive, replace(changed, decided=decided))
    session.add(changed_call_event(changed, decided, subject, session.stamp))
    await session.flush()


def decision_difference(recorded: LoggedCall) -> Difference | None:
    """Return how a recorded decision contradicts the stages; None if it does not. Prefer a certain difference."""
    decider = recorded.decided.decider
    doubtful_difference: Difference | None = None
    if decider and all(stage.name != decider for stage in STAGES):
        return recorded.differs(f"decided by the stage {decider!r}, and there is none of that name")
    if recorded.decided.stage and recorded.decided.strictness < Strictness.ASKED:
        return recorded.differs("allowed, and a stage is named for it")
    for stage in STAGES:
        difference = stage.difference(recorded)
        if difference is not None and not difference.doubt:
            return difference
        doubtful_difference = doubtful_difference or difference
        if recorded.decided.kind == "refused" and stage.name == decider:
            break
    return doubtful_difference
