"""Operations that several doors offer, each declared once: what it takes, what it does, what it shows, and where.

A class of arguments is an operation: its fields are the arguments, its docstring describes it to people and models, and
`perform` does it for an `OperationCall`, which a door lends it. An `OfferedOperation` adds what doors need. From these
rows `mcp.tools` makes tools, and `http.routes` and `http.openapi` requests. The rows for Jobs are in `jobs` and
`driving`, what they show in `views`; those for tasks are made here from `core.tasks.operation_table`. Docstrings and
field descriptions are in the schemas that MCP clients and OpenAPI readers see: changing one changes these.

A caller is a model or a program. `perform` is the only way to an operation: it has a person decide first what the marks
of the row and of its arguments say is a person's decision (`oversight.decisions`), or refuses the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject, Record
from perstack.core.base.validation_errors import describe_errors
from perstack.dataclass import dataclass
from perstack.doors.served_project import DriveJob, ServedProject
from perstack.doors.shared.next_steps import BASE
from perstack.errors import Conflict, NotFound, UsageError
from perstack.oversight.decisions import (
    Decisions,
    Free,
    Mark,
    decisions_in,
    digest_of,
    mark_in,
    needs_person,
)
from perstack.tasks import operation_table
from perstack.tasks.decisions import TaskSubject
from perstack.tasks.memory import TaskMemory
from perstack.tasks.summaries import TaskPage

if TYPE_CHECKING:
    from perstack.tasks.execution_memory import StoredTasks

R = TypeVar("R")  # what a door replies with: a tool's result, an HTTP response


@dataclass(frozen=True)
class OperationCall(ABC, Generic[R]):
    """One call of an operation through a door: the project, the caller, and how to reply, drive and ask there."""

    served_project: ServedProject
    seal: str = field(
        default="", kw_only=True
    )  # digest of what a person agreed to, if that is more than the arguments say

    @property
    def may_decide(self) -> bool:
        """True if the caller has the right to make decisions of a person."""
        return False

    @property
    def advice(self) -> str:
        """The end of a refusal: how else a caller of this door gets a decision."""
        return ""

    @property
    def brings_answer(self) -> bool:
        """True if the call only brings the answer to a question that its Job asked: no work begins then."""
        return False

    @property
    @abstractmethod
    def by(self) -> By:
        """The author of an answer that the caller brings."""

    @abstractmethod
    def reply(self, view: Record, *texts: str, is_error: bool = False) -> R:
        """Return the result, as a structure for programs and as texts for models, by default the structure's JSON."""

    @abstractmethod
    async def drive(self, work: DriveJob, *, wait: bool) -> R:
        """Drive a Job, and reply when it has begun or, with `wait`, when it has ended or stopped."""

    async def ask_question(self, job_id: str, decisions: Decisions) -> R:
        """Show a person, never a model, the question that the Job waits with. Raises NeedsPerson if nobody can."""
        raise needs_person(decisions, self.advice)

    async def confirm(self, decisions: Decisions, agreed: Callable[[OperationCall[R], str], Awaitable[R]]) -> R:
        """Ask a person; on a yes, return what `agreed` returns for the call and the digest of what was shown.

        Raises NeedsPerson if nobody can be asked, or the answer is no.
        """
        raise needs_person(decisions, self.advice)


