"""A Job: what the logs of all its Runs add up to. Totals are derived here and nowhere counted by hand."""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import reduce
from typing import Literal, assert_never

from pydantic import Field

from perstack.core.base import Fact, JsonObject, falsy
from perstack.core.chain import EMPTY_LOG, Head
from perstack.core.closing import Closed, CloseRun
from perstack.core.definitions import Budget, Limits
from perstack.core.events import StartRun, StopRunByExceededBudget
from perstack.core.ids import BLOCK, OWN, block_of, number_of_run
from perstack.core.models import full_name
from perstack.core.policy.approvals import Standing
from perstack.core.policy.widening import Widening
from perstack.core.queueing import Queued, QueueRun
from perstack.core.run_facts import BudgetName
from perstack.core.runs.asking import OpenQuestion
from perstack.core.runs.state import Run, RunStatus, promised
from perstack.core.statuses import JobStatus as JobStatus
from perstack.core.usage import NO_USAGE, Charge, ModelShare, Usage, together
from perstack.dataclass import dataclass

Lifecycle = Literal["running", "paused", "completed", "failed"]
PauseReason = Literal[
    "human_approval", "human_input", "external_dependency", "scheduled_wait", "rate_limit", "checkpoint"
]


Cost = float | Literal["unknown"]
"""US dollars, as far as prices are known."""


def cost_of(usage: Usage, unpriced_tokens: int) -> Cost | None:
    """What was spent at least; `unknown` if no price was known, None if there was nothing to spend."""
    if usage.cost_usd is not None and (usage.cost_usd or not unpriced_tokens):
        return usage.cost_usd
    return "unknown" if unpriced_tokens or usage.total_tokens else None


class RunSummary(Fact):
    """One Run of a Job, in brief."""

    id: str
    expert_key: str
    status: RunStatus
    model: str = Field(default="", exclude_if=falsy)
    """As `provider/model`; an older version did not say."""
    steps: int = 0
    usage: Usage = NO_USAGE
    unpriced_tokens: int = Field(default=0, exclude_if=falsy)
    """Of its tokens, those whose price was not known."""
    by_model: dict[str, ModelShare] = Field(default_factory=dict, exclude_if=falsy)
    """What each model has used, of a Run that another than `model` has generated for too."""
    delegated_by: str | None = None
    """The Run that started it; None for a Coordinator."""
    continued_from: str | None = None
    """The checkpoint it continues from."""
    started_at: int = 0
    updated_at: int = 0
    head_seq: int = Field(default=0, exclude_if=falsy)
    head_hash: str = Field(default="", exclude_if=falsy)
    job_id: str = Field(default="", exclude_if=falsy)
    """Only in a list of the Runs of all Jobs."""


class JobSummary(Fact):
    """job.json: what a Job is and where it stands. A cache, derivable from the logs."""

    id: str
    expert_key: str
    coordinator_expert_key: str = ""
    """The same, under another name that programs read."""
    runtime_version: str = Field(default="", exclude_if=falsy)
    """The version of perstack that started the Coordinator's Run; empty where its log does not say."""
    query: str
    labels: dict[str, str] = Field(default_factory=dict, exclude_if=falsy)
    status: JobStatus
    lifecycle: Lifecycle
    pause_reason: PauseReason | None = None
    closed: Closed | None = Field(default=None, exclude_if=lambda value: value is None)
    """Who closed it for good, if somebody did: its status is the one that it had, and nothing continues it."""
    resume_at: int | None = None
    """From when on a paused Job may be resumed, in milliseconds since 1970."""
    queued: Queued | None = Field(default=None, exclude_if=lambda value: value is None)
    """How it was given to workers last, if it was; `status` says whether it still waits for one."""
    total_steps: int = 0
    max_steps: int | None = None
    budget: Budget | None = None
    """What the Job may spend."""
    exceeded: str | None = None
    """Which budget stopped it, in words."""
    exceeded_budget: BudgetName | None = None
    usage: Usage = NO_USAGE
    cost_usd: Cost | None = None
    """What it cost, or `unknown` if no price was known. With `unpriced_tokens`, what it cost at least."""
    unpriced_tokens: int = Field(default=0, exclude_if=falsy)
    """Of its tokens, those whose price was not known."""
    assumed: Charge | None = Field(default=None, exclude_if=lambda value: value is None)
    """With a budget: what counts against it besides `usage`, because nobody said what was used."""
    usage_by_expert: dict[str, Usage] = Field(default_factory=dict, exclude_if=falsy)
    """The same by the Expert that used it, over all its Runs."""
    usage_by_model: dict[str, Usage] = Field(default_factory=dict, exclude_if=falsy)
    """The same by model, as `provider/model`, of a Job that more than one has generated for."""
    started_at: int = 0
    updated_at: int = 0
    finished_at: int | None = None
    coordinator_run_id: str
    """The Coordinator's Run that was written to last; `--continue` and `resume` mean this one."""
    question: str | None = None
    """What a person is being asked, if anything."""
    asking: OpenQuestion | None = None
    """The same, with who asks and what an answer looks like."""
    text: str | None = None
    """The result, when completed."""
    result: JsonObject | None = Field(default=None, exclude_if=lambda value: value is None)
    """The same as JSON, if its Expert's `output` or its caller asked for that."""
    without_effect: bool = Field(default=False, exclude_if=falsy)
    """It was completed, and its Expert declares that its work has an effect: there was none."""
    error: str | None = None
    damaged: bool = Field(default=False, exclude_if=falsy)
    """Whether its logs do not read, or not to their end: `error` says where. Not kept in job.json."""
    runs: tuple[RunSummary, ...] = ()

    @property
    def asks(self) -> str | None:
        """The open question as a person sees it, with the skill that asks."""
        return self.question if self.asking is None else self.asking.shown


