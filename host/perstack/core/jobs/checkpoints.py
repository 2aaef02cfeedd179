"""A Run's state at one place in its log, as others are shown it."""

from pydantic import Field

from perstack.core.base import Fact, falsy
from perstack.core.definitions import Expert, Limits, ReasoningBudget
from perstack.core.events import StartRun
from perstack.core.ids import event_id_of
from perstack.core.messages import AnyMessage, InstructionMessage, TextPart
from perstack.core.run_facts import ContinuedFrom, DelegatedBy, ErrorInfo
from perstack.core.runs.state import Run, RunStatus
from perstack.core.todos import Todo
from perstack.core.usage import Usage


class ExpertRef(Fact):
    """Which Expert, in which version."""

    key: str
    name: str
    version: str


class OpenCall(Fact):
    """A call that has no result yet."""

    id: str
    tool_name: str
    kind: str
    delegate_run_id: str | None = None


class MessagesRef(Fact):
    """Where the messages are: those of `base`, then those of this Run's log up to line `through`.

    `sha256` is the chain's hash of that line, which vouches for all before it.
    """

    through: int
    base: ContinuedFrom | None = None
    count: int
    sha256: str


class _Place(Fact):
    """What a checkpoint says, but for the messages."""

    id: str
    job_id: str
    run_id: str
    expert: ExpertRef
    status: str
    step_number: int
    usage: Usage
    context_tokens: int = Field(default=0, exclude_if=falsy)
    """Of the last generation, sent and generated."""
    context_window_usage: float | None = None
    """The share of the model's context that these fill, from 0 to 1, where its size is known."""
    todos: tuple[Todo, ...] = Field(default=(), exclude_if=falsy)
    open_calls: tuple[OpenCall, ...] = Field(default=(), exclude_if=falsy)
    delegated_by: DelegatedBy | None = None
    continued_from: ContinuedFrom | None = None
    error: ErrorInfo | None = None
    snapshot: str | None = None
    """The digest of the tree that the workspace's files were, where they are recorded."""


class CheckpointFile(_Place):
    """checkpoints/{id}.json: a checkpoint without its messages, which stand in the log once."""

    messages: MessagesRef


class Checkpoint(_Place):
    """A checkpoint whole, with its messages."""

    messages: tuple[AnyMessage, ...]


class RunSetting(Fact):
    """run-setting.json: what a Run was started with, for people and tools. The log's first line says the same."""

    job_id: str
    run_id: str
    expert: Expert
    query: str
    model: str
    provider: str
    reasoning_budget: ReasoningBudget | None = None
    limits: Limits
    delegated_by: DelegatedBy | None = None
    continued_from: ContinuedFrom | None = None
    started_at: int


def run_setting(start: StartRun) -> RunSetting:
    """The setting that a Run's first event tells of."""
    return RunSetting(
        job_id=start.job_id,
        run_id=start.run_id,
        expert=start.expert,
        query=start.query,
        model=start.model,
        provider=start.provider,
        reasoning_budget=start.reasoning_budget,
        limits=start.limits,
        delegated_by=start.delegated_by,
        continued_from=start.continued_from,
        started_at=start.timestamp,
    )


def checkpoint_file(run: Run) -> CheckpointFile:
    """What is written for the place that a Run is at."""
    return CheckpointFile(
        id=event_id_of(run.id, run.head.seq),
        job_id=run.start.job_id,
        run_id=run.id,
        expert=_expert_ref(run),
        status=_status_word(run.status),
        step_number=run.step,
        usage=run.usage,
        context_tokens=run.context_tokens,
        context_window_usage=round(run.context_tokens / run.context_window, 4) if run.context_window else None,
        todos=run.todos,
        open_calls=_open_calls(run),
        delegated_by=run.start.delegated_by,
        continued_from=run.start.continued_from,
        error=run.error,
        snapshot=run.snapshot,
        messages=MessagesRef(
            through=run.head.seq,
            base=run.start.continued_from,
            count=len(run.messages),
            sha256=run.head.hash,
        ),
    )


def checkpoint_of(run: Run) -> Checkpoint:
    """The checkpoint of the place that a Run is at, whole."""
    facts = checkpoint_file(run)
    instruction = InstructionMessage(contents=(TextPart(text=run.instruction),))
    fields = {name: getattr(facts, name) for name in _Place.model_fields}
    return Checkpoint(**fields, messages=(instruction, *run.messages))


def _status_word(status: RunStatus) -> str:
    """Perstack calls the checkpoint of a Run that is under way `proceeding`."""
    return "proceeding" if status == "running" else status


def _expert_ref(run: Run) -> ExpertRef:
    expert = run.start.expert
    return ExpertRef(key=expert.key, name=expert.key, version=expert.version)


def _open_calls(run: Run) -> tuple[OpenCall, ...]:
    return tuple(
        OpenCall(
            id=call.decided.id,
            tool_name=call.decided.tool_name,
            kind=call.decided.kind,
            delegate_run_id=call.delegation.run_id if call.delegation else None,
        )
        for call in run.open_calls
    )
