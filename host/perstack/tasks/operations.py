"""Operations on tasks: the arguments of each, and the events that it appends.

An operation is a class: its fields are the arguments, its docstring describes it to people and models, and `decide`
returns the events to append. Decisions are pure; the clock, the caller and other tasks' state come in `DecisionInput`.
The engine loads the task, calls `check` and `decide`, and appends the events at the version that it loaded.

Doors (HTTP, MCP, the command line, tools of Experts) are derived from the table in operation_table.py. A new operation
needs a class here and an entry there; a new event also a model in events.py, a transition in state.py and a case in
evolve.py. The docstrings of operations and the descriptions of fields are shown at run time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, field, replace
from typing import Annotated, Generic, Literal, TypedDict, TypeVar

from pydantic import Field, JsonValue
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject
from perstack.core.definitions.job_status import PauseReason
from perstack.core.jobs.answer_reading import read_answer
from perstack.dataclass import dataclass
from perstack.errors import Conflict, NotAllowed, UsageError
from perstack.oversight.needed_decisions import FREE, Decides
from perstack.tasks import events as task_events
from perstack.tasks.arguments import (
    Config,
    Count,
    FirstStatus,
    Json,
    Moment,
    PageSize,
    State,
    TaskIds,
    Text,
    check_pause,
    join_message,
    parse_reason,
    read_start,
    split_error,
)
from perstack.tasks.state import (
    ALLOWED,
    TaskCheckpoint,
    TaskState,
    TaskStatus,
    accepted_answers,
    check_allowed,
    outcome_of_failure,
    waits_only_for_tasks,
)
from perstack.tasks.summaries import TaskPage
from perstack.tasks.task_decisions import answer_decision, resume_value_decision

R = TypeVar("R", covariant=True)

Caller = Literal["program", "expert"]  # `program`: also a person who uses one

EVERYONE: frozenset[Caller] = frozenset(("program", "expert"))
PROGRAMS: frozenset[Caller] = frozenset(("program",))


@dataclass(frozen=True, slots=True)
class OnlyFor:
    """Annotation of an argument that only some callers may give."""

    callers: frozenset[Caller]


@dataclass(frozen=True, slots=True)
class DoorType:
    """Annotation of an argument whose type for callers through a door differs from the one for Python."""

    type: object


NOT_FOR_EXPERTS = OnlyFor(PROGRAMS)
_REASON_FOR_TASKS: PauseReason = "external_dependency"  # default reason of a pause that waits for other tasks
_ANSWERABLE_REASONS = ("human_approval", "human_input", "external_dependency")

TaskId = Annotated[
    str,
    FREE,
    Field(description="The task's id: up to 128 of A-Z a-z 0-9 _ -, descriptive, such as refactor-auth-2026."),
]
Version = Annotated[
    int | None, FREE, Field(description="The version that you know: if another has written since, nothing is done.")
]
WholeState = Annotated[
    State | None, FREE, Field(description="The whole state, as a JSON object; the one before holds if not given.")
]


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """Input of a decision in addition to the arguments and the task."""

    now: int
    by: By
    depends_on: tuple[str, ...] = ()  # ids of tasks to wait for, checked
    token_hash: str | None = None  # hash of a new token, for an operation that needs one
    back_to: TaskCheckpoint | None = None


@dataclass(frozen=True)
class TaskCommand(Generic[R]):
    """Operation with its arguments; its result is an R."""

    def through_a_door(self) -> TaskCommand[R]:
        """Return the operation with the defaults of doors, which may differ from Python's."""
        return self


@dataclass(frozen=True)
class OnTask(TaskCommand[R]):
    """Operation on one task."""

    task_id: TaskId


@dataclass(frozen=True)
class ChangeCommand(OnTask[TaskState]):
    """Operation that changes a task."""

    expected_version: Version = field(default=None, kw_only=True)

    def check(self, context: DecisionInput) -> None:
        """Raise UsageError for contradictory arguments, before the task is loaded."""

    @abstractmethod
    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        """Return the events to append. Raises NotAllowed, Conflict or UsageError."""


