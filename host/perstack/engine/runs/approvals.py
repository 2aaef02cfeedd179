"""Approvals of calls: ask a person, or decide without one if no question is needed or nobody can be asked.

A call of `exec` that waits only because the definition does not grant `exec` (`core.definitions.exec_grant`) never
waits for an absent person: it runs in a sandbox, or is denied where no sandbox works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from perstack.config.grants import ProjectGrant
from perstack.core.definitions.exec_grant import REMEDY
from perstack.core.definitions.permissions import GRANT, OPEN, Approval
from perstack.core.definitions.sandbox import SANDBOX, SandboxPolicy
from perstack.core.definitions.skills import RULES_STAGE
from perstack.core.definitions.tool_definitions import definition_diff
from perstack.core.runs.commands import Call
from perstack.core.runs.decide import (
    ApprovalSubject,
    SettledApproval,
    approval_events,
    request_event,
    start_call_event,
    text_result_event,
)
from perstack.core.runs.display_events import ToolProgress
from perstack.core.runs.state import Run, call_key
from perstack.engine.context.protection import RUN_FILES
from perstack.engine.plugins.tool_catalogue import OfferedTool
from perstack.engine.runs.job_drive import RunDrive
from perstack.engine.runs.playback_protocol import playback_of
from perstack.errors import UsageError
from perstack.ports.skill import SkillSession
from perstack.system.user import notice

SANDBOXED = "(This ran in a sandbox with few files and no network, unless [sandbox] says more: exec is not named.)"

NOBODY_ANSWERS = "Not asked: nobody can answer in this Job. Decide without an answer, or end with what is missing."
"""Result of a model's question in an unattended Job."""

_REMEDY = f"To have it run, add {REMEDY} to the definition."
_REMEDY_OF_CHANGE = "To agree to the tool as it is now, lock the tools again, or begin a new Job without a lock."
_MAX_CHANGE_CHARS = 20_000  # maximum characters of a change of a tool's definition that a question shows
_TOO_LONG = f"Its changed definition has more than {_MAX_CHANGE_CHARS:,} characters. {_REMEDY_OF_CHANGE}"
_NOTICE = f"exec runs in a sandbox, because the definition does not name it. {_REMEDY}"
_DENIED_NOTICE = (
    "exec was denied: the definition does not name it, nobody can be asked, and no sandbox works here. " + _REMEDY
)


async def settle_or_ask(run_drive: RunDrive, call: Call) -> None:
    """Record the decision on a call that needs approval or, if a person must decide, that it waits for one."""
    session, drive = run_drive.session, run_drive.drive
    subject = await approval_subject(run_drive, call)
    granted_approval, shown_changes = await _decision_by_grant(run_drive, call)
    settled = granted_approval or await _decision_without_person(run_drive, call)
    # a person cannot agree to a change that is not shown completely
    if settled is None and sum(map(len, shown_changes.changes)) > _MAX_CHANGE_CHARS:
        settled, shown_changes = SettledApproval(Approval(decision="no", text=_TOO_LONG)), _ShownChanges()
    subject = replace(subject, changes=shown_changes.changes, changed_files=shown_changes.changed_files)
    if settled is not None and settled.approval.rule:
        subject = replace(subject, offers=tuple(dict.fromkeys((*subject.offers, settled.approval.rule))))
    if settled is not None and settled.approval.decision == "sandboxed" and not drive.has_sandboxed:
        drive.has_sandboxed = True
        show_progress(run_drive, call)(_NOTICE)
    session.record_all(approval_events(call, subject, session.stamp, settled))
    await session.flush()


async def record_approved_start(run_drive: RunDrive, call: Call) -> bool:
    """Record that an approved call begins if it is exactly what was approved. Return False if it does not begin.

    If the file that it changes has changed since, a person is asked again. A call with other arguments or paths gets an
    error result, as does a call whose tool's definition no longer has the approved digest (`tool_calls`).
    """
    session, rulings, catalogue = run_drive.session, run_drive.drive.rulings, run_drive.catalogue
    if call.digest != call.requested or await rulings.resolved_paths(call, catalogue) != call.leads_to:
        text = "Not run: this is not the call that was approved, or its paths lead elsewhere by now."
        session.add(text_result_event(call, text, session.stamp, is_error=True).with_warning(session.run))
        return False
    is_once = call.approval is not None and call.approval.decision == "once"
    # Only an approval of one call is bound to the file; requests of earlier versions have no digest.
    if is_once and call.content and call.content != await rulings.changed_file_digest(call):
        reason = "the file has changed since its change was shown"
        session.add(request_event(call, await approval_subject(run_drive, call), session.stamp, reason))
        return False
    session.add(start_call_event(call, session.stamp))
    return True


async def approval_subject(run_drive: RunDrive, call: Call) -> ApprovalSubject:
    """Return the current paths, rules and file content that an approval of a call is bound to."""
    rulings, catalogue = run_drive.drive.rulings, run_drive.catalogue
    return ApprovalSubject(
        await rulings.resolved_paths(call, catalogue),
        await rulings.offered_rules(call, catalogue, run_drive.session.run.rules) if _is_asked_by_rules(call) else (),
        await rulings.changed_file_digest(call),
    )


def _is_asked_by_rules(call: Call) -> bool:
    """Return whether a permission rule asks; rules and grants settle no question of another stage."""
    return call.decided.decider == RULES_STAGE


