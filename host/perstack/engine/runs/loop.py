"""The driver: performs what is pending, records what happened, decides nothing. The only place that awaits effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, assert_never

from perstack.config.settings import chosen
from perstack.core.by import By
from perstack.core.commands import (
    Ask,
    AskApproval,
    AwaitDelegates,
    Command,
    Compact,
    Complete,
    DecideCalls,
    EndRun,
    EndStep,
    Fail,
    Generate,
    JudgeResult,
    RecordResult,
    RunTools,
    Shrink,
    Snapshot,
    StartDelegates,
    StopAtLimit,
    Switch,
    Work,
)
from perstack.core.definition_secrets import with_secrets, without_secrets
from perstack.core.definitions import Expert, Limits
from perstack.core.events import CallTools, ResumeReason, Settlement, StartRun, WidenPermissions
from perstack.core.ids import number_of_run, run_id_of
from perstack.core.job import Job, JobSummary
from perstack.core.messages import ResultContent
from perstack.core.policy.approvals import Approval
from perstack.core.policy.budget import Exceeded
from perstack.core.policy.chain import rule_sets
from perstack.core.policy.permissions import RuleSet
from perstack.core.policy.widening import begun_under
from perstack.core.questions import Answer
from perstack.core.queueing import QueueFields, QueueRun
from perstack.core.run_facts import ContinuedFrom, DelegatedBy, ErrorInfo
from perstack.core.runs.decide import (
    answered,
    approval_asked,
    asked,
    interrupted,
    noted,
    result_of,
    resumed,
    stopped_by_budget,
)
from perstack.core.runs.pending import begins_step, pending
from perstack.core.runs.repeats import warned
from perstack.core.runs.results import decided
from perstack.core.runs.state import Phase, Run
from perstack.core.runs.transitions import ACTIVE
from perstack.core.sandbox import SandboxPolicy
from perstack.core.tools import COUNTED_CALLS
from perstack.engine.blobs import JobBlobs
from perstack.engine.catalogue import Catalogue
from perstack.engine.deadlines import Deadlines
from perstack.engine.delegates import Delegates
from perstack.engine.generation import generate
from perstack.engine.groups import leaves
from perstack.engine.kept_summary import KeptSummary
from perstack.engine.live_answers import LiveAnswers
from perstack.engine.new_runs import (
    as_started,
    of_today,
    sandbox_of,
    settings_of,
    snapshots_of,
    strict,
    stricter_today,
    told,
)
from perstack.engine.prices import Prices
from perstack.engine.ruling import Rulings
from perstack.engine.session import Session, uninterrupted
from perstack.engine.skills import RunSkills
from perstack.engine.spending import Spending
from perstack.engine.switching import gone_back, opened, switched
from perstack.engine.toolrun import ToolSurroundings, is_unlike_recording, run_tools
from perstack.engine.tries import fail
from perstack.engine.who import this_user
from perstack.engine.wiring import Wiring
from perstack.ports.storage import RunRef
from perstack.version import VERSION

if TYPE_CHECKING:
    from perstack.engine.elsewhere.distribution import Distribution  # most Jobs are driven in one process


class Driver:
    """Drives all Runs of one Job, from wherever their logs leave off."""

    def __init__(
        self, wiring: Wiring, job: Job, runs: dict[str, Run] | None = None, *, drives_here: bool = True
    ) -> None:
        """With `drives_here` false it only records how Runs begin: what they need is another's to have."""
        self.wiring = wiring
        self._drives_here = drives_here
        self.job = job
        self.runs = runs or {}
        self._blobs = JobBlobs(wiring.storage, job.id)
        self._prices = Prices(wiring.providers.factories, wiring.project.prices)
        self.kept = KeptSummary(wiring.storage, job)
        self.root = ""
        """The Run that was given to drive: a Coordinator's, or a delegate's that is driven apart from its Job."""
        self.limits = Limits()
        """What holds for it and all below it."""
        self._besides = 0
        """Steps of the Job that are not theirs."""
        self.spending: Spending | None = None
        """None where there is no budget."""
        self.deadlines: Deadlines | None = None
        self._delegates = Delegates(self, self._blobs)
        self.distribution: Distribution | None = None
        """How others drive delegates, if they do."""
        self.on_waiting: Callable[[bool], None] = lambda waits: None
        """Told when this process begins, and ends, to do nothing but wait for what others drive."""
        self._rulings = Rulings(wiring.directory)
        self.settled: dict[str, Settlement] = {}
        """What a person decided about calls that began and have no result, by key or call id."""
        self.answers: dict[str, str | Answer | Approval] = {}
        """What a person answered, by the Run that asks: text for a tool that is there to ask."""
        self.answered_by: By | None = None
        self.limited_by: By | None = None
        """Who gave new limits."""
        self.signal: str | None = None
        """The event from outside that the Coordinator goes on by."""
        self.is_leaving: Callable[[], bool] = bool
        """Whether each Run is to stop, as interrupted, before its next step."""
        self.is_stopped: Callable[[], bool] = bool
        """Whether somebody has asked to stop it."""
        self.worker = ""
        """The name of the worker that this process is, if it is one."""
        self.handed_on: Callable[[Run], QueueFields | None] = lambda run: None
        """How the Run that was given to drive is queued for another worker when it is interrupted, if it is."""

    @property
    def live_answers(self) -> LiveAnswers:
        """What delegates ask while others of the Job are at work."""
        return self._delegates.answers

    # --- beginning ------------------------------------------------------------------------------------------------

    def begin_run(
        self,
        expert: Expert,
        query: str,
        *,
        run_id: str | None = None,
        delegated_by: DelegatedBy | None = None,
        continued_from: ContinuedFrom | None = None,
        base: Run | None = None,
        within: SandboxPolicy | None = None,
        labels: Mapping[str, str] | None = None,
        above: tuple[RuleSet, ...] = (),
        attachments: tuple[ResultContent, ...] = (),
        of_job: Limits | None = None,
    ) -> Session:
        """Record the start of a new Run. Raises UsageError or ProviderError if it cannot be set up.

        `within` is what programs of the Run are held to whose delegate it is; `of_job` what it shares with all others,
        if that is not what this driver is held to.
        """
        expert = as_started(self.wiring, expert)
        of_job = None if delegated_by is None else of_job or self.limits
        settings = settings_of(self.wiring, expert, of_job, self.job.total_steps)
        output = self.wiring.overrides.output if delegated_by is None else None
        if base is not None:  # the rules of the Run that it continues hold, and today's
            above = self.runs.get(base.id, base).permissions
        parent = None if delegated_by is None else self.job.runs.get(delegated_by.run_id)
        if self._drives_here:
            self.wiring.providers.check(settings, self.wiring.project, expert)
        ref = RunRef(self.job.id, run_id or run_id_of(self.job.id, self.job.next_number))
        session = self.session(ref, expert.key)
        session.base = base
        session.note(
            StartRun(
                **session.stamp(),
                query=query,
                model=settings.model,
                provider=settings.provider.provider_name,
                fallbacks=settings.fallbacks,
                **told(self.wiring, expert, output, is_coordinator=delegated_by is None),
                expert=without_secrets(expert),
                limits=settings.limits,
                reasoning_budget=settings.reasoning_budget,
                delegated_by=delegated_by,
                continued_from=continued_from,
                runtime_version=VERSION,
                labels=dict(labels or {}),
                overrides=chosen(self.wiring.overrides),
                permissions=begun_under(above, rule_sets(self.wiring.project, expert), self.job.widenings),
                depth=0 if parent is None else parent.start.depth + 1,
                sandbox=sandbox_of(self.wiring, expert, within, base),
                output=output,
                attachments=attachments,
                snapshots=snapshots_of(self.wiring, None if parent is None else parent.start),
            )
        )
        if delegated_by is None:  # what it starts has what it has
            self._widen(session)
        return session

    def _widen(self, session: Session) -> None:
        overrides = self.wiring.overrides
        if overrides.widening is not None:
            by = overrides.widened_by or this_user()
            session.note(WidenPermissions(**session.stamp(), widening=overrides.widening, by=by))

    def take_up(
        self,
        run: Run,
        reason: ResumeReason,
        *,
        limits: Limits | None = None,
        above: tuple[RuleSet, ...] = (),
    ) -> Session:
        """Record that a stopped Run goes on. Raises before anything is recorded if its provider cannot be had.

        `above` are the rules of the Run that waits for it. One that failed before its model replied goes on under
        today's definition and settings.
        """
        definition = None
        if run.may_be_redefined and self._drives_here:
            definition, limits = of_today(self.wiring, self.job, run, limits)
        if definition is None and not run.stands_in and self._drives_here:
            self.wiring.providers.for_run(run, self.wiring.project, self.wiring.overrides)
        session = self.session(RunRef(self.job.id, run.id), run.start.expert_key)
        session.take_up(run)
        session.note(
            resumed(
                run,
                reason,
                session.stamp,
                limits=limits,
                settled=self.settled,
                by=None if limits is None else self.limited_by or this_user(),
                signal=self.signal,
                definition=definition,
                permissions=stricter_today(self.wiring, self.job, run, above),
                worker="" if reason == "parent" else self.worker,
            )
        )
        self._widen(session)
        self._record_answer(session)
        return session

    def _record_answer(self, session: Session) -> None:
        """Record a person's answer, if there is one to the question that the Run is stopped at."""
        answer = self.answers.pop(session.ref.run_id, None)
        if answer is not None:
            self.record_answer(session, answer)

    def record_answer(self, session: Session, answer: str | Answer | Approval) -> None:
        """Record a person's answer to the question that the Run asks."""
        session.note(answered(session.run, answer, session.stamp, self.answered_by))

    def session(self, ref: RunRef, expert_key: str) -> Session:
        """A Run at work; job.json is behind whenever something of it was written."""
        wiring, changed = self.wiring, self.kept.changed
        session = Session(wiring.storage, self.job, wiring.emit, ref, expert_key, changed, wiring.clock)
        if self.spending is not None:
            self.spending.writes(ref.run_id, session.flush)
        return session

    # --- driving --------------------------------------------------------------------------------------------------

    async def drive_coordinator(self, session: Session) -> JobSummary:
        """Drive a Coordinator's Run to its end or stop, and write where the Job stands.

        Before the first event is written the summary says that the Job runs, and after an error it still does: a
        summary that says so of a Job that nobody drives is never believed, but derived from the logs.
        """
        self._begin_with(session)
        await self._count_spending(session, self.runs.values())
        await self.kept.write(is_driven=True)
        await session.flush()
        try:
            async with self.kept.followed():
                await self.drive_in_time(session, None)
        except asyncio.CancelledError:
            await uninterrupted(self.kept.write(is_driven=False))
            raise
        except BaseExceptionGroup as group:
            raise leaves(group)[0] from group  # what failed first speaks: a person can act on one line
        return await self.kept.write(is_driven=False)

    async def drive_apart(self, session: Session) -> None:
        """Drive a delegate's Run, and all below it, to its end or stop; another process drives its Job.

        What it has is in its limits. Where the Job stands is the other's to write.
        """
        self._begin_with(session)
        below = {session.run.id}
        for run in sorted(self.runs.values(), key=lambda run: number_of_run(run.id)):
            if run.start.delegated_by is not None and run.start.delegated_by.run_id in below:
                below.add(run.id)
        tallies = self.job.runs
        self._besides = self.job.total_steps - sum(tallies[run_id].steps for run_id in below)
        await self._count_spending(session, [run for run in self.runs.values() if run.id in below])
        try:
            await self.drive_in_time(session, None)
        except BaseExceptionGroup as group:
            raise leaves(group)[0] from group

    def _begin_with(self, session: Session) -> None:
        self.root, self.limits = session.run.id, session.run.limits

    async def _count_spending(self, session: Session, known: Iterable[Run]) -> None:
        """Begin to count what is spent, if there is a budget. Raises UnknownPrice before anything is written."""
        experts = (*self.wiring.project.experts.values(), *(run.start.expert for run in self.runs.values()))
        if self.limits.budget is None and all(expert.budget is None for expert in experts):
            return
        others = (run for run in known if run.id != session.run.id)
        apart = "" if session.run.is_coordinator else session.run.id
        self.spending = Spending(self.limits.budget, self._prices, (*others, session.run), apart)
        await self.spending.known_price(session.run)
        self.deadlines = Deadlines(self.job, self.spending)
        self.job.watch = self.spending.watch

    async def drive_in_time(self, session: Session, expert: str | None) -> None:
        """Drive it for as long as the Job's time, or that of an Expert, allows."""
        if self.deadlines is None:
            await self.drive(session)
        else:
            await self.deadlines.keep(session, expert, self.drive)

    async def drive(self, session: Session) -> None:
        """Perform what is pending until nothing is. A cancellation is recorded as an interrupt."""
        try:
            await session.flush()
            skills = await self._skills(session)
            if skills is not None:
                skills.fit_to(session.run, self.wiring.storage)
                await skills.refresh()
                if session.run.is_tightened and session.run.phase is Phase.CALLING:
                    await self._rule_again(session, skills.catalogue)
                around = await self._around(session)
                while around is not None and (command := self._pending(session)) is not None:
                    if self.is_leaving() and begins_step(session.run, command):
                        self.note_interrupt(session)
                    elif isinstance(command, Switch):
                        await switched(session, command.error, self._prices)
                    elif not (isinstance(command, Generate) and await gone_back(session, self._prices)):
                        await self._perform(session, command, skills, around)
                    if around.model != session.run.on:
                        around = await self._around(session)
            await session.flush()
        except asyncio.CancelledError:
            await uninterrupted(self._interrupt(session))
            raise
        await session.write_checkpoint()

    async def _interrupt(self, session: Session) -> None:
        if session.state is not None:
            await self.wiring.snapshots.note_left(session, self.worker)
            over = None if self.deadlines is None else self.deadlines.over(session.run)
            if over is not None and session.run.status in ACTIVE:
                session.note(stopped_by_budget(over, session.stamp))
            self.note_interrupt(session)
            await session.flush()
            await session.write_checkpoint()

    def note_interrupt(self, session: Session) -> None:
        """The one that was given to drive waits for another worker then, if this process is one that leaves."""
        session.note_all(interrupted(session.run, session.stamp))
        if session.run.id == self.root and (how := self.handed_on(session.run)) is not None:
            session.note(QueueRun(**session.stamp(), **how))

    async def _skills(self, session: Session) -> RunSkills | None:
        start = session.run.start
        try:
            return await self.wiring.skills.open(
                with_secrets(strict(self.wiring, start.expert), self.wiring.project.experts.get(start.expert_key)),
                self.wiring.project,
                run_id=start.run_id,
                is_coordinator=session.run.is_coordinator,
                sandbox=start.sandbox,
                played=self.wiring.played_skills(session.run),
            )
        except Exception as error:  # noqa: BLE001 - whatever a skill's code raises, the Run ends with its words
            await fail(session, ErrorInfo(name=type(error).__name__, message=str(error)))
            return None

    @property
    def steps_left(self) -> int | None:
        """How many steps more all together may have; None for no limit."""
        return self.job.steps_left(self.limits, self._besides)

    def _pending(self, session: Session) -> Command | None:
        return pending(session.run, self.limits.max_steps if self.steps_left == 0 else None)

    async def _perform(  # noqa: C901 - one case for each command
        self, session: Session, command: Work, skills: RunSkills, around: ToolSurroundings
    ) -> None:
        if await is_unlike_recording(session, command, around):
            return
        match command:
            case Generate():
                skills.fit_to(session.run, self.wiring.storage)
                catalogue = await skills.refresh()
                emit, prices, spending = self.wiring.emit, self._prices, self.spending
                await generate(session, command, around.endpoint, catalogue, self._blobs, emit, prices, spending)
            case DecideCalls():
                await self._decide_calls(session, command, skills.catalogue)
            case RunTools():
                await run_tools(session, command, skills.catalogue, around)
            case AwaitDelegates():
                await self._delegates.awaited(session, command.delegations, self.distribution)
            case Ask() | AskApproval():
                await self._ask(session, command, skills.catalogue)
            case StartDelegates() if not self.job.has_numbers(len(command.calls)):
                text = f"Delegation failed: {session.run.id} has no numbers left for more delegates."
                for call in command.calls:
                    session.note(warned(session.run, result_of(call, text, session.stamp, is_error=True)))
            case StartDelegates():
                session.note_all(noted(session.run, command, session.stamp, self.job.next_number))
                await session.flush()
                await session.write_checkpoint()
            case JudgeResult():
                from perstack.engine.results import judged_result  # few Runs promise a form

                found = await judged_result(command.text, command.schema)
                session.note(decided(session.run, command.text, found, session.stamp))
            case Shrink() | Compact():
                from perstack.engine.compaction import make_room, summariser_of  # few Runs are that long

                summariser = summariser_of(session.run, around.endpoint, self.wiring.providers, self.wiring.project)
                await make_room(session, command, summariser, self._blobs, self._prices, self.spending)
            case Snapshot():
                session.note(await self.wiring.snapshots.record(session.run, session.stamp))
            case RecordResult() | Complete() | EndStep() | Fail() | EndRun() | StopAtLimit():
                session.note_all(noted(session.run, command, session.stamp, self.job.next_number))
            case _:
                assert_never(command)

    async def _around(self, session: Session) -> ToolSurroundings | None:
        """With the endpoint of the model in force; None if there is none, and so the Run failed."""
        wiring = self.wiring
        endpoint = await opened(
            session, lambda run: wiring.providers.for_run(run, wiring.project, wiring.overrides), self._prices
        )
        if endpoint is None:
            return None
        return ToolSurroundings(
            model=session.run.on,
            blobs=self._blobs,
            emit=wiring.emit,
            clock=wiring.clock,
            prices=self._prices,
            spending=self.spending,
            endpoint=endpoint,
            may_ask=not wiring.overrides.unattended,
            leads_to=self._rulings.leads_to,
        )

    async def _decide_calls(self, session: Session, command: DecideCalls, catalogue: Catalogue) -> None:
        decided = [await catalogue.decide(call) for call in command.calls]
        if session.run.permissions:
            decided = await self._rulings.of(
                command.calls, decided, catalogue, session.run.permissions, self.job.standing
            )
        exceeded: Exceeded | None = None
        if self.spending is not None:
            made = sum(one.kind in COUNTED_CALLS for one in decided)
            exceeded = self.spending.ledger.room_for_calls(session.run.id, made)
        if exceeded is None:
            session.note(CallTools(**session.stamp(), calls=tuple(decided)))
        else:
            session.note(stopped_by_budget(exceeded, session.stamp))

    async def _ask(self, session: Session, command: Ask | AskApproval, catalogue: Catalogue) -> None:
        call = command.call
        if isinstance(command, Ask):
            offered = catalogue.find(call.decided.tool_name)
            approval = offered is not None and offered.spec.approval
            session.note_all(asked(session.run, call, session.stamp, approval=approval))
            await session.flush()
            return
        places = await self._rulings.leads_to(call, catalogue)
        offers = await self._rulings.offers(call, catalogue, session.run.permissions)
        unattended = self.wiring.overrides.unattended
        session.note_all(approval_asked(call, places, offers, session.stamp, is_unattended=unattended))
        await session.flush()

    async def _rule_again(self, session: Session, catalogue: Catalogue) -> None:
        """What has not begun is held to rules that have become stricter since it was decided."""
        for call, text in await self._rulings.again(session.run, catalogue):
            session.note(warned(session.run, result_of(call, text, session.stamp, is_error=True)))