class Arguments(BaseModel):
    """Arguments of one operation, in camelCase or snake_case. Unknown keys are refused, so that a typo is noticed."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


_A = TypeVar("_A", bound=Arguments)


def read_arguments(model: type[_A], arguments: JsonObject, prefix: str = "") -> _A:
    """Return the validated arguments. Raises UsageError that names each wrong argument, prefixed by `prefix`."""
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        names = [field.alias or name for name, field in model.model_fields.items()]
        text = describe_errors(error.errors(include_url=False, include_input=False), arguments, names)
        raise UsageError(f"{prefix}: {text}" if prefix else text) from error


class OperationArguments(Arguments):
    """Arguments that perform their operation."""

    async def subject(self, call: OperationCall[R]) -> object:
        """Return what the decisions of the call are about, as their marks take it. Raises PerstackError."""
        return None

    @abstractmethod
    async def perform(self, call: OperationCall[R]) -> R:
        """Perform the operation, whose decisions have been made. Raises PerstackError."""


Effect = Literal["read", "stop", "write", "drive", "task_read", "task_write", "task_delete"]


@dataclass(frozen=True, slots=True)
class Route:
    """HTTP request of an operation. A part of the path in braces is an argument."""

    method: operation_table.Method
    path: str
    replies: Mapping[int, str]  # meaning by status; the first is that of an operation that drives no Job
    refusals: Mapping[int, str] = field(default_factory=dict[int, str])  # meaning of further errors by status


A = TypeVar("A", bound=OperationArguments, covariant=True)


@dataclass(frozen=True, slots=True)
class OfferedOperation(Generic[A]):
    """Operation as doors see it."""

    name: str
    arguments: type[A]
    gives: type[Record]  # model of the structured result
    effect: Effect  # what it may change; the hints of its MCP tool say so
    decides: Mark  # whether a call is a decision that a person makes, apart from its arguments
    title: str | None = None  # title of its MCP tool; None: no tool, or one of the tools for tasks
    route: Route | None = None  # None: not over HTTP

    @property
    def description(self) -> str:
        """Description of the operation in one or two sentences, for people and models."""
        return " ".join((self.arguments.__doc__ or "").split())

    @property
    def summary(self) -> str:
        """First sentence of the description."""
        return f"{self.description.partition('. ')[0].removesuffix('.')}."


def marks_of(operation: OfferedOperation[OperationArguments]) -> dict[str, Mark | None]:
    """Return the marks of an operation and of each of its arguments; None for one that has none."""
    fields = operation.arguments.model_fields
    return {operation.name: operation.decides, **{name: mark_in(one.metadata) for name, one in fields.items()}}


async def perform(
    operation: OfferedOperation[OperationArguments], arguments: OperationArguments, call: OperationCall[R]
) -> R:
    """Perform an operation once a person has made its decisions. Raises NeedsPerson and other PerstackErrors."""
    if call.may_decide or (call.brings_answer and operation.effect == "drive"):
        return await arguments.perform(call)
    decisions = await _decisions_of(operation, arguments, partial(arguments.subject, call))
    if not decisions:
        return await arguments.perform(call)
    if len(decisions) == 1 and decisions[0].answers:
        return await call.ask_question(decisions[0].answers, decisions)

    async def agreed(agreed_call: OperationCall[R], digest: str) -> R:
        now = await _decisions_of(operation, arguments, partial(arguments.subject, call))
        if digest_of(now) != digest:
            raise Conflict("what was shown has changed meanwhile, and nothing was done: call again")
        return await arguments.perform(replace(agreed_call, seal="".join(one.seal for one in now)))

    return await call.confirm(decisions, agreed)


async def _decisions_of(
    operation: OfferedOperation[OperationArguments],
    arguments: OperationArguments,
    subject: Callable[[], Awaitable[object]],
) -> Decisions:
    marks = marks_of(operation)
    is_free = all(isinstance(mark, Free) for mark in marks.values())
    return () if is_free else decisions_in(marks, await subject(), arguments)


# Operations on tasks.

Hides = Callable[[str], bool]  # predicate: True if a door hides the tasks of the agent with this id


class TaskArguments(OperationArguments):
    """Arguments of an operation on tasks that a program may pass."""

    row: ClassVar[operation_table.Operation]

    @override
    async def subject(self, call: OperationCall[R]) -> TaskSubject:
        return await self.subject_in(call.served_project.host.tasks, call.served_project.definitions.hides)

    async def subject_in(self, memory: StoredTasks, hides: Hides) -> TaskSubject:
        """Return the task that the operation is about. Raises NotFound also for one of an agent that `hides` names."""
        subject = await memory.subject_of(getattr(self, "task_id", ""))
        if hides(subject.task.agent_id):
            raise _hidden_task(subject.task.task_id)
        return subject

    @override
    async def perform(self, call: OperationCall[R]) -> R:
        served_project = call.served_project
        return call.reply(
            await self.change(served_project.host.tasks.signed(call.by), served_project.definitions.hides)
        )

    async def change(self, memory: TaskMemory, hides: Hides) -> Record:
        """Return the result. Raises PerstackError; NotFound also for a task of an agent that `hides` names."""
        command = self.row.command(**{name: getattr(self, name) for name in self.model_fields_set}).through_a_door()
        task_id, agent_id = getattr(command, "task_id", None), getattr(command, "agent_id", "")
        if self.row.makes:
            if hides(agent_id):
                raise UsageError(f"tasks of {agent_id} are not kept by this server, which leaves that Expert out")
        elif isinstance(task_id, str) and hides((await memory.get(task_id)).agent_id):
            raise _hidden_task(task_id)
        result = self.row.shown(command, await memory.do(command))
        if isinstance(result, TaskPage):
            return result.model_copy(
                update={
                    "tasks": tuple(task_summary for task_summary in result.tasks if not hides(task_summary.agent_id))
                }
            )
        return result


def _hidden_task(task_id: str) -> NotFound:
    return NotFound(f"there is no task {task_id} of an agent that this server offers")


async def change_task(
    operation: OfferedOperation[TaskArguments],
    arguments: TaskArguments,
    memory: StoredTasks,
    hides: Hides,
    *,
    may_decide: bool,
    advice: str = "",
) -> Record:
    """Return the result of an operation where nobody can be asked. Raises NeedsPerson, which ends with `advice`."""
    if not may_decide:
        decisions = await _decisions_of(operation, arguments, partial(arguments.subject_in, memory, hides))
        if decisions:
            raise needs_person(decisions, advice)
    return await arguments.change(memory, hides)


@cache
def task_operation(row: operation_table.Operation) -> OfferedOperation[TaskArguments]:
    """Return an operation on tasks as doors see it."""
    fields = {argument.name: (argument.type, argument.default) for argument in row.arguments("program")}
    name = row.command.__name__.replace("Command", "Arguments")
    model = create_model(name, __base__=TaskArguments, __doc__=row.description, **cast("dict[str, Any]", fields))
    model.row = row
    effect: Effect = "task_read" if row.reads else "task_delete" if row.method == "DELETE" else "task_write"
    replies = {201 if row.makes else 200: "done"}
    return OfferedOperation(
        row.name, model, row.gives, effect, row.decides, route=Route(row.method, f"{BASE}{row.path}", replies)
    )
