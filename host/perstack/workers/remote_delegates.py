"""Delegates on other workers: begin and queue them, follow their logs, and grant each a share of the budget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import field, replace
from types import TracebackType
from typing import TYPE_CHECKING, assert_never

from perstack.core.base.ids import may_be_remote
from perstack.core.base.usage import BudgetRefusal, nano
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.job_status import ACTIVE
from perstack.core.definitions.project import with_delegates
from perstack.core.definitions.settings import Limits
from perstack.core.jobs.budget_ledger import JOB, Amounts, Unit
from perstack.core.jobs.job import Job
from perstack.core.jobs.resuming import has_separate_worker, limits_of_delegate
from perstack.core.runs.decide import DelegateResult, has_ended, interrupt_events
from perstack.core.runs.events.lifecycle import QueueRun
from perstack.core.runs.events.tool_calls import CallDelegate
from perstack.core.runs.facts import Delegation
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.log.delegate_leases_and_stop_requests import DelegateLeases
from perstack.engine.log.event_log import LoadedState
from perstack.engine.log.run_log import run_logs
from perstack.engine.log.run_session import RunSession
from perstack.engine.runs.beginning import ResumedRun, RunStarter
from perstack.engine.runs.job_drive import Allowance, JobDrive
from perstack.errors import Conflict, DispatcherError, PerstackError, StorageError, UsageError
from perstack.ports.dispatcher import Order
from perstack.ports.storage import RunRef, Storage
from perstack.system.concurrency import shield_until_done
from perstack.system.user import this_user
from perstack.workers.budget_shares import Sharer, budget_of, find_short_account, grant_caps, recorded_cap

if TYPE_CHECKING:
    from perstack.engine.context.host_setup import HostSetup
    from perstack.engine.log.run_session import Emitter


# Remote Runs, followed as their logs grow and folded into the Job of the process that awaits them.


class RemoteRuns:
    """States of the remote Runs of one Job."""

    def __init__(
        self, storage: Storage, job: Job, known: Mapping[str, Run], on_change: Callable[[], None] = lambda: None
    ) -> None:
        """Start from the states in `known`, which have been read already. `on_change` is called for each newer one."""
        self._on_change = on_change
        self._logs = run_logs(storage)
        self._job = job
        self._runs = dict(known)
        self._children: dict[str, set[str]] = {}  # the ids of the delegates of each Run
        for run_id, counted_run in job.runs.items():
            if counted_run.start.delegated_by is not None:
                self._children.setdefault(counted_run.start.delegated_by.run_id, set()).add(run_id)
        for run in known.values():
            self._add_children(
                run.id, {call.delegation.run_id for call in run.calls.values() if call.delegation is not None}
            )

    def put(self, run: Run) -> None:
        """Store the state of a Run that this process has written to."""
        self._runs[run.id] = run

    def run(self, run_id: str) -> Run | None:
        """Return the latest known state of a Run."""
        return self._runs.get(run_id)

    def with_descendants(self, run_id: str) -> tuple[str, ...]:
        """Return the ids of a Run and its descendants, each after its parent."""
        children = sorted(self._children.get(run_id, ()))
        return (run_id, *(descendant for child in children for descendant in self.with_descendants(child)))

    async def refresh(self, run_id: str) -> Run | None:
        """Read new events of a Run and its descendants; return its state, if any. Raises Damaged, StorageError."""
        run = self._runs.get(run_id)
        if run is None or not has_ended(run):
            run = await self._read_new_events(run_id, run)
        for child_id in tuple(self._children.get(run_id, ())):
            await self.refresh(child_id)
        return run

    async def _read_new_events(self, run_id: str, run: Run | None) -> Run | None:
        since = None if run is None else LoadedState(run, run.head)
        has_changed = False
        async with aclosing(self._logs.fold(RunRef(self._job.id, run_id), since=since)) as lines:
            async for line, state in lines:
                run, has_changed = state, True
                if isinstance(line.event, CallDelegate):
                    self._add_children(run_id, {delegate.run_id for delegate in line.event.delegates})
        if run is not None and has_changed:
            self._runs[run_id] = run
            self._job.stored[run_id] = run
            self._job.update(run)
            self._on_change()
        return run

    def _add_children(self, run_id: str, children: set[str]) -> None:
        self._children.setdefault(run_id, set()).update(children)


# Stopping remote Runs of a Job: record them as interrupted as soon as their workers release them.

_RELEASE_TIMEOUT_S = 20.0  # maximum time for a worker to release a Run
_RELEASE_POLL_INTERVAL_S = 0.1


class Stopping:
    """Stops remote Runs of a Job. Its user holds the lease of the Job."""

    def __init__(self, setup: HostSetup, job: Job, emit: Emitter) -> None:
        """Stop Runs of this Job, with orders withdrawn from the dispatcher of `setup`."""
        self._setup = setup
        self._job = job
        self._emit = emit
        self._holders = DelegateLeases(setup.storage)

    async def stop(self, remote_runs: RemoteRuns, run_ids: Iterable[str]) -> None:
        """Stop these Runs and all their descendants, wherever they are driven. Raises StorageError."""
        all_ids = {descendant: None for run_id in run_ids for descendant in remote_runs.with_descendants(run_id)}
        await asyncio.gather(*(self._stop(remote_runs, run_id) for run_id in all_ids))

    async def _stop(self, remote_runs: RemoteRuns, run_id: str) -> None:
        deadline = time.monotonic() + _RELEASE_TIMEOUT_S
        while (run := await remote_runs.refresh(run_id)) is not None and has_separate_worker(run):
            with suppress(DispatcherError, UsageError):  # a worker that claims it will find nothing to do
                dispatcher = self._setup.dispatching.dispatcher
                if dispatcher is not None:
                    await dispatcher.withdraw(self._job.id, run_id)
            with suppress(Conflict, StorageError):
                await self._holders.stop(run_id)
            run = await remote_runs.refresh(run_id) or run
            if not has_separate_worker(run):
                return
            with suppress(Conflict):  # another worker has just begun to drive it
                if await self._holders.holder(run_id) is None:
                    remote_runs.put(await self._record_stop(run))
                    return
            if time.monotonic() > deadline:
                return  # its worker does not respond; the next worker that claims the Run sees that it is stopped
            await asyncio.sleep(_RELEASE_POLL_INTERVAL_S)

    async def _record_stop(self, run: Run) -> Run:
        session = RunSession.of(self._setup.storage, self._job, run, self._emit, clock=self._setup.clock)
        session.record_all(interrupt_events(run, session.stamp))
        await session.flush()
        await session.write_checkpoint()
        return session.run


async def stop_remote(
    setup: HostSetup,
    job: Job,
    runs: dict[str, Run],
    emit: Emitter,
    *,
    only: str | None = None,
    below: str | None = None,
) -> None:
    """Stop the remote Runs of a Job whose lease the caller holds, and bring the states in `runs` up to date.

    `only`: stop this Run and its descendants. `below`: stop only the descendants of this Run.
    """
    remote_runs = RemoteRuns(setup.storage, job, runs)
    candidates = [*runs] if only is None else remote_runs.with_descendants(only)
    if below is not None:
        candidates = remote_runs.with_descendants(below)[1:]
    remote_ids = [run_id for run_id in candidates if run_id in runs and has_separate_worker(runs[run_id])]
    if remote_ids:
        await Stopping(setup, job, emit).stop(remote_runs, remote_ids)
        runs.update(
            {
                descendant: run
                for run_id in remote_ids
                for descendant in remote_runs.with_descendants(run_id)
                if (run := remote_runs.run(descendant))
            }
        )


_READ_INTERVAL_S = 0.5  # maximum time between two reads of the logs, if the storage reports no new event
_MAX_CONFLICTS = 10
_ORDER_CHECK_INTERVAL_S = 10.0  # time between two checks that a delegate is driven or queued


@dataclass(slots=True)
class _RemoteDelegate:
    delegation: Delegation
    run: Run | None = None  # the latest known state; None before it has begun
    is_ours: bool = False  # True if this process began or resumed it, so that the reason of its latest stop is new
    needs: dict[Unit, int] = field(default_factory=dict[Unit, int])
    """Amounts that were missing when it stopped; cleared when it has used more."""
    used: Amounts = field(default_factory=dict[Unit, int])
    """Amounts that it and its descendants had used at its latest stop."""
    result: DelegateResult | None = None
    next_check_at: float = 0.0  # time of the next check that it is driven, by `time.monotonic`

    conflicts: int = 0  # consecutive append conflicts

    @property
    def id(self) -> str:
        return self.delegation.run_id

    @property
    def is_at_work(self) -> bool:
        """True if a worker drives it, or it is queued for one."""
        run = self.run
        return run is not None and run.queued is not None and (run.status in ACTIVE or run.status == "queued")


class QueuedDelegates:
    """Remote delegates of one Run. As a context manager it stops the running ones when the Job stops."""

    def __init__(
        self, drive: JobDrive, allowance: Allowance, parent_session: RunSession, delegations: Sequence[Delegation]
    ) -> None:
        """Prepare the delegations of `parent_session`; nothing is read or written before `results`."""
        storage = drive.setup.storage
        self._drive = drive
        self._allowance = allowance
        self._parent_session = parent_session
        self._delegations = delegations
        self._project = drive.setup.project
        self._starter = RunStarter(drive)
        self._holders = DelegateLeases(storage)
        self._remote_runs = RemoteRuns(storage, drive.job, drive.runs, drive.summary_file.mark_changed)
        self._unfinished = [_RemoteDelegate(delegation) for delegation in delegations]

    @property
    def may_be_distributed(self) -> bool:
        """True if other workers may drive these delegates: all or none, so that nothing here exceeds their shares."""
        if self._parent_session.run.id != self._allowance.root_id or not self._drive.job.may_be_distributed:
            return False
        if any(child.expert_key in self._parent_session.run.added_experts for child in self._delegations):
            return False  # no other worker's project declares it
        return all(may_be_remote(child.run_id) and self._has_one_budget(child) for child in self._delegations)

    def _has_one_budget(self, delegation: Delegation) -> bool:
        team = with_delegates(self._project, (delegation.expert_key,))
        return all(expert.budget is None for expert in team if expert.key != delegation.expert_key)

    async def __aenter__(self) -> QueuedDelegates:
        """Return the delegates."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the remote Runs if the Job stops or is out of time; leave them running if only this process leaves."""
        budget = self._allowance.budget
        is_over = budget is not None and budget.expired_time_limit(self._parent_session.run) is not None
        if isinstance(error, asyncio.CancelledError) and (is_over or self._drive.stop.requested):
            await shield_until_done(self._stop())

    # --- facts about the Job and its Experts ----------------------------------------------------------------------

    def _expert(self, delegate: _RemoteDelegate) -> Expert | None:
        """Return the delegate's Expert, as recorded if it has begun; None if it is not defined any more."""
        run = delegate.run
        return self._project.expert(delegate.delegation.expert_key) if run is None else run.start.expert

    def _account(self, delegate: _RemoteDelegate) -> str:
        """Return the account that the delegate uses: of its Expert's own budget, or of the whole Job."""
        expert, root = self._expert(delegate), self._drive.job.runs[self._allowance.root_id].start
        is_above = root.delegated_by is not None and expert is not None and expert.key == root.expert_key
        return JOB if expert is None or expert.budget is None or is_above else expert.key

    @property
    def _priority(self) -> int:
        """The Job's priority, raised by one for each level of depth, so that what has begun ends first."""
        job = self._drive.job
        queued = job.coordinator.queued
        return (0 if queued is None else queued.priority) + job.runs[self._allowance.root_id].start.depth + 1

    @property
    def has_open(self) -> bool:
        """True if some delegates have no result yet."""
        return bool(self._unfinished)

    async def results(self) -> AsyncGenerator[tuple[Delegation, DelegateResult]]:
        """Yield each delegate's result as it arrives. Stop early when this process is shutting down."""
        async with self._drive.setup.storage.watch(self._drive.job.id) as watch:
            while self._unfinished:
                for delegate in tuple(self._unfinished):
                    delegate.run = await self._remote_runs.refresh(delegate.id)
                if not self._drive.stop.after_step:
                    await self._grant()
                for delegate in tuple(self._unfinished):
                    result = delegate.result or self._result(delegate)
                    if result is not None:
                        self._unfinished.remove(delegate)
                        if delegate.run is not None and has_ended(delegate.run):
                            await self._holders.forget(delegate.id)
                        yield delegate.delegation, result
                if not self._unfinished or self._drive.stop.after_step:
                    return
                await self._requeue_undriven()
                await watch.wait(_READ_INTERVAL_S)

    # --- result of one delegate -----------------------------------------------------------------------------------

    def _result(self, delegate: _RemoteDelegate) -> DelegateResult | None:
        """Return the result of a delegate; None if it is active, or resumes as soon as there is room."""
        run = delegate.run
        if run is None or (delegate.is_at_work and run.closed is None):
            return None
        if has_ended(run) or self._waits_for_a_person(run) or run.closed is not None:
            return DelegateResult.of(run)
        if delegate.is_ours and run.status == "stoppedByInterrupt" and run.waits_for_limit:
            return DelegateResult.of(run)
        if delegate.is_ours and run.exceeded is not None and run.exceeded.budget == "maxTime":
            expert = run.start.expert_key  # only this process applies the Job's own time limit
            return DelegateResult.failed(replace(run.exceeded, expert=expert).words, run)
        return None

    def _waits_for_a_person(self, run: Run) -> bool:
        """Return whether a Run waits for a person, and must not be driven because a descendant was answered."""
        descendants = (self._remote_runs.run(run_id) for run_id in self._remote_runs.with_descendants(run.id)[1:])
        is_answered = any(state is not None and state.status in ACTIVE for state in descendants)
        return run.status == "stoppedByInteractiveTool" and not is_answered

    def _result_at_end(self, delegate: _RemoteDelegate, remaining: dict[str, Amounts]) -> DelegateResult:
        run = delegate.run
        if run is None or run.exceeded is None or self._allowance.budget is None:
            return DelegateResult(None, False, run)
        account = find_short_account(remaining, self._sharer(delegate))
        ledger, event_exceeded = self._allowance.budget.ledger, run.exceeded
        actual: BudgetRefusal = ledger.exceeded_by(event_exceeded.budget, account or None, event_exceeded.needed)
        exceeded = replace(event_exceeded, expert=actual.expert, limit=actual.limit, spent=actual.spent)
        if account == JOB:
            return DelegateResult(None, False, replace(run, exceeded=exceeded))
        return DelegateResult.failed(exceeded.words, run)

    # --- shares ---------------------------------------------------------------------------------------------------

    async def _grant(self) -> None:
        unfinished = [
            delegate for delegate in self._unfinished if delegate.result is None and self._result(delegate) is None
        ]
        waiting = [delegate for delegate in unfinished if not delegate.is_at_work]
        if not waiting:
            return
        for delegate in waiting:
            self._learn_needs(delegate)
        remaining = self._remaining_amounts(unfinished)
        caps = grant_caps(remaining, [self._sharer(delegate) for delegate in unfinished])
        for delegate in waiting:
            if delegate.id in caps:
                await self._begin(delegate, caps[delegate.id])
        if not caps and len(waiting) == len(unfinished):
            for delegate in waiting:
                delegate.result = self._result_at_end(delegate, remaining)

    def _remaining_amounts(self, delegates: Sequence[_RemoteDelegate]) -> dict[str, Amounts]:
        budget, remaining = self._allowance.budget, dict[str, Amounts]({JOB: {}})
        if budget is not None:
            for delegate in delegates:
                expert = self._expert(delegate)
                remaining |= (
                    {} if expert is None else budget.ledger.amounts_for_delegate(self._parent_session.run.id, expert)
                )
        steps = self._allowance.steps_left
        if steps is not None:
            remaining[JOB] = {**remaining[JOB], "steps": steps}
        return remaining

    def _sharer(self, delegate: _RemoteDelegate) -> Sharer:
        run, account = delegate.run, self._account(delegate)
        cap = recorded_cap(run.limits) if run is not None and delegate.is_at_work else None
        return Sharer(delegate.id, account, self._used(delegate), cap, delegate.needs)

    def _used(self, delegate: _RemoteDelegate) -> Amounts:
        run_ids, runs = self._remote_runs.with_descendants(delegate.id), self._drive.job.runs
        steps: dict[Unit, int] = {"steps": sum(runs[run_id].step for run_id in run_ids if run_id in runs)}
        budget = self._allowance.budget
        return steps if budget is None else {**budget.ledger.usage_of_runs(run_ids), **steps}

    def _learn_needs(self, delegate: _RemoteDelegate) -> None:
        """Record what a delegate lacked when it stopped at its share; earlier needs stay until it works again."""
        run, used = delegate.run, self._used(delegate)
        if used != delegate.used:
            delegate.used, delegate.needs = used, {}
        if run is None or not delegate.is_ours:
            return
        if run.status == "stoppedByMaxSteps":
            delegate.needs["steps"] = 1
        elif run.exceeded is not None:
            needed = run.exceeded.needed
            match run.exceeded.budget:
                case "maxTokens":
                    delegate.needs["tokens"] = max(int(needed), delegate.needs.get("tokens", 0))
                case "maxCost":
                    delegate.needs["nano"] = max(nano(needed) + 1, delegate.needs.get("nano", 0))
                case "maxToolCalls":
                    delegate.needs["calls"] = max(int(needed), delegate.needs.get("calls", 0))
                case "maxTime":
                    return
                case _:
                    assert_never(run.exceeded.budget)

    # --- beginning and continuing one -----------------------------------------------------------------------------

    async def _begin(self, delegate: _RemoteDelegate, cap: Amounts) -> None:
        try:
            session = self._session(delegate, cap)
        except PerstackError as error:
            delegate.result = DelegateResult.failed(str(error))
            return
        by, coordinator = this_user("worker", self._drive.worker.name), self._drive.job.coordinator
        definition = None if coordinator.queued is None else coordinator.queued_definition
        session.add(QueueRun(**session.stamp(), by=by, definition=definition, due=0, priority=self._priority))
        try:
            await session.flush()
        except Conflict:
            delegate.conflicts += 1
            if delegate.run is None or delegate.conflicts > _MAX_CONFLICTS:
                raise
            return  # another worker has just driven it: the next read sees that
        delegate.conflicts = 0
        self._remote_runs.put(session.run)
        delegate.run, delegate.is_ours = session.run, True
        await self._order(delegate)

    def _session(self, delegate: _RemoteDelegate, cap: Amounts) -> RunSession:
        parent, run, shared = self._parent_session, delegate.run, self._limits(delegate, cap)
        if run is None:
            return self._starter.begin_delegate(parent, delegate.delegation, shared)
        limits = limits_of_delegate(run, self._drive.setup.overrides) or run.limits
        limits = limits.model_copy(update={"max_steps": shared.max_steps, "budget": shared.budget})
        new_limits = None if limits == run.limits else limits
        return self._starter.resume(ResumedRun(run, "parent", new_limits, parent.run.permissions))

    def _limits(self, delegate: _RemoteDelegate, cap: Amounts) -> Limits:
        expert, budget, run = self._expert(delegate), self._allowance.budget, delegate.run
        seconds: int | None = None
        if expert is not None and expert.budget is not None and expert.budget.max_time is not None:
            time_left = None if budget is None else budget.ledger.time_left(expert.key)
            worked_ms = 0 if run is None else run.worked_ms
            seconds = (expert.budget.max_time if time_left is None else time_left) + worked_ms
        share = budget_of(cap, seconds)
        return self._allowance.limits.model_copy(update={"max_steps": cap.get("steps"), "budget": share})

    async def _order(self, delegate: _RemoteDelegate) -> None:
        """Queue a delegate. If the dispatcher fails, the order is submitted again later."""
        job = self._drive.job
        queued = job.coordinator.queued
        submitted_at = 0 if queued is None else queued.since
        order = Order(job.id, 0, self._priority, job.labels, submitted_at, run_id=delegate.id)
        delegate.next_check_at = time.monotonic() + _ORDER_CHECK_INTERVAL_S
        with suppress(DispatcherError):
            await self._drive.setup.dispatching.submit(order, self._drive.setup.storage)

    async def _requeue_undriven(self) -> None:
        """Queue again each delegate without a driver and without an order: either may have been lost."""
        for delegate in self._unfinished:
            if not delegate.is_at_work or time.monotonic() < delegate.next_check_at:
                continue
            delegate.next_check_at = time.monotonic() + _ORDER_CHECK_INTERVAL_S
            with suppress(DispatcherError, StorageError):
                if await self._holders.holder(delegate.id) is not None:
                    continue
                if await self._drive.setup.dispatching.require().order(self._drive.job.id, delegate.id) is None:
                    await self._order(delegate)

    async def _stop(self) -> None:
        stopping = Stopping(self._drive.setup, self._drive.job, self._drive.emit)
        with suppress(StorageError):  # a worker that drives it later sees that nobody awaits it
            await stopping.stop(self._remote_runs, [delegate.id for delegate in self._unfinished])


def remote_delegates(
    drive: JobDrive, allowance: Allowance, parent_session: RunSession, delegations: Sequence[Delegation]
) -> QueuedDelegates | None:
    """Return the delegates of `parent_session` for other workers; None if they must be driven here."""
    remote = QueuedDelegates(drive, allowance, parent_session, delegations)
    return remote if remote.may_be_distributed else None