def show_progress(run_drive: RunDrive, call: Call) -> Callable[[str], None]:
    """Return a function that shows a line about a call to the person who watches the Job."""
    run, drive, numbers = run_drive.session.run, run_drive.drive, count(1)

    def show(message: str) -> None:
        drive.emit.display(
            ToolProgress(
                id=f"{call_key(run, call)}-{next(numbers)}",
                timestamp=drive.setup.clock.now(),
                job_id=run.start.job_id,
                run_id=run.id,
                expert_key=run.start.expert_key,
                step_number=run.step,
                tool_call_id=call.decided.id,
                tool_name=call.decided.tool_name,
                message=message,
            )
        )

    return show


async def sandboxed_session(run_drive: RunDrive) -> SkillSession:
    """Return the base skill with its programs in a sandbox. Raises SkillError and UsageError."""
    run = run_drive.session.run
    return await run_drive.drive.skills.open_sandboxed_base(run.start.expert, run.id, _sandbox_policy(run))


class _ShownChanges(NamedTuple):
    """Differences from an earlier agreement, which the question to a person shows."""

    changes: tuple[str, ...] = ()  # changed lines of the tool's definition
    changed_files: tuple[str, ...] = ()  # changed files that the granted rule names


async def _decision_by_grant(run_drive: RunDrive, call: Call) -> tuple[SettledApproval | None, _ShownChanges]:
    """Return the decision that a person has made for the whole project, if it covers the call.

    If the rule names files, the decision is for this call only, so that the next call compares the files again.
    """
    tool = run_drive.catalogue.find(call.decided)
    judged = None if tool is None else tool.judged
    changes = () if judged is None or not call.decided.changed else judged.changes
    if run_drive.plays_recording or not _is_asked_by_rules(call):
        return None, _ShownChanges(changes)
    drive, run = run_drive.drive, run_drive.session.run
    grants = await asyncio.to_thread(drive.setup.grants.parsable)
    valid_grants, outdated_rules = _split_grants(grants, call, tool)
    files = drive.setup.parts.get(RUN_FILES)
    changed_files: tuple[str, ...] = ()
    while (rule := await drive.rulings.granted_rule(call, run_drive.catalogue, run.rules, [*valid_grants])) is not None:
        grant = valid_grants.pop(rule)
        contents = await asyncio.to_thread(files.contents_of_rule, rule, drive.setup.workspace)
        changed_files = grant.changed_files(contents)
        if not changed_files:
            approval = Approval(decision="once") if files.names_files(rule) else Approval(decision="job", rule=rule)
            return SettledApproval(approval, GRANT), _ShownChanges()
    rule = await drive.rulings.granted_rule(call, run_drive.catalogue, run.rules, outdated_rules)
    if rule is None or judged is None or tool is None:
        return None, _ShownChanges(changes, changed_files)
    reason = f"of this tool has changed since {rule} was allowed in this project, or was not shown then; it is now:"
    return None, _ShownChanges((reason, *definition_diff(None, tool.spec)))


def _split_grants(
    grants: Iterable[ProjectGrant], call: Call, tool: OfferedTool | None
) -> tuple[dict[str, ProjectGrant], tuple[str, ...]]:
    """Return the grants that hold for the tool's definition in force, by rule, and the rules of other grants."""
    valid_grants: dict[str, ProjectGrant] = {}
    outdated_rules: list[str] = []
    is_locked = tool is not None and tool.judged is not None and tool.judged.is_locked
    for grant in grants:
        name = call.decided.tool_name if tool is None else tool.own_name
        is_valid = grant.holds_for(call.decided.skill_name, name, call.decided.definition, is_locked=is_locked)
        if is_valid:
            valid_grants[grant.rule] = grant
        else:
            outdated_rules.append(grant.rule)
    return valid_grants, tuple(outdated_rules)


async def _decision_without_person(run_drive: RunDrive, call: Call) -> SettledApproval | None:
    """Return the decision that needs no person; None if a person must be asked."""
    run, setup = run_drive.session.run, run_drive.drive.setup
    asks_exec = run.asks_exec and _is_asked_by_rules(call)
    if asks_exec and await run_drive.drive.rulings.is_allowed(call, run_drive.catalogue, run.permissions):
        return await _decide_exec(run_drive, call)
    text = _REMEDY_OF_CHANGE if call.decided.changed else ""
    return SettledApproval(Approval(decision="no", text=text)) if setup.overrides.unattended else None


async def _decide_exec(run_drive: RunDrive, call: Call) -> SettledApproval | None:
    """Return the decision about an `exec` that the definition does not name; None to ask a person, or the recording."""
    setup = run_drive.drive.setup
    if setup.overrides.open:  # the option was given after the Run began, so the recorded grant does not have it
        return SettledApproval(Approval(decision="once"), OPEN)
    if run_drive.plays_recording:
        return (
            None
            if playback_of(run_drive).has_recorded_decision(run_drive, call)
            else SettledApproval(Approval(decision="sandboxed"))
        )
    is_unattended = setup.overrides.unattended or not setup.is_attended()
    if not is_unattended and run_drive.session.run.start.sandbox is None:
        return None
    if await _can_sandbox(run_drive):
        return SettledApproval(Approval(decision="sandboxed"))
    if not is_unattended:
        return None
    if not run_drive.drive.has_denied:
        run_drive.drive.has_denied = True
        notice(f"{run_drive.session.run.start.expert_key}: {_DENIED_NOTICE}")
    return SettledApproval(Approval(decision="no", text=_REMEDY))


async def _can_sandbox(run_drive: RunDrive) -> bool:
    try:
        await run_drive.drive.setup.check_policies((_sandbox_policy(run_drive.session.run),))
    except UsageError:
        return False
    return True


def _sandbox_policy(run: Run) -> SandboxPolicy:
    """Return the Run's sandbox policy, or the default one, with a runtime, without which it confines no program."""
    return (run.start.sandbox or SandboxPolicy()).model_copy(update={"runtime": SANDBOX})
