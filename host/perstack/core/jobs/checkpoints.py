"""Checkpoints: a Run's state at one position of its log, as shown to others. The files are caches of the log."""

from pydantic import Field

from perstack.core.base.ids import event_id_of
from perstack.core.base.records import Record, falsy, fields_of
from perstack.core.base.usage import Usage
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.job_status import RunStatus
from perstack.core.definitions.settings import Limits, ReasoningBudget
from perstack.core.messages.messages import AnyMessage, InstructionMessage, TextPart
from perstack.core.runs.facts import ContinuedFrom, DelegatedBy, ErrorInfo, Todo
from perstack.core.runs.start import StartRun
from perstack.core.runs.state import Run


class ExpertRef(Record):
    """A version of an Expert, as a checkpoint names it."""

    key: str
    name: str
    version: str


class CheckpointCall(Record):
    """A call without a result."""

    id: str
    tool_name: str
    kind: str
    delegate_run_id: str | None = None


class MessagesRef(Record):
    """Reference to messages: those of `base`, then the Run's own up to line `through`, whose hash is `sha256`."""

    through: int
    base: ContinuedFrom | None = None
    count: int
    sha256: str


class _CheckpointFields(Record):
    """The fields of a checkpoint without the messages."""

    id: str
    job_id: str
    run_id: str
    expert: ExpertRef
    status: str
    step_number: int
    usage: Usage
    context_tokens: int = Field(default=0, exclude_if=falsy)  # tokens of the last generation, sent and generated
    context_window_usage: float | None = None  # share of the model's context, from 0 to 1; None if its size is unknown
    todos: tuple[Todo, ...] = Field(default=(), exclude_if=falsy)
    open_calls: tuple[CheckpointCall, ...] = Field(default=(), exclude_if=falsy)
    delegated_by: DelegatedBy | None = None
    continued_from: ContinuedFrom | None = None
    error: ErrorInfo | None = None
    snapshot: str | None = None  # digest of the tree of the workspace's files, if they are recorded


class CheckpointFile(_CheckpointFields):
    """A checkpoint without its messages, which only the log contains: checkpoints/{id}.json."""

    messages: MessagesRef


class Checkpoint(_CheckpointFields):
    """A complete checkpoint, with its messages."""

    messages: tuple[AnyMessage, ...]


class RunSetting(Record):
    """Settings that a Run was started with, copied from the log's first line for people and tools: run-setting.json."""

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
    """Return the setting in a Run's first event."""
    return RunSetting(**fields_of(start, RunSetting), started_at=start.timestamp)


def checkpoint_file(run: Run) -> CheckpointFile:
    """Return the file for the Run's current position."""
    return CheckpointFile(
        id=event_id_of(run.id, run.head.seq),
        job_id=run.start.job_id,
        run_id=run.id,
        expert=_expert_ref(run),
        status=_status_word(run.status),
        step_number=run.step,
        usage=run.spending.usage,
        context_tokens=run.context.tokens,
        context_window_usage=round(run.context.tokens / run.context.window, 4) if run.context.window else None,
        todos=run.todos,
        open_calls=_open_calls(run),
        delegated_by=run.start.delegated_by,
        continued_from=run.start.continued_from,
        error=run.error,
        snapshot=run.snapshot,
        messages=MessagesRef(
            through=run.head.seq, base=run.start.continued_from, count=len(run.messages), sha256=run.head.hash
        ),
    )


def checkpoint_of(run: Run) -> Checkpoint:
    """Return the complete checkpoint for the Run's current position."""
    fields = checkpoint_file(run)
    instruction = InstructionMessage(contents=(TextPart(text=run.instruction),))
    return Checkpoint(**fields_of(fields, _CheckpointFields), messages=(instruction, *run.messages))


def _status_word(status: RunStatus) -> str:
    """Return the status; a running Run's is `proceeding`, as in Perstack."""
    return "proceeding" if status == "running" else status


def _expert_ref(run: Run) -> ExpertRef:
    expert = run.start.expert
    return ExpertRef(key=expert.key, name=expert.key, version=expert.version)


def _open_calls(run: Run) -> tuple[CheckpointCall, ...]:
    return tuple(
        CheckpointCall(
            id=call.decided.id,
            tool_name=call.decided.tool_name,
            kind=call.decided.kind,
            delegate_run_id=call.delegation.run_id if call.delegation else None,
        )
        for call in run.open_calls
    )