@dataclass(frozen=True)
class CreateCommand(OnTask[TaskState]):
    """Create a task and start it. An id that exists is refused: continue that task.

    With `checkpoint_data` it has a first checkpoint. One that depends on others is paused until all of them are
    completed, whatever else is said. Raises NotAllowed if the id exists, and UsageError if one that it depends on does
    not, or depends on it.
    """

    _: KW_ONLY
    name: Annotated[Text | None, FREE, Field(description="A short name; the id, if not given.")] = None
    description: Annotated[Text, FREE, Field(description="What is to be done, for whoever continues it.")] = ""
    agent_id: Annotated[
        Text, NOT_FOR_EXPERTS, FREE, Field(description="Who works on it: an Expert's key, or any name.")
    ] = ""
    state: Annotated[State | None, FREE, Field(description="Where the work begins, as a JSON object.")] = None
    checkpoint_data: Annotated[State | None, FREE, Field(description="Kept as a first checkpoint.")] = None
    config: Annotated[Config | None, FREE, Field(description="How failures are treated.")] = None
    depends_on: Annotated[
        TaskIds, FREE, Field(description="The ids of other tasks: it waits until all of them are completed.")
    ] = ()
    status: Annotated[FirstStatus | None, FREE, Field(description="`created`, if somebody else is to start it.")] = None
    start: Annotated[
        bool | None, NOT_FOR_EXPERTS, FREE, Field(description="Whether it runs from now on; true if nothing is said.")
    ] = None

    def through_a_door(self) -> CreateCommand:
        """Start the task if neither `start` nor `status` says."""
        return replace(self, start=True) if self.start is None and self.status is None else self

    def check(self) -> None:
        """Raise UsageError if `start` and `status` contradict."""
        read_start(start=self.start, status=self.status)

    def decide(self, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        """Return the first events of the task. Raises UsageError."""
        task_id, is_started = self.task_id, read_start(start=self.start, status=self.status)
        created = task_events.CreateTask(
            task_id=task_id,
            timestamp=context.now,
            name=self.name or task_id,
            description=self.description,
            agent_id=self.agent_id,
            state=self.state or {},
            config=self.config or task_events.TaskConfig(),
        )
        events: list[task_events.StoredTaskEvent] = [created]
        if self.checkpoint_data is not None:
            events.append(task_events.CheckpointTask(task_id=task_id, timestamp=context.now, data=self.checkpoint_data))
        if context.depends_on:
            waits_for = context.depends_on
            events.append(
                task_events.PauseTask(
                    task_id=task_id, timestamp=context.now, reason=_REASON_FOR_TASKS, depends_on=waits_for
                )
            )
        elif is_started:
            events.append(task_events.StartTask(task_id=task_id, timestamp=context.now))
        return events


@dataclass(frozen=True)
class ListCommand(TaskCommand[TaskPage]):
    """List tasks, the one written to last first."""

    _: KW_ONLY
    status: Annotated[TaskStatus | None, FREE, Field(description="Only those of this status.")] = None
    reason: Annotated[PauseReason | None, FREE, Field(description="Only those that are paused for this reason.")] = None
    agent_id: Annotated[Text | None, FREE, Field(description="Only those of this agent.")] = None
    older_than: Annotated[
        Count | None, FREE, Field(description="Only those not written to for so many milliseconds, or longer.")
    ] = None
    newer_than: Annotated[
        Count | None,
        NOT_FOR_EXPERTS,
        FREE,
        Field(description="Only those written to less than so many milliseconds ago."),
    ] = None
    archived: Annotated[bool, NOT_FOR_EXPERTS, FREE, Field(description="Archived ones, in place of the others.")] = (
        False
    )
    limit: Annotated[
        PageSize,
        NOT_FOR_EXPERTS,
        DoorType(Annotated[int, Field(ge=1, le=1000)]),
        FREE,
        Field(description="How many at most."),
    ] = 100
    after: Annotated[Text | None, FREE, Field(description="`next` of the previous page.")] = None


@dataclass(frozen=True)
class GetCommand(OnTask[TaskState]):
    """Get a task with its state: where it stands."""


@dataclass(frozen=True)
class StartCommand(ChangeCommand):
    """Start a task that was only created."""

    @override
    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        check_allowed(task, "start")
        return [task_events.StartTask(task_id=task.task_id, timestamp=context.now)]


@dataclass(frozen=True)
class CheckpointCommand(ChangeCommand):
    """Keep how far a task is. Whoever resumes it begins there."""

    state: WholeState = None
    _: KW_ONLY
    name: Annotated[Text | None, FREE, Field(description="A name to come back to.")] = None
    checkpoint_data: Annotated[State | None, FREE, Field(description="Notes on this checkpoint.")] = None
    data: Annotated[State | None, FREE, Field(description="An old name of `checkpointData`.")] = None

    def check(self, context: DecisionInput) -> None:
        """Raise UsageError if both names of the data are given."""
        if self.checkpoint_data is not None and self.data is not None:
            raise UsageError("checkpoint: `data` is an old name of `checkpoint_data`: give one of them")

    @override
    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        check_allowed(task, "checkpoint")
        data = self.data if self.checkpoint_data is None else self.checkpoint_data
        checkpoint_task = task_events.CheckpointTask(
            task_id=task.task_id, timestamp=context.now, name=self.name, state=self.state, data=data
        )
        return [checkpoint_task]


@dataclass(frozen=True)
class ListCheckpointsCommand(OnTask[tuple[TaskCheckpoint, ...]]):
    """List the checkpoints of a task, the oldest first, with their states."""


@dataclass(frozen=True)
class PauseCommand(ChangeCommand):
    """Let a task wait, for a reason. End your work on it after that: it is resumed when what it waits for has come.

    With `state` or `checkpoint_data`, a checkpoint is made first. A `reason` that is not a PauseReason is a question
    for a person: the message of `human_input`. With `depends_on` it waits for other tasks as well: without a reason,
    for them alone. `scheduled_wait` needs `resume_at`, and `rate_limit` may have it. For `external_dependency` what is
    returned has the `token` that `signal` takes; it is not kept anywhere, and shown this once.
    """

    reason: Annotated[
        Text | None,
        DoorType(PauseReason | Text | None),
        FREE,
        Field(description="What it waits for; any other text is a question for a person: `human_input`."),
    ] = None
    message: Annotated[
        Text | None, FREE, Field(description="What is asked, or waited for, as a text for a person.")
    ] = None
    _: KW_ONLY
    state: Annotated[State | None, FREE, Field(description="The whole state, kept as a checkpoint first.")] = None
    checkpoint_data: Annotated[State | None, FREE, Field(description="Notes on that checkpoint.")] = None
    resume_at: Annotated[
        Moment | None,
        FREE,
        Field(description="For scheduled_wait and rate_limit: when to continue, in milliseconds since 1970."),
    ] = None
    waiting_for: Annotated[
        task_events.WaitingFor | Text | None,
        DoorType(Text | None),  # text only: a command would run on this machine for any remote caller
        FREE,
        Field(description="For external_dependency: what has to come."),
    ] = None
    depends_on: Annotated[
        TaskIds, FREE, Field(description="The ids of other tasks: it waits until all of them are completed as well.")
    ] = ()

    @property
    def outside(self) -> task_events.WaitingFor | None:
        """The external event that the task waits for; None without one."""
        return task_events.WaitingFor(what=self.waiting_for) if isinstance(self.waiting_for, str) else self.waiting_for

    def check(self, context: DecisionInput) -> None:
        """Raise UsageError if the reason is invalid or does not fit the other arguments."""
        reason, _ = self._reason(context)
        check_pause(reason, self.resume_at, self.outside)

    def needs_token(self, context: DecisionInput) -> bool:
        """Return whether an external event must signal that the wait is over."""
        reason, _ = self._reason(context)
        return reason == "external_dependency" and (self.outside is not None or not context.depends_on)

    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        """Return the pause, after a checkpoint if one is given. Raises NotAllowed."""
        reason, text = self._reason(context)
        check_allowed(task, "pause")
        paused = task_events.PauseTask(
            task_id=task.task_id,
            timestamp=context.now,
            reason=reason,
            message=join_message(text, self.message),
            resume_at=self.resume_at,
            waiting_for=(self.outside or task_events.WaitingFor()) if self.needs_token(context) else None,
            depends_on=context.depends_on,
            token_hash=context.token_hash,
        )
        if self.state is None and self.checkpoint_data is None:
            return [paused]
        checkpoint_task = task_events.CheckpointTask(
            task_id=task.task_id, timestamp=context.now, state=self.state, data=self.checkpoint_data
        )
        return [checkpoint_task, paused]

    def _reason(self, context: DecisionInput) -> tuple[PauseReason, str | None]:
        return parse_reason(self.reason if self.reason is not None or not context.depends_on else _REASON_FOR_TASKS)


@dataclass(frozen=True)
class AnswerCommand(ChangeCommand):
    """Say that what a task waits for has come. It is due then, and goes on when it is resumed.

    An approval takes only a yes or a no, in words (with more beside them: `no: because …`), as true or false, or as an
    object whose `approved` is one. An event whose `event_id` it had already changes nothing. Raises Conflict if it has
    another answer.
    """

    value: Annotated[
        Json, Decides(answer_decision), Field(description="What has come: an approval, an input, an event's data.")
    ] = None
    _: KW_ONLY
    event_id: Annotated[Text | None, OnlyFor(frozenset())] = None

    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        """Return the answer; nothing for an external event that the task already has."""
        if self.event_id is not None and self.event_id in task.signals:
            return []
        if task.status == "paused" and task.answered:
            raise Conflict(f"task {task.task_id} has been answered already")
        check_allowed(task, "answer")
        if waits_only_for_tasks(task):
            raise UsageError(
                f"task {task.task_id} needs no answer, but waits for {', '.join(task.depends_on)}: resume it to"
                " continue without that"
            )
        if task.pause_reason not in _ANSWERABLE_REASONS:
            raise UsageError(f"task {task.task_id} needs no answer ({task.pause_reason}): resume it")
        answer = _read_input(task, self.value, context)
        return [task_events.AnswerTask(task_id=task.task_id, timestamp=context.now, signal=self.event_id, **answer)]


@dataclass(frozen=True)
class ResumeCommand(ChangeCommand):
    """Go on with a paused or failed task, from where it stands or from a checkpoint; none is lost by that."""

    _: KW_ONLY
    checkpoint: Annotated[
        Text | None,
        FREE,
        Field(description="The id or name of an earlier checkpoint to go back to; later ones are kept."),
    ] = None
    state: Annotated[State | None, FREE, Field(description="Takes the place of the state.")] = None
    value: Annotated[
        Json,
        NOT_FOR_EXPERTS,
        Decides(resume_value_decision),
        Field(description="What it waited for, in place of an answer."),
    ] = None

    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        """Return the resumption. Raises NotAllowed, and UsageError for an unacceptable value."""
        check_allowed(task, "resume")
        back_to = context.back_to
        state = back_to.state if back_to is not None else None
        resume = task_events.ResumeTask(
            task_id=task.task_id,
            timestamp=context.now,
            checkpoint_id=back_to.id if back_to is not None else None,
            state=state if self.state is None else self.state,
            data=back_to.data if back_to is not None else None,
            **(_NO_ANSWER if self.value is None else _read_input(task, self.value, context)),
        )
        return [resume]


@dataclass(frozen=True)
class CompleteCommand(ChangeCommand):
    """Say that a task is done, for good."""

    result: Annotated[Json, FREE, Field(description="What came of it.")] = None
    _: KW_ONLY
    state: Annotated[State | None, NOT_FOR_EXPERTS, FREE, Field(description="The last state.")] = None

    @override
    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        check_allowed(task, "complete")
        return [
            task_events.CompleteTask(task_id=task.task_id, timestamp=context.now, result=self.result, state=self.state)
        ]


@dataclass(frozen=True)
class FailCommand(ChangeCommand):
    """Say that something went wrong: the task is failed, paused or tried again, as its config says.

    Of an error that is an object, `message` is the task's error, and the whole its `error_details`.
    """

    error: Annotated[
        Text | State, FREE, Field(description="What went wrong, as text, or as an object with a `message`.")
    ]

    @override
    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        message, details = split_error(self.error)
        return [failure(task, message, context.now, details)]


@dataclass(frozen=True)
class RetryCommand(ChangeCommand):
    """Try a failed task again from where it stood, as often as its config allows."""

    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        """Return the retry. Raises NotAllowed, also if no retries are left."""
        check_allowed(task, "retry")
        if task.retry_count >= task.config.max_retries:
            raise NotAllowed(
                f"task {task.task_id} was retried as often as it may be ({task.retry_count} times);"
                " resume it to continue all the same",
                tuple(name for name in ALLOWED[task.status] if name != "retry"),
            )
        return [task_events.RetryTask(task_id=task.task_id, timestamp=context.now)]


@dataclass(frozen=True)
class CancelCommand(ChangeCommand):
    """Give a task up: it is failed, with the error `cancelled`, and may be resumed."""

    message: Annotated[Text | None, FREE, Field(description="Why.")] = None

    @override
    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        check_allowed(task, "cancel")
        return [task_events.CancelTask(task_id=task.task_id, timestamp=context.now, message=self.message)]


@dataclass(frozen=True)
class ArchiveCommand(ChangeCommand):
    """Leave a completed or failed task out of lists from now on."""

    @override
    def decide(self, task: TaskState, context: DecisionInput) -> Sequence[task_events.StoredTaskEvent]:
        check_allowed(task, "archive")
        return [task_events.ArchiveTask(task_id=task.task_id, timestamp=context.now)]


@dataclass(frozen=True)
class DeleteCommand(OnTask[None]):
    """Remove a task for good, with its checkpoints. Raises NotAllowed if another task waits for it."""

    expected_version: Version = field(default=None, kw_only=True)


def failure(task: TaskState, error: str, now: int, details: JsonObject | None = None) -> task_events.FailTask:
    """Return the failure of a task. A task that was not running is not retried."""
    check_allowed(task, "fail")
    outcome = outcome_of_failure(task) if task.status == "running" else "fail"
    return task_events.FailTask(task_id=task.task_id, timestamp=now, error=error, details=details, outcome=outcome)


class _AnswerFields(TypedDict):
    input: JsonValue
    input_text: str
    by: By | None


_NO_ANSWER = _AnswerFields(input=None, input_text="", by=None)


def _read_input(task: TaskState, value: JsonValue, context: DecisionInput) -> _AnswerFields:
    reading = read_answer(accepted_answers(task), value)
    return _AnswerFields(input=reading.value, input_text=reading.words, by=context.by)
