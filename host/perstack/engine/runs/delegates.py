"""Drive delegates in this process or on other workers, and record each result for the call that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from perstack.core.base.text import head_and_tail
from perstack.core.definitions.settings import RESULT_LIMIT
from perstack.core.jobs.resuming import limits_of_delegate
from perstack.core.messages.messages import TextPart
from perstack.core.runs.decide import DelegateResult, has_ended, report_of, stop_event_after_delegates
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.core.runs.facts import Delegation
from perstack.core.runs.pending import pending
from perstack.core.runs.state import Run
from perstack.engine.log.run_session import RunSession
from perstack.engine.runs.beginning import ResumedRun, RunStarter
from perstack.engine.runs.job_drive import Allowance, JobDrive
from perstack.engine.runs.person_decisions import PendingQuestion, PersonAnswer
from perstack.engine.runs.remote_delegates_protocol import REMOTE, RemoteDelegates
from perstack.errors import PerstackError
from perstack.ports.skill import BlobStore
from perstack.system.user import this_process


async def _text_for_caller(result: DelegateResult, blobs: BlobStore, max_chars: int) -> str:
    """Return the result as the parent Run sees it. A long text is cut, and names the blob that has all of it."""
    text = result.text or ""
    own_limit = None if result.run is None else result.run.start.expert.result_limit
    max_chars = max_chars if own_limit is None else own_limit
    if len(text) <= max_chars:
        return text
    return head_and_tail(text, max_chars, await blobs.put(text.encode("utf-8", "replace")))


def _asking_run(run: Run | None) -> Run | None:
    return run if run is not None and run.status == "stoppedByInteractiveTool" and run.questions else None


class Delegates:
    """The delegates of all Runs that one loop drives, in its process or on other workers."""

    def __init__(
        self, job_drive: JobDrive, allowance: Allowance, drive: Callable[[RunSession, str | None], Awaitable[None]]
    ) -> None:
        """Serve the Runs of this Job. `drive` drives a Run within the time limit of the Expert with that key."""
        self._job_drive = job_drive
        self._allowance = allowance
        self._drive = drive
        self._starter = RunStarter(job_drive)

    async def await_all(self, parent_session: RunSession, delegations: Sequence[Delegation]) -> bool:
        """Drive all delegates of a Run. Record each result as it arrives, and a stop of the Run if some have no result.

        Return True if some have no result because this process is leaving: the caller then records an interrupt.
        """
        remote = self._remote_delegates(parent_session, delegations)
        if remote is not None:
            stopped_runs, has_open = await self._await_remote(remote, parent_session)
        else:
            stopped_runs, has_open = await self._await_local(parent_session, delegations), False
        if (stopped_runs or has_open) and self._job_drive.stop.after_step:
            return True
        if stopped_runs and pending(parent_session.run) is not None:
            parent_session.add(
                stop_event_after_delegates(stopped_runs, self._allowance.limits.max_steps or 0, parent_session.stamp)
            )
        return False

    def _remote_delegates(
        self, parent_session: RunSession, delegations: Sequence[Delegation]
    ) -> RemoteDelegates | None:
        if not self._job_drive.worker.distributes:
            return None
        return self._job_drive.setup.parts.get(REMOTE).remote_delegates(
            self._job_drive, self._allowance, parent_session, delegations
        )

    async def _await_local(self, parent_session: RunSession, delegations: Sequence[Delegation]) -> list[Run]:
        stopped_runs: list[Run] = []
        open_count = len(delegations)
        questions = self._job_drive.questions
        questions.begin(open_count)

        async def drive_one(delegation: Delegation) -> None:
            nonlocal open_count
            result = await self._drive_delegate(parent_session, delegation)
            if result.stopped is not None:
                stopped_runs.append(result.stopped)
            else:
                await self._record_result(parent_session, delegation, result)
            open_count -= 1
            questions.end(open_count)

        if len(delegations) == 1:
            await drive_one(delegations[0])
            return stopped_runs
        async with asyncio.TaskGroup() as group:
            for delegation in delegations:
                group.create_task(drive_one(delegation))
        return stopped_runs

    async def _await_remote(self, remote: RemoteDelegates, parent_session: RunSession) -> tuple[list[Run], bool]:
        """Return the delegates that stopped without a result, and whether some are still active on other workers."""
        stopped_runs: list[Run] = []
        self._job_drive.worker.on_waiting(True)
        try:
            async with remote, aclosing(remote.results()) as results:
                async for delegation, result in results:
                    if result.text is None:
                        stopped_runs += [] if result.run is None else [result.run]
                    else:
                        await self._record_result(parent_session, delegation, result)
            return stopped_runs, remote.has_open
        finally:
            self._job_drive.worker.on_waiting(False)

    async def _record_result(self, parent_session: RunSession, delegation: Delegation, result: DelegateResult) -> None:
        max_chars = self._job_drive.setup.project.result_limit or RESULT_LIMIT
        text = await _text_for_caller(result, self._job_drive.blobs, max_chars)
        report = None if result.run is None else report_of(result.run, delegation.tool_name)
        event = FinishToolCall(
            **parent_session.stamp(),
            tool_call_id=delegation.tool_call_id,
            tool_name=delegation.tool_name,
            contents=(TextPart(text=text),),
            is_error=result.is_error,
            delegate=result.head,
            report=report,
        )
        parent_session.add(event.with_warning(parent_session.run))
        await parent_session.flush()

    # --- one delegate in this process -----------------------------------------------------------------------------

    async def _drive_delegate(self, parent_session: RunSession, delegation: Delegation) -> DelegateResult:
        run = self._job_drive.runs.pop(delegation.run_id, None)
        if run is not None and not has_ended(run) and run.queued is not None:
            return await self._drive_reclaimed(parent_session, delegation, run)
        return await self._continue_driving(parent_session, delegation, run)

    async def _drive_reclaimed(self, parent_session: RunSession, delegation: Delegation, run: Run) -> DelegateResult:
        """Drive a delegate that was queued for another worker, holding its lease so that no other can drive it."""
        from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases

        drive, setup = self._job_drive, self._job_drive.setup
        drive.runs[run.id] = run
        await setup.parts.get(REMOTE).stop_remote(setup, drive.job, drive.runs, drive.emit, only=run.id)
        leases = DelegateLeases(setup.storage)
        async with leases.lease(run.id, this_process()):
            result = await self._continue_driving(parent_session, delegation, drive.runs.pop(run.id, run))
        if result.run is not None and has_ended(result.run):
            await leases.forget(run.id)
        return result

    async def _continue_driving(
        self, parent_session: RunSession, delegation: Delegation, run: Run | None
    ) -> DelegateResult:
        if run is not None and has_ended(run):
            return DelegateResult.of(run)
        try:
            if run is None:
                session = self._starter.begin_delegate(parent_session, delegation, self._allowance.limits)
            else:
                session = self._resume(parent_session, run)
        except PerstackError as error:
            return DelegateResult.failed(str(error))
        result = await self._drive_until_stop(parent_session, session)
        while (asking_run := _asking_run(result.stopped)) is not None:
            next_result = await self._drive_after_answer(parent_session, asking_run)
            if next_result is None:
                break
            result = next_result
        return result

    async def _drive_until_stop(self, parent_session: RunSession, session: RunSession) -> DelegateResult:
        await self._drive(session, session.run.start.expert_key)
        return self._result_of_run(parent_session, session.run)

    async def _drive_after_answer(self, parent_session: RunSession, asking_run: Run) -> DelegateResult | None:
        """Continue a delegate after an answer to its question. Return None if the Job rests instead."""
        pending_question = PendingQuestion(next(reversed(asking_run.questions.values())))
        session: RunSession | None = None
        try:
            answer = await self._job_drive.questions.wait_for_answer(pending_question)
            if answer is None:
                return None
            session = self._resume(parent_session, asking_run, answer)
            await session.flush()
            pending_question.recorded.set_result(None)
        except PerstackError as error:
            pending_question.recorded.set_exception(error)
            if session is not None:
                raise
            return DelegateResult.failed(str(error))
        finally:
            pending_question.recorded.cancel()
        return await self._drive_until_stop(parent_session, session)

    def _resume(self, parent_session: RunSession, run: Run, answer: PersonAnswer | None = None) -> RunSession:
        limits = limits_of_delegate(run, self._job_drive.setup.overrides)
        return self._starter.resume(ResumedRun(run, "parent", limits, parent_session.run.permissions, answer))

    def _result_of_run(self, parent_session: RunSession, run: Run) -> DelegateResult:
        """Return the result of a Run: a failure if its Expert's own budget stopped it, a stop if the Job's did."""
        result, exceeded, budget = DelegateResult.of(run), run.exceeded, self._allowance.budget
        if result.stopped is None or exceeded is None or budget is None:
            return result
        if budget.ledger.covers(parent_session.ref.run_id, exceeded.expert):
            return result
        return DelegateResult.failed(exceeded.words, run)