@dataclass(frozen=True, slots=True)
class RunTally:
    """What a Job keeps of the state of one Run: all but its messages."""

    start: StartRun
    status: RunStatus
    steps: int
    usage: Usage
    unpriced_tokens: int
    by_model: dict[str, ModelShare]
    assumed: Charge | None
    budget: Budget | None
    exceeded: StopRunByExceededBudget | None
    updated_at: int
    touched: int
    """When it was last started or resumed; the latest Coordinator Run is the Job's."""
    questions: dict[str, OpenQuestion]
    """What is asked and not answered yet, by call; the latest is put to a person."""
    text: str | None
    value: JsonObject | None
    without_effect: bool
    error: str | None
    waits_for_limit: bool
    """Whether it was stopped last by a limit of its provider's rate."""
    resume_at: int | None
    signals: frozenset[str]
    """The events from outside that it has taken."""
    standing: tuple[Standing, ...]
    """The approvals for the whole Job that were given to it."""
    widenings: tuple[Widening, ...]
    """What was laid over its rules."""
    closed: CloseRun | None
    """That it was closed for good."""
    queued: QueueRun | None
    """How it was queued last."""

    @classmethod
    def of(cls, run: Run) -> "RunTally":
        """The tally of a Run as it stands."""
        return cls(
            start=run.start,
            status=run.status,
            steps=run.step,
            usage=run.usage,
            unpriced_tokens=run.unpriced_tokens,
            by_model=run.by_model,
            assumed=together(run.assumed, promised(run)),
            budget=run.limits.budget,
            exceeded=run.exceeded,
            updated_at=run.updated_at,
            touched=run.touched,
            questions=run.questions,
            text=run.result if run.status == "completed" else None,
            value=run.value,
            without_effect=run.without_effect,
            error=None if run.error is None else run.error.message,
            waits_for_limit=run.waits_for_limit,
            resume_at=run.resume_at,
            signals=run.signals,
            standing=run.standing,
            widenings=run.widenings,
            closed=run.closed,
            queued=run.queued,
        )


