"""Drive the Runs of one Job: ask `pending` for the next command, perform it, record what happened.

The loop decides nothing. `pending` (core/runs/pending.py) reads the next command from the Run's state alone, and
core/runs/decide.py makes the events that need no effect. Only the engine awaits effects: models, tools, files, people.

One step of a Run that calls a tool, pass by pass of `RunLoop._perform_pending`:

  READY    Generate     `generate` writes `startGeneration`, calls the model, records `finishGeneration`
  REPLIED  DecideCalls  the catalogue and the permission rules decide each call; records `callTools`
  CALLING  RunTools     `run_tools` runs the calls concurrently and records a `finishToolCall` for each
  SETTLED  EndStep      records `finishStep`; the Run is READY for its next step, or for EndRun if it has a result

When `pending` returns None the Run has ended or stopped. `RunSession.record` folds an event into the state,
`RunSession.flush` writes the recorded events, all or nothing. An effect that must not happen twice is flushed before it
begins (intent before effect): `startGeneration` before the model is called, `callTools` before a tool with a side
effect runs, the ids of delegates before one starts. After a crash the log is folded, `RunStarter.resume` records
`resumeRun`, and the loop continues: a stop changes the status of a Run and not its phase.

Features act in the loop only through keys of parts of the host, which this layer defines: playback_protocol.py (play
a recording), remote_delegates_protocol.py (drive delegates on other workers) and input_protocols.py (take posted texts,
fit images) here, engine/log/snapshot_protocol.py (take snapshots), and `MAKE_ROOM` below (make room in a full context).

A new command needs its class in core/runs/commands.py, the rule in `pending` that returns it, and a case in
`RunLoop._perform`; `assert_never` makes the type check fail without one. For an event see "How to add" in
docs/architecture.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import assert_never

from perstack.core.definitions.job_status import ACTIVE
from perstack.core.definitions.skills import COUNTED_CALLS
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.commands import (
    Ask,
    AskApproval,
    AwaitDelegates,
    Command,
    Compact,
    Complete,
    DecideCalls,
    DecideChange,
    EndRun,
    EndStep,
    Fail,
    Generate,
    JudgeResult,
    PerformedCommand,
    RecordResult,
    RunTools,
    Shrink,
    Snapshot,
    StartDelegates,
    StopAtLimit,
    Switch,
)
from perstack.core.runs.decide import (
    budget_stop_event,
    events_of_command,
    interrupt_events,
    question_events,
    result_event,
)
from perstack.core.runs.events.lifecycle import QueueRun
from perstack.core.runs.events.tool_calls import CallTools
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.pending import INTERRUPTED, begins_step, pending, takes_posted_texts
from perstack.core.runs.state import Phase, Run
from perstack.core.schemas.json_schema import QUICK_STEPS, shorten
from perstack.core.schemas.result_schemas import ResultCheck, check_result
from perstack.engine.log.run_session import RunSession
from perstack.engine.plugins.job_skills import RunSkills
from perstack.engine.runs.approvals import NOBODY_ANSWERS, settle_or_ask
from perstack.engine.runs.attempts import open_endpoint, record_failure, return_to_first_model, switch_model
from perstack.engine.runs.call_stages import decide_calls, decide_change
from perstack.engine.runs.delegates import Delegates
from perstack.engine.runs.generation import generate
from perstack.engine.runs.input_protocols import TEXT_INBOX
from perstack.engine.runs.job_drive import Allowance, JobDrive, RunDrive
from perstack.engine.runs.playback_protocol import fail_if_differs_from_recording, playback_of
from perstack.engine.runs.run_skills import open_skills, reopen_skills
from perstack.engine.runs.tool_calls import refuse_calls, run_tools
from perstack.ports.parts import Part
from perstack.system.concurrency import leaf_errors, shield_until_done

MAKE_ROOM: Part[Callable[[RunDrive, Shrink | Compact], Awaitable[None]]] = Part("compaction")
"""Part that shrinks old results of a Run or summarizes its history. It records that, or that no budget allows it."""

_MAX_CHARACTERS_OUTSIDE_THREAD = 50_000  # longest result that is validated in the event loop, not in a thread


class RunLoop:
    """Drives a Run, and all Runs that it delegates to, from the points that their logs have reached."""

    def __init__(self, drive: JobDrive, allowance: Allowance) -> None:
        """Drive Runs of this Job within the allowance of the root Run."""
        self._drive = drive
        self._allowance = allowance
        self._text_inbox = drive.setup.parts.get(TEXT_INBOX)(drive.setup.storage)
        self._delegates = Delegates(drive, allowance, self._drive_run)

    async def drive_job(self, session: RunSession) -> JobSummary:
        """Drive a Coordinator as `drive_root` does, keep job.json up to date, and return the last summary."""
        summary_file = self._drive.summary_file
        await summary_file.mark_stale()  # says "running" even after an error, so that readers trust the logs
        try:
            async with summary_file.keep_summary():
                await self.drive_root(session)
        except asyncio.CancelledError:
            await shield_until_done(summary_file.write(is_driven=False))
            raise
        return await summary_file.write(is_driven=False)

    async def drive_root(self, session: RunSession) -> None:
        """Drive the root Run of this drive, and all its descendants, until it ends or stops."""
        try:
            await self._drive_run(session, None)
        except BaseExceptionGroup as group:
            raise leaf_errors(group)[0] from group  # report the first failure: a person can act on one line

    async def _drive_run(self, session: RunSession, expert_key: str | None) -> None:
        """Drive one Run until it ends or stops, at the latest at the time limit of the Job or of its Expert."""
        budget = self._allowance.budget
        if budget is None:
            await self._perform_pending(session)
        else:
            async with budget.time_limit(session.run.id, expert_key):
                await self._perform_pending(session)

    async def _perform_pending(self, session: RunSession) -> None:
        """Perform pending commands until there are none. A cancellation is recorded as an interrupt."""
        try:
            await session.flush()
            skills = await self._open_skills(session)
            run_drive = None if skills is None else await self._open_model(session, skills)
            while run_drive is not None and (command := self._next_command(session)) is not None:
                if self._drive.stop.after_step and begins_step(session.run, command):
                    self._record_interrupt(session)
                elif takes_posted_texts(session.run, command) and await self._take_posted_texts(run_drive):
                    continue
                elif isinstance(command, Switch):
                    await switch_model(session, command.error, self._drive.prices)
                elif not (isinstance(command, Generate) and await return_to_first_model(session, self._drive.prices)):
                    await self._perform(run_drive, command)
                run_drive = await self._reopen_if_changed(run_drive)
            await session.flush()
        except asyncio.CancelledError:
            await shield_until_done(self._stop_cancelled(session))
            raise
        await session.write_checkpoint()

    def _next_command(self, session: RunSession) -> Command | None:
        allowance = self._allowance
        return pending(session.run, allowance.limits.max_steps if allowance.steps_left == 0 else None)

    async def _take_posted_texts(self, run_drive: RunDrive) -> bool:
        """Record texts that people posted to the Run, and return whether there were new ones."""
        if run_drive.plays_recording and playback_of(run_drive).take_recorded_texts(run_drive):
            return True
        return await self._text_inbox.take(self._drive.job, run_drive.session)

    async def _perform(self, run_drive: RunDrive, command: PerformedCommand) -> None:  # noqa: C901 - one case for each command
        if await fail_if_differs_from_recording(run_drive, command):
            return
        session, drive = run_drive.session, self._drive
        match command:
            case Generate():
                await run_drive.refresh()
                await generate(run_drive, command)
            case DecideCalls():
                await self._decide_calls(run_drive, command)
            case RunTools():
                await run_tools(run_drive, command)
            case StartDelegates() if not drive.job.has_numbers(len(command.calls)):
                text = f"Delegation failed: {session.run.id} has no numbers left for more delegates."
                refuse_calls(session, [(call, text) for call in command.calls])
            case StartDelegates():
                session.record_all(events_of_command(session.run, command, session.stamp, drive.job.next_number))
                await session.flush()  # the ids of the delegates are on disk before one starts
                await session.write_checkpoint()
            case AwaitDelegates():
                if await self._delegates.await_all(session, command.delegations):
                    self._record_interrupt(session)
            case Ask() if drive.setup.overrides.unattended and not run_drive.plays_recording:
                text = INTERRUPTED if command.call.settlement == "ask" else NOBODY_ANSWERS
                refuse_calls(session, ((command.call, text),))
            case Ask():
                tool = run_drive.catalogue.find(command.call.decided)
                approval = tool is not None and tool.spec.approval
                session.record_all(question_events(session.run, command.call, session.stamp, approval=approval))
                await session.flush()
            case AskApproval():
                await settle_or_ask(run_drive, command.call)
            case DecideChange():
                await decide_change(run_drive, command.call)
            case JudgeResult():
                judged = await self._judge_result(session.run, command)
                session.add(result_event(session.run, command.text, judged, session.stamp))
            case Shrink() | Compact():
                await drive.setup.parts.get(MAKE_ROOM)(run_drive, command)
            case Snapshot():
                session.add(await drive.snapshots.record(session.run, session.stamp))
            case RecordResult() | Complete() | EndStep() | Fail() | EndRun() | StopAtLimit():
                session.record_all(events_of_command(session.run, command, session.stamp, drive.job.next_number))
            case _:
                assert_never(command)

    async def _decide_calls(self, run_drive: RunDrive, command: DecideCalls) -> None:
        session, budget = run_drive.session, run_drive.budget
        calls = await decide_calls(run_drive, command.calls)
        count = sum(decided.kind in COUNTED_CALLS for decided in calls)
        exceeded = None if budget is None else budget.ledger.excess_of_calls(session.run.id, count)
        if exceeded is None:
            session.add(CallTools(**session.stamp(), calls=tuple(calls)))
        else:
            session.add(budget_stop_event(exceeded, session.stamp))

    async def _judge_result(self, run: Run, command: JudgeResult) -> ResultCheck:
        """Check a result against its schema, and a Coordinator's also by the function that the Host was given."""
        text, is_short = command.text, len(command.text) <= _MAX_CHARACTERS_OUTSIDE_THREAD
        result = check_result(text, command.schema, QUICK_STEPS) if is_short else None
        if result is None:  # too long, or not checked within `QUICK_STEPS`
            result = await asyncio.to_thread(check_result, text, command.schema)
        check_by_host = self._drive.setup.check_result if run.is_coordinator else None
        problem = None if check_by_host is None or result.value is None else check_by_host(result.value)
        return result if problem is None else ResultCheck(problem=shorten(problem), by_program=True)

    # --- opening and stopping -------------------------------------------------------------------------------------

    async def _reopen_if_changed(self, run_drive: RunDrive) -> RunDrive | None:
        """Open the model and skills again if they have changed. If that fails, fail the Run and return None."""
        session, skills = run_drive.session, run_drive.skills
        # a fallback model has taken over, or the first one again
        if run_drive.fallback_model != session.run.fallback_model:
            return await self._open_model(session, skills)
        if skills.changes == session.run.expert_changes or session.run.phase is not Phase.READY:
            return run_drive  # changes of the Expert take effect once all calls of the reply have results
        new_skills = await self._open_skills(session, has_changed=True)
        return None if new_skills is None else replace(run_drive, skills=new_skills)

    async def _open_skills(self, session: RunSession, *, has_changed: bool = False) -> RunSkills | None:
        """Open the skills of a Run; `has_changed`: it has others open. If that fails, fail the Run and return None."""
        drive, run = self._drive, session.run
        try:
            skills = await (reopen_skills(drive, run) if has_changed else open_skills(drive, run))
        except Exception as error:  # noqa: BLE001 - whatever a skill's code raises, the Run ends with its message
            await record_failure(session, ErrorInfo(name=type(error).__name__, message=str(error)))
            return None
        if run.is_tightened and run.phase is Phase.CALLING:
            refuse_calls(session, await drive.rulings.judge_again(run, skills.catalogue))
        return skills

    async def _open_model(self, session: RunSession, skills: RunSkills) -> RunDrive | None:
        """Open the endpoint of the model in force. If that fails, fail the Run and return None."""
        endpoint = await open_endpoint(self._drive, session)
        if endpoint is None:
            return None
        fallback_model, vault = session.run.fallback_model, self._drive.vault(session.run)
        return RunDrive(self._drive, session, skills, endpoint, fallback_model, self._allowance, vault)

    async def _stop_cancelled(self, session: RunSession) -> None:
        """Record the stop of a cancelled drive: at a time limit if one has expired, else as an interrupt."""
        if not session.has_begun:
            return
        budget = self._allowance.budget
        await self._drive.snapshots.record_unfinished_changes(session, self._drive.worker.name)
        exceeded = None if budget is None else budget.expired_time_limit(session.run)
        if exceeded is not None and session.run.status in ACTIVE:
            session.add(budget_stop_event(exceeded, session.stamp))
        self._record_interrupt(session)
        await session.flush()
        await session.write_checkpoint()

    def _record_interrupt(self, session: RunSession) -> None:
        """Record an interrupt. If this worker is leaving, queue the root Run again, for another worker."""
        session.record_all(interrupt_events(session.run, session.stamp))
        if session.run.id == self._allowance.root_id and (queue_fields := self._drive.requeue(session.run)) is not None:
            session.add(QueueRun(**session.stamp(), **queue_fields))
