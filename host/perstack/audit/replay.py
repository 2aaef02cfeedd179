"""Replay a Job from its logs without a model, to check that every decision and every request is reproduced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from perstack.audit.request_check import RequestCheck
from perstack.audit.verification_report import Checked, Finding, Report, Unchecked
from perstack.audit.verify import StoredToolsCheck
from perstack.core.base.chain import EMPTY_LOG, BrokenSeal, choose_opener, open_line, read_remains
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.evolve import difference, evolve
from perstack.core.runs.state import Run
from perstack.engine.log.event_log import EVENTS_PER_TURN, read_intact, run_ids
from perstack.engine.log.run_log import RunLogFormat
from perstack.errors import Damaged, NotFound
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import RunRef, Storage
from perstack.recordings.recorded_calls import DecisionReplay, JobApprovals, OfferedSchemas


async def replay_job(storage: Storage, job_id: str, factories: Sequence[SkillFactory], workspace: Path) -> Report:
    """Replay each Run from its log, without a model, and compare every decision and every request."""
    findings: list[Finding] = []
    unchecked: list[Unchecked] = []
    count = compared = 0
    tools = StoredToolsCheck(storage, job_id)
    ids = await run_ids(storage, job_id)
    approvals, offers = JobApprovals(storage, job_id), OfferedSchemas(storage, job_id)
    ruling_count = 0
    for run_id in ids:
        ref = RunRef(job_id, run_id)
        lines, damage = await read_intact(storage, ref)
        rules = DecisionReplay(factories, workspace, approvals, offers)
        requests = RequestCheck(inherits_redacted=await _inherits_redacted_messages(storage, ref))
        replayed, findings_of_run = await _replay(storage, ref, lines, requests, rules, tools)
        ruling_count += rules.ruled
        unchecked += [Unchecked("rules", run_id, number, reason) for reason, number in rules.unchecked.items()]
        count += replayed
        compared += requests.compared
        if requests.uncompared:
            message = (
                "what the model was sent has been redacted since"
                if requests.inherits_redacted
                else "the log has no digest of what the model was sent, or another version made it"
            )
            unchecked.append(Unchecked("requests", run_id, requests.uncompared, message))
        if damage is not None:
            findings.append(Finding(run_id, damage.readable + 1, str(damage)))
        elif not findings_of_run and replayed < len(lines):
            message = f"what was decided from event {replayed + 1} on depends on redacted events"
            unchecked.append(Unchecked("content", run_id, len(lines) - replayed, message))
        findings += findings_of_run
    checked = Checked(requests=compared, rulings=ruling_count)
    return Report(job_id, len(ids), count, tuple(findings), tuple(unchecked), checked)


async def _replay(
    storage: Storage,
    ref: RunRef,
    lines: list[bytes],
    requests: RequestCheck,
    rules: DecisionReplay,
    tools: StoredToolsCheck,
) -> tuple[int, list[Finding]]:
    """Return how many events of a Run were replayed, and the first event that the loop would not have produced."""
    missing: list[Finding] = []
    definition = RunLogFormat(storage)
    run: Run | None = None
    head, open_next = EMPTY_LOG, choose_opener(lines)
    for seq, line in enumerate(lines, 1):
        if seq % EVENTS_PER_TURN == 0:  # a long log takes seconds: let other tasks run
            await asyncio.sleep(0)
        try:
            sealed, head = open_next(head, line)
            event = await definition.event(ref, seq, sealed)
            if read_remains(sealed.payload) is not None:
                return seq - 1, missing
            if run is None:
                run = await definition.follow(None, event, head)
                continue
        except (BrokenSeal, Damaged, NotFound) as error:
            return seq, [*missing, Finding(ref.run_id, seq, str(error))]
        missing += await _check_offered_tools(tools, event, seq)
        wrong = difference(run, event) or requests.difference(run, event) or await rules.difference(run, event)
        if wrong is not None:
            return seq, [*missing, Finding(ref.run_id, seq, wrong)]
        try:
            run = evolve(run, event, head)
        except (LookupError, ValueError) as error:
            return seq, [*missing, Finding(ref.run_id, seq, str(error))]
    return len(lines), missing


async def _inherits_redacted_messages(storage: Storage, ref: RunRef) -> bool:
    """Return whether a Run begins with messages that were redacted, possibly after they were sent."""
    visited: set[str] = set()
    while True:
        lines, _ = await read_intact(storage, ref, limit=None if visited else 1)
        if visited and any(read_remains(open_line(line).payload) for line in lines):
            return True
        visited.add(ref.run_id)
        try:
            start = await RunLogFormat(storage).event(ref, 1, open_line(lines[0])) if lines else None
        except Damaged:
            return False
        base = start.continued_from if isinstance(start, StartRun) else None
        if base is None or base.run_id in visited:
            return False
        ref = RunRef(ref.job_id, base.run_id)


async def _check_offered_tools(check: StoredToolsCheck, event: StoredEvent, seq: int) -> list[Finding]:
    problem = await check.problem(event)
    return [] if problem is None else [Finding(event.run_id, seq, problem)]