@dataclass(slots=True)
class Job:
    """What the states of many Runs add up to. Take each Run in as it stands, as often as it changes."""

    id: str
    heads: dict[str, Head] = field(default_factory=dict[str, Head])
    """Where the log of each Run ended, so that a cut or rewritten log is found out."""
    total_steps: int = 0
    watch: Callable[[Run], None] = lambda run: None
    """Sees each state as it is taken in."""
    root: int = 0
    """The number of the Run whose driver this is of, apart from its Job's; 0: the Job itself is driven."""
    _tallies: dict[str, RunTally] = field(default_factory=dict[str, RunTally])
    _taken: dict[str, Run] = field(default_factory=dict[str, Run])
    """The latest states that are not in the tallies yet: states are many, and tallies are seldom read."""
    _steps: dict[str, int] = field(default_factory=dict[str, int])
    _highest: dict[int, int] = field(default_factory=dict[int, int])
    """The highest number by block; those of the Job's own are under 0."""
    _is_distributed: bool = False
    """Whether a delegate was left to another worker, whose numbers are not the Job's own."""

    def take(self, run: Run) -> None:
        """Take in the state of a Run."""
        run_id = run.start.run_id
        before = self._steps.get(run_id)
        if before is None:
            self._number(number_of_run(run_id))
        if before != run.step:
            self.total_steps += run.step - (before or 0)
            self._steps[run_id] = run.step
        self._number(run.last_number)
        self._is_distributed = self._is_distributed or (run.queued is not None and not run.is_coordinator)
        self._taken[run_id] = run
        self.watch(run)

    def _number(self, number: int) -> None:
        block = 0 if number in OWN else number // BLOCK
        if number > self._highest.get(block, 0):
            self._highest[block] = number

    @property
    def next_number(self) -> int:
        """The number of the Run that would be decided on next."""
        if self.root or self._is_distributed:
            return max(self._highest.get(self.root, 0) + 1, block_of(self.root).start)
        return max(self._highest.values(), default=0) + 1

    def has_numbers(self, count: int) -> bool:
        """Whether so many Runs more may be decided on by this driver."""
        is_bounded = self.root or self._is_distributed
        return not is_bounded or self.next_number + count <= block_of(self.root).stop

    @property
    def may_be_distributed(self) -> bool:
        """Whether numbers of delegates that others drive would be apart from the Job's own."""
        return bool(self.root) or self.next_number in OWN

    @property
    def runs(self) -> Mapping[str, RunTally]:
        """What the states of its Runs come to, in the order in which they were first taken in."""
        if self._taken:
            self._tallies |= {run_id: RunTally.of(run) for run_id, run in self._taken.items()}
            self._taken.clear()
        return self._tallies

    @property
    def usage(self) -> Usage:
        """Over all Runs."""
        return sum((tally.usage for tally in self.runs.values()), NO_USAGE)

    @property
    def unpriced_tokens(self) -> int:
        """Tokens whose price was not known, over all Runs."""
        return sum(tally.unpriced_tokens for tally in self.runs.values())

    @property
    def assumed(self) -> Charge | None:
        """What counts besides, over all Runs."""
        return reduce(together, (tally.assumed for tally in self.runs.values()), None)

    @property
    def signals(self) -> frozenset[str]:
        """The events from outside that it has taken."""
        return frozenset[str]().union(*(tally.signals for tally in self.runs.values()))

    @property
    def standing(self) -> tuple[Standing, ...]:
        """The approvals that hold for the whole Job, whichever Run asked for them."""
        return tuple(one for tally in self.runs.values() for one in tally.standing)

    @property
    def widenings(self) -> tuple[Widening, ...]:
        """What was laid over the rules of the whole Job, in that order."""
        return tuple(one for tally in self.coordinators for one in tally.widenings)

    @property
    def closed(self) -> Closed | None:
        """Who closed it for good: all its Runs with it, though the log of one may not say so yet."""
        of_runs = (tally.closed for tally in self.runs.values())
        first = min((one for one in of_runs if one is not None), key=lambda one: one.timestamp, default=None)
        return None if first is None else Closed(by=first.by, reason=first.reason, at=first.timestamp)

    def steps_left(self, limits: Limits, besides: int = 0) -> int | None:
        """How many steps more the Job, over all its Runs, may have; None for no limit. `besides` are not counted."""
        return None if limits.max_steps is None else max(0, limits.max_steps + besides - self.total_steps)

    @property
    def coordinator(self) -> RunTally:
        """The Coordinator's Run that was written to last. Raises LookupError if there is none."""
        runs = [tally for tally in self.runs.values() if tally.start.delegated_by is None]
        if not runs:
            raise LookupError(self.id)
        return max(runs, key=lambda tally: (tally.touched, number_of_run(tally.start.run_id)))

    @property
    def coordinators(self) -> list[RunTally]:
        """All Runs that a person started, oldest first."""
        return [tally for tally in self.runs.values() if tally.start.delegated_by is None]

    @property
    def question(self) -> OpenQuestion | None:
        """What is asked by the Run that was written to last, or by a delegate that it waits for."""
        if self.closed is not None:
            return None
        for _, tally in sorted(self.runs.items(), key=lambda item: number_of_run(item[0])):
            is_asking = tally.status == "stoppedByInteractiveTool" and tally.questions
            if is_asking and self._root(tally) is self.coordinator:
                return next(reversed(tally.questions.values()))
        return None

    @property
    def labels(self) -> dict[str, str]:
        """Those of all Runs that a person started; of one key the latest."""
        found: dict[str, str] = {}
        for tally in sorted(self.coordinators, key=lambda tally: number_of_run(tally.start.run_id)):
            found |= tally.start.labels
        return found

    def _root(self, tally: RunTally) -> RunTally:
        while tally.start.delegated_by is not None:
            tally = self.runs[tally.start.delegated_by.run_id]
        return tally


