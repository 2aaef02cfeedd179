"""Decide the calls of a reply, before any of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import ToolCallPart
from perstack.core.runs.commands import Call
from perstack.core.runs.decide import changed_call_event
from perstack.engine.runs.approvals import approval_subject
from perstack.engine.runs.job_drive import RunDrive


async def decide_calls(run_drive: RunDrive, parts: Sequence[ToolCallPart]) -> Sequence[DecidedCall]:
    """Return what the catalogue and the permission rules decide about the calls of a reply.

    A locked skill is connected to before its first call is decided: its tools may differ from the lock.
    """
    decided = await _decide(run_drive, parts)
    called = {
        decided_call.skill_name for decided_call in decided if decided_call.kind == "tool" and decided_call.definition
    }
    if called and await run_drive.skills.connect_locked(called):
        await run_drive.skills.refresh()
        return await _decide(run_drive, parts)
    return decided


async def _decide(run_drive: RunDrive, parts: Sequence[ToolCallPart]) -> Sequence[DecidedCall]:
    decided = [await run_drive.catalogue.decide(part) for part in parts]
    run, vault, drive = run_drive.session.run, run_drive.vault, run_drive.drive
    catalogue, rules, approvals = run_drive.catalogue, run.rules_for(decided), drive.job.standing
    if not rules and not any(decided_call.changed for decided_call in decided):
        return decided
    shown = await drive.rulings.of(parts, decided, catalogue, rules, approvals)
    if vault is None:
        return shown
    # with masked secrets the rules apply to the arguments that tools receive, too
    filled = await drive.rulings.of(vault.filled_parts(parts), decided, catalogue, rules, approvals)
    return [vault.stricter(decision, filled_decision) for decision, filled_decision in zip(shown, filled, strict=True)]


async def decide_change(run_drive: RunDrive, call: Call) -> None:
    """Record what the rules in force decide about a call with the arguments that a person has given it."""
    session, changed = run_drive.session, replace(call, part=call.changed_part)
    (decided,) = await decide_calls(run_drive, (changed.part,))
    subject = await approval_subject(run_drive, replace(changed, decided=decided))
    session.add(changed_call_event(changed, decided, subject, session.stamp))
    await session.flush()
