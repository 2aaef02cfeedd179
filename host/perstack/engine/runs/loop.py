"""Drive the Runs of one Job: ask `pending` for the next command, perform it, record what happened.

The loop decides nothing. `pending` (core/runs/pending.py) reads the next command from the Run's state alone, and
core/runs/decide.py makes the events that need no effect. Only the engine awaits effects: models, tools, files, people.

One step of a Run that calls a tool, pass by pass of `Driver.drive`:

  READY    Generate     `generate` writes `startGeneration`, calls the model, records `finishGeneration`
  REPLIED  DecideCalls  the catalogue and the permission rules decide each call; records `callTools`
  CALLING  RunTools     `run_tools` runs the calls concurrently and records a `finishToolCall` for each
  SETTLED  EndStep      records `finishStep`; the Run is READY for its next step, or for EndRun if it has a result

When `pending` returns None the Run has ended or stopped, and the loop flushes the log and writes a checkpoint.

From an event to the disk: `RunSession.record` encodes the event, links it to the hash chain, folds it into the state
with `evolve`, adds it to the Job's totals, and keeps the line. `RunSession.flush` writes all kept lines in one
`Storage.append`, all or nothing, and shows them to listeners only then. An effect that must not happen twice is flushed
before it begins (intent before effect): `startGeneration` before the model is called, `callTools` before a tool with a
side effect runs, the ids of delegates before one starts.

After a crash the log is folded, `Driver.take_up` records `resumeRun`, and `drive` continues in the phase that the state
is in. A stop changes the status of a Run and not its phase.

A new command needs its class in core/runs/commands.py, the rule in `pending` that returns it, and a case in
`Driver._perform`; `assert_never` makes the type check fail without one. A new event also needs a case in `evolve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from perstack.config.settings import chosen
from perstack.core.base.actor import By
from perstack.core.base.ids import number_of_run, run_id_of
from perstack.core.base.json_schema import QUICK
from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Exceeded
from perstack.core.definitions.experts import Expert, Limits
from perstack.core.definitions.permissions import Approval, RuleSet, begun_under
from perstack.core.definitions.project import rule_sets
from perstack.core.definitions.result_schemas import Judged, judged
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.secrets import with_secrets, without_secrets
from perstack.core.definitions.skills import COUNTED_CALLS, DecidedCall
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import JobSummary
from perstack.core.runs.commands import (
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
from perstack.core.runs.events import QueueFields, QueueRun, ResumeReason, Settlement, StartRun, WidenPermissions
from perstack.core.runs.evolve import ACTIVE
from perstack.core.runs.facts import Answer, ContinuedFrom, DelegatedBy, ErrorInfo
from perstack.core.runs.messages import ResultContent, ToolCallPart
from perstack.core.runs.pending import begins_step, pending
from perstack.core.runs.repeats import warned
from perstack.core.runs.results import decided
from perstack.core.runs.state import Phase, Run
from perstack.core.runs.step_events import CallTools
from perstack.engine.log.run_session import JobSummaryFile, RunSession
from perstack.engine.log.storage import JobBlobs
from perstack.engine.permissions.rulings import Rulings
from perstack.engine.plugins.providers import Prices
from perstack.engine.plugins.skills import RunSkills
from perstack.engine.plugins.tool_catalogue import Catalogue
from perstack.engine.runs.beginning import (
    as_started,
    masks_secrets,
    of_today,
    sandbox_of,
    settings_of,
    snapshots_of,
    strict,
    stricter_today,
    told,
)
from perstack.engine.runs.budget import Deadlines, Spending
from perstack.engine.runs.delegates import Delegates, LiveAnswers
from perstack.engine.runs.generation import fail, generate, gone_back, opened, switched
from perstack.engine.runs.job_context import Wiring
from perstack.engine.runs.tool_calls import ToolSurroundings, is_unlike_recording, run_tools
from perstack.ports.storage import RunRef
from perstack.system.concurrency import leaves, uninterrupted
from perstack.system.user import this_user
from perstack.version import VERSION

if TYPE_CHECKING:
    from perstack.engine.plugins.secret_masking import SecretVault
    from perstack.engine.runs.remote_delegates import Distribution  # most Jobs are driven in one process


class Driver:
    """Driver of all Runs of one Job, from the point that their logs have reached."""

    def __init__(self, wiring: Wiring, job: Job, *, drives_here: bool = True) -> None:
        """Create a driver of a Job, which continues from the states of its Runs.

        With `drives_here` false it only records how Runs begin: another process drives them, and has the providers.
        """
        self.wiring = wiring
        self._drives_here = drives_here
        self.job = job
        self.runs = dict(job.runs)
        """Loaded states; a delegate that is continued is taken out."""
        self._blobs = JobBlobs(wiring.storage, job.id)
        self._prices = Prices(wiring.providers.factories, wiring.project.prices)
        self.kept = JobSummaryFile(wiring.storage, job)
        self.root = ""
        """The id of the Run that was given to drive: the Coordinator, or a delegate whose Job another process
        drives."""
        self.limits = Limits()
        """The limits of that Run, which hold for all its descendants."""
        self._besides = 0
        """Steps of the Job outside that Run and its descendants."""
        self.spending: Spending | None = None
        """None without a budget."""
        self.deadlines: Deadlines | None = None
        self._delegates = Delegates(self, self._blobs)
        self.distribution: Distribution | None = None
        """Decides which delegates other workers drive; None if all are driven in this process."""
        self.on_waiting: Callable[[bool], None] = lambda waits: None
        """Called with True when this process starts waiting only for remote Runs, with False when it stops."""
        self._rulings = Rulings(wiring.directory)
        self._secrets: SecretVault | None = None
        """None before the first Run that masks secrets."""
        self._secrets_block = 0
        """The number block of their placeholders: 0 with the Coordinator, the number of a delegate that is driven
        apart."""
        self.settled: dict[str, Settlement] = {}
        """A person's decisions on calls that began and have no result, by key or call id."""
        self.answers: dict[str, str | Answer | Approval] = {}
        """A person's answers, by the Run that asks: text answers an interactive tool."""
        self.answered_by: By | None = None
        self.limited_by: By | None = None
        """Who gave new limits; None for the operating-system user."""
        self.signal: str | None = None
        """The external event that resumes the Coordinator."""
        self.is_leaving: Callable[[], bool] = bool
        """Returns True to stop each Run, as interrupted, before its next step."""
        self.is_stopped: Callable[[], bool] = bool
        """Returns True once a stop of the Job was requested."""
        self.worker = ""
        """The name of the worker that this process is; "" if it is none."""
        self.handed_on: Callable[[Run], QueueFields | None] = lambda run: None
        """Returns how the Run that was given to drive is queued for another worker when it is interrupted; None: it is
        not."""

    @property
    def live_answers(self) -> LiveAnswers:
        """The questions that delegates ask while other Runs of the Job are active."""
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
    ) -> RunSession:
        """Record the start of a new Run. Raises UsageError or ProviderError if it cannot be set up.

        `within`: sandbox policy of the parent Run; this Run's policy is narrowed to it. `above`: permission rules of
        the parent Run. `base`: the state that the Run continues from. `of_job`: limits that a delegate shares with the
        whole Job; None for those of this driver.
        """
        expert = as_started(self.wiring, expert)
        of_job = None if delegated_by is None else of_job or self.limits
        settings = settings_of(self.wiring, expert, of_job, self.job.total_steps)
        output = self.wiring.overrides.output if delegated_by is None else None
        if base is not None:  # the rules of the continued Run hold in addition to today's
            above = self.runs.get(base.id, base).permissions
        parent = None if delegated_by is None else self.job.runs.get(delegated_by.run_id)
        held = (None if parent is None else parent.start, None if base is None else base.start)
        masks = masks_secrets(self.wiring.project, expert, *held)
        if self._drives_here:
            self.wiring.providers.check(settings, self.wiring.project, expert)
        ref = RunRef(self.job.id, run_id or run_id_of(self.job.id, self.job.next_number))
        session = self._registered(
            RunSession(
                self.wiring.storage,
                self.job,
                self.wiring.emit,
                ref,
                expert.key,
                self.kept.mark_changed,
                self.wiring.clock,
            )
        )
        session.base = base
        session.record(
            StartRun(
                **session.stamp(),
                query=query,
                model=settings.model,
                provider=settings.provider.provider_name,
                fallbacks=settings.fallbacks,
                **told(self.wiring, expert, output, is_coordinator=delegated_by is None, masks_secrets=masks),
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
        if delegated_by is None:  # delegates inherit it
            self._widen(session)
        return session

    def _widen(self, session: RunSession) -> None:
        overrides = self.wiring.overrides
        if overrides.widening is not None:
            by = overrides.widened_by or this_user()
            session.record(WidenPermissions(**session.stamp(), widening=overrides.widening, by=by))

    def take_up(
        self,
        run: Run,
        reason: ResumeReason,
        *,
        limits: Limits | None = None,
        above: tuple[RuleSet, ...] = (),
    ) -> RunSession:
        """Record that a stopped Run resumes.

        Raises PerstackError before anything is recorded if its provider is unavailable. `above`: permission rules of
        the parent Run. A Run that failed before its model replied resumes under today's definition and settings.
        """
        definition = None
        if run.may_be_redefined and self._drives_here:
            definition, limits = of_today(self.wiring, self.job, run, limits)
        if definition is None and not run.stands_in and self._drives_here:
            self.wiring.providers.for_run(run, self.wiring.project, self.wiring.overrides)
        session = self._registered(
            RunSession.of(
                self.wiring.storage, self.job, run, self.wiring.emit, self.kept.mark_changed, self.wiring.clock
            )
        )
        session.record(
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

    def _record_answer(self, session: RunSession) -> None:
        answer = self.answers.pop(session.ref.run_id, None)
        if answer is not None:
            self.record_answer(session, answer)

    def record_answer(self, session: RunSession, answer: str | Answer | Approval) -> None:
        """Record a person's answer to the question that the Run asks."""
        session.record(answered(session.run, answer, session.stamp, self.answered_by))

    def _registered(self, session: RunSession) -> RunSession:
        if self.spending is not None:
            self.spending.writes(session.ref.run_id, session.flush)
        return session

    # --- driving --------------------------------------------------------------------------------------------------

    async def drive_coordinator(self, session: RunSession) -> JobSummary:
        """Drive a Coordinator's Run until it ends or stops. Returns the Job's summary, as written last.

        Before the first event is written the summary says that the Job runs, and it still does after an error. Readers
        do not believe such a summary of a Job that nobody drives: they derive it from the logs.
        """
        self._begin_with(session)
        await self._count_spending(session, self.runs.values())
        await self.kept.write(is_driven=True)
        await session.flush()
        try:
            async with self.kept.following():
                await self.drive_in_time(session, None)
        except asyncio.CancelledError:
            await uninterrupted(self.kept.write(is_driven=False))
            raise
        except BaseExceptionGroup as group:
            raise leaves(group)[0] from group  # report the first failure: a person can act on one line
        return await self.kept.write(is_driven=False)

    async def drive_apart(self, session: RunSession) -> None:
        """Drive a delegate's Run and all its descendants until it ends or stops; another process drives its Job.

        Its share of the budget is in its limits. The other process writes the Job's summary.
        """
        self._begin_with(session)
        self._secrets_block = number_of_run(session.run.id)
        below = {session.run.id}
        for run in sorted(self.runs.values(), key=lambda run: number_of_run(run.id)):
            if run.start.delegated_by is not None and run.start.delegated_by.run_id in below:
                below.add(run.id)
        self._besides = self.job.total_steps - sum(self.job.runs[run_id].step for run_id in below)
        await self._count_spending(session, [run for run in self.runs.values() if run.id in below])
        try:
            await self.drive_in_time(session, None)
        except BaseExceptionGroup as group:
            raise leaves(group)[0] from group

    def _begin_with(self, session: RunSession) -> None:
        self.root, self.limits = session.run.id, session.run.limits

    async def _count_spending(self, session: RunSession, known: Iterable[Run]) -> None:
        """Start to count what is spent, if there is a budget. Raises UnknownPrice before anything is written."""
        experts = (*self.wiring.project.experts.values(), *(run.start.expert for run in self.runs.values()))
        if self.limits.budget is None and all(expert.budget is None for expert in experts):
            return
        others = (run for run in known if run.id != session.run.id)
        apart = "" if session.run.is_coordinator else session.run.id
        self.spending = Spending(self.limits.budget, self._prices, (*others, session.run), self._blobs.get, apart)
        await self.spending.known_price(session.run)
        self.deadlines = Deadlines(self.job, self.spending)
        self.job.watch = self.spending.watch

    async def drive_in_time(self, session: RunSession, expert: str | None) -> None:
        """Drive a Run for as long as the time limit of the Job, or of an Expert, allows."""
        if self.deadlines is None:
            await self.drive(session)
        else:
            await self.deadlines.keep(session, expert, self.drive)

    async def drive(self, session: RunSession) -> None:
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

    async def _interrupt(self, session: RunSession) -> None:
        if session.state is not None:
            await self.wiring.snapshots.note_left(session, self.worker)
            over = None if self.deadlines is None else self.deadlines.over(session.run)
            if over is not None and session.run.status in ACTIVE:
                session.record(stopped_by_budget(over, session.stamp))
            self.note_interrupt(session)
            await session.flush()
            await session.write_checkpoint()

    def note_interrupt(self, session: RunSession) -> None:
        """Note that a Run is interrupted. On a worker that leaves, queue the Run that it was given again."""
        session.record_all(interrupted(session.run, session.stamp))
        if session.run.id == self.root and (how := self.handed_on(session.run)) is not None:
            session.record(QueueRun(**session.stamp(), **how))

    async def _skills(self, session: RunSession) -> RunSkills | None:
        start = session.run.start
        try:
            return await self.wiring.skills.open(
                with_secrets(strict(self.wiring, start.expert), self.wiring.project.experts.get(start.expert_key)),
                self.wiring.project,
                run_id=start.run_id,
                is_coordinator=session.run.is_coordinator,
                sandbox=start.sandbox,
                played=self.wiring.played_skills(session.run),
                vault=self._vault(session.run),
            )
        except Exception as error:  # noqa: BLE001 - whatever a skill's code raises, the Run ends with its message
            await fail(session, ErrorInfo(name=type(error).__name__, message=str(error)))
            return None

    @property
    def steps_left(self) -> int | None:
        """The number of steps that the driven Runs may still take together; None without a limit."""
        return self.job.steps_left(self.limits, self._besides)

    def _pending(self, session: RunSession) -> Command | None:
        return pending(session.run, self.limits.max_steps if self.steps_left == 0 else None)

    async def _perform(  # noqa: C901 - one case for each command
        self, session: RunSession, command: Work, skills: RunSkills, around: ToolSurroundings
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
                    session.record(warned(session.run, result_of(call, text, session.stamp, is_error=True)))
            case StartDelegates():
                session.record_all(noted(session.run, command, session.stamp, self.job.next_number))
                await session.flush()
                await session.write_checkpoint()
            case JudgeResult():
                found = await judged_result(command.text, command.schema)
                session.record(decided(session.run, command.text, found, session.stamp))
            case Shrink() | Compact():
                from perstack.engine.runs.compaction import make_room, summariser_of  # few Runs are that long

                summariser = summariser_of(session.run, around.endpoint, self.wiring.providers, self.wiring.project)
                await make_room(session, command, summariser, self._blobs, self._prices, self.spending)
            case Snapshot():
                session.record(await self.wiring.snapshots.record(session.run, session.stamp))
            case RecordResult() | Complete() | EndStep() | Fail() | EndRun() | StopAtLimit():
                session.record_all(noted(session.run, command, session.stamp, self.job.next_number))
            case _:
                assert_never(command)

    async def _around(self, session: RunSession) -> ToolSurroundings | None:
        """Open the endpoint of the model in force; return None if that failed, and so the Run has."""
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
            vault=self._vault(session.run),
        )

    async def _decide_calls(self, session: RunSession, command: DecideCalls, catalogue: Catalogue) -> None:
        decided = [await catalogue.decide(call) for call in command.calls]
        if session.run.permissions:
            decided = await self._ruled(session.run, command.calls, decided, catalogue)
        exceeded: Exceeded | None = None
        if self.spending is not None:
            made = sum(one.kind in COUNTED_CALLS for one in decided)
            exceeded = self.spending.ledger.room_for_calls(session.run.id, made)
        if exceeded is None:
            session.record(CallTools(**session.stamp(), calls=tuple(decided)))
        else:
            session.record(stopped_by_budget(exceeded, session.stamp))

    async def _ruled(
        self, run: Run, parts: Sequence[ToolCallPart], decided: Sequence[DecidedCall], catalogue: Catalogue
    ) -> list[DecidedCall]:
        """Apply the permission rules to calls, and with masked secrets also to the arguments that tools receive."""
        shown = await self._rulings.of(parts, decided, catalogue, run.permissions, self.job.standing)
        vault = self._vault(run)
        if vault is None:
            return shown
        filled = await self._rulings.of(
            vault.filled_parts(parts), decided, catalogue, run.permissions, self.job.standing
        )
        return [vault.stricter(one, other) for one, other in zip(shown, filled, strict=True)]

    def _vault(self, run: Run) -> SecretVault | None:
        """Return the secrets that tools of the Job have shown in this process; None for a Run that masks none."""
        if not run.start.mask_secrets:
            return None
        if self._secrets is None:
            self._secrets = self.wiring.vault(self._secrets_block)
            self._secrets.continue_after((one.secrets for one in self.runs.values()), self._secrets_block)
        return self._secrets

    async def _ask(self, session: RunSession, command: Ask | AskApproval, catalogue: Catalogue) -> None:
        call = command.call
        if isinstance(command, Ask):
            offered = catalogue.find(call.decided)
            approval = offered is not None and offered.spec.approval
            session.record_all(asked(session.run, call, session.stamp, approval=approval))
            await session.flush()
            return
        places = await self._rulings.leads_to(call, catalogue)
        offers = await self._rulings.offers(call, catalogue, session.run.permissions)
        unattended = self.wiring.overrides.unattended
        session.record_all(approval_asked(call, places, offers, session.stamp, is_unattended=unattended))
        await session.flush()

    async def _rule_again(self, session: RunSession, catalogue: Catalogue) -> None:
        """Refuse calls that have not begun, by rules that have become stricter since they were decided."""
        for call, text in await self._rulings.again(session.run, catalogue):
            session.record(warned(session.run, result_of(call, text, session.stamp, is_error=True)))


# Validation of results without blocking the event loop.

_SHORT = 50_000
"""Maximum characters of a result that is validated in the event loop before a thread is used."""


async def judged_result(text: str, schema: JsonObject) -> Judged:
    """Validate a result against a schema. Never raises; what takes longer than a moment is done in a thread."""
    quick = judged(text, schema, QUICK) if len(text) <= _SHORT else None
    return quick if quick is not None else await asyncio.to_thread(judged, text, schema)