def summarize(job: Job, *, is_driven: bool) -> JobSummary:
    """The summary of a Job. One that says it runs and that nobody drives was interrupted."""
    last = job.coordinator
    first = min(job.coordinators, key=lambda tally: tally.start.timestamp)
    status = _job_status(last.status, is_driven)
    updated = max(tally.updated_at for tally in job.runs.values())
    question = job.question if status == "stoppedByInteractiveTool" else None
    closed = job.closed
    return JobSummary(
        id=job.id,
        expert_key=last.start.expert_key,
        coordinator_expert_key=last.start.expert_key,
        runtime_version=last.start.runtime_version,
        query=first.start.query,
        labels=job.labels,
        status=status,
        lifecycle=lifecycle_of(status) if closed is None else "failed",
        pause_reason=None
        if closed is not None
        else pause_reason_of(
            status, waits_for_limit=last.waits_for_limit, is_approval=question is not None and question.approval
        ),
        closed=closed,
        resume_at=_resume_at(last, status) if closed is None else None,
        queued=None if last.queued is None else Queued.of(last.queued),
        total_steps=job.total_steps,
        max_steps=last.start.limits.max_steps,
        budget=last.budget,
        exceeded=None if status != "stoppedByBudget" or last.exceeded is None else last.exceeded.words,
        exceeded_budget=None if status != "stoppedByBudget" or last.exceeded is None else last.exceeded.budget,
        usage=job.usage,
        cost_usd=cost_of(job.usage, job.unpriced_tokens),
        unpriced_tokens=job.unpriced_tokens,
        assumed=job.assumed,
        usage_by_expert=_usage_by_expert(job),
        usage_by_model=_usage_by_model(job),
        started_at=first.start.timestamp,
        updated_at=updated,
        finished_at=updated if status == "completed" else None,
        coordinator_run_id=last.start.run_id,
        question=question.text if question else None,
        asking=question,
        text=last.text if status == "completed" else None,
        result=last.value if status == "completed" else None,
        without_effect=last.without_effect and status == "completed",
        error=last.error,
        runs=tuple(_run_summary(tally, job.heads.get(run_id, EMPTY_LOG)) for run_id, tally in job.runs.items()),
    )


def _usage_by_expert(job: Job) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    for tally in job.runs.values():
        key = tally.start.expert_key
        found[key] = found.get(key, NO_USAGE) + tally.usage
    return found


def _usage_by_model(job: Job) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    for tally in job.runs.values():
        own = full_name(tally.start.provider, tally.start.model)
        for name, share in (tally.by_model or {own: ModelShare(usage=tally.usage)}).items():
            found[name] = found.get(name, NO_USAGE) + share.usage
    return found if len(found) > 1 else {}


def lifecycle_of(status: JobStatus) -> Lifecycle:
    """The four words that all kinds of long work share."""
    match status:
        case "running":
            return "running"
        case "completed":
            return "completed"
        case "stoppedByError":
            return "failed"
        case "stoppedByInteractiveTool" | "stoppedByMaxSteps" | "stoppedByBudget" | "stoppedByInterrupt" | "queued":
            return "paused"
        case _:
            assert_never(status)


def pause_reason_of(
    status: JobStatus, *, waits_for_limit: bool = False, is_approval: bool = False
) -> PauseReason | None:
    """Why a paused Job is paused."""
    if status == "stoppedByInteractiveTool" and is_approval:
        return "human_approval"
    if status == "stoppedByInterrupt" and waits_for_limit:
        return "rate_limit"
    if status == "stoppedByInteractiveTool":
        return "human_input"
    if status == "queued":
        return "scheduled_wait"
    return "checkpoint" if lifecycle_of(status) == "paused" else None


def _resume_at(last: RunTally, status: JobStatus) -> int | None:
    if status == "queued":
        return (last.queued and last.queued.due) or None
    return last.resume_at


def _job_status(status: RunStatus, is_driven: bool) -> JobStatus:
    if status in ("running", "stoppedByDelegate"):
        return "running" if is_driven else "stoppedByInterrupt"
    return status  # type: ignore[return-value]  # the two others are handled above


def _run_summary(tally: RunTally, head: Head) -> RunSummary:
    start = tally.start
    name = full_name(start.provider, start.model)
    return RunSummary(
        id=start.run_id,
        expert_key=start.expert_key,
        status=tally.status,
        model=name,
        steps=tally.steps,
        usage=tally.usage,
        unpriced_tokens=tally.unpriced_tokens,
        by_model=tally.by_model if len(tally.by_model) > 1 or {*tally.by_model} - {name} else {},
        delegated_by=start.delegated_by.run_id if start.delegated_by else None,
        continued_from=start.continued_from.checkpoint_id if start.continued_from else None,
        started_at=start.timestamp,
        updated_at=tally.updated_at,
        head_seq=head.seq,
        head_hash=head.hash,
    )
