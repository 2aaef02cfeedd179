"""Operations that several doors offer, each declared once: its arguments, its work, its result, and its doors.

A class of arguments is an operation: its fields are the arguments, its docstring describes it to people and models, and
`perform` carries it out with an `OperationCall`, which the door provides. An `OfferedOperation` adds what doors need.
From these rows `mcp.tools` makes tools, and `http.routes` and `http.openapi` requests. The rows for Jobs are in `jobs`
and `driving`, what they show in `views`; those for tasks are made here from `tasks.operation_table`. Docstrings
and field descriptions are in the schemas that MCP clients and OpenAPI readers see: changing one changes these.

A caller is a model or a program. `perform` is the only way to an operation: marks of the row and of its arguments say
which decisions a person makes (`oversight.needed_decisions`), and `perform` asks for these first, or refuses the call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject, Record
from perstack.core.base.validation_errors import describe_errors
from perstack.dataclass import dataclass
from perstack.doors.served_project import ServedProject
from perstack.doors.shared.job_tasks import DriveJob
from perstack.doors.shared.next_step_phrases import BASE
from perstack.errors import Conflict, NotFound, UsageError
from perstack.oversight.needed_decisions import Decisions, Free, Mark, decisions_in, digest_of, mark_in, person_refusal
from perstack.tasks import operation_table
from perstack.tasks.memory import TaskMemory
from perstack.tasks.summaries import TaskPage
from perstack.tasks.task_decisions import TaskSubject

if TYPE_CHECKING:
    from perstack.tasks.execution_memory import StoredTasks

R = TypeVar("R")  # reply of a door: a tool's result, an HTTP response
_Shown = TypeVar("_Shown", bound=Record, contravariant=True)  # record that the operation shows


@dataclass(frozen=True)
class OperationCall(ABC, Generic[_Shown, R]):
    """One call of an operation through a door: the project, the caller, and how to reply, drive and ask there."""

    served_project: ServedProject
    seal: str = field(
        default="", kw_only=True
    )  # digest of what the person was shown, if it was more than the arguments

    @property
    def may_decide(self) -> bool:
        """True if the caller has the right to make decisions of a person."""
        return False

    @property
    def advice(self) -> str:
        """The end of a refusal: how a caller of this door can get the decision in another way."""
        return ""

    @property
    def brings_answer(self) -> bool:
        """True if the call only carries the answer to a question that its Job asked, and starts no work."""
        return False

    @property
    @abstractmethod
    def by(self) -> By:
        """The author of an answer that the caller brings."""

    @abstractmethod
    def reply(self, view: _Shown, *texts: str, is_error: bool = False) -> R:
        """Return the result, as a structure for programs and as texts for models, by default the structure's JSON."""

    @abstractmethod
    async def drive(self, work: DriveJob, *, wait: bool) -> R:
        """Drive a Job, and reply when it has begun or, with `wait`, when it has ended or stopped."""

    async def ask_question(self, job_id: str, decisions: Decisions) -> R:
        """Show a person, never a model, the open question of the Job. Raises NeedsPerson if nobody can be asked."""
        raise person_refusal(decisions, self.advice)

    async def confirm(self, decisions: Decisions, agreed: Callable[[OperationCall[_Shown, R], str], Awaitable[R]]) -> R:
        """Ask a person; after a yes, return the result of `agreed` for the call and the digest of what was shown.

        Raises NeedsPerson if nobody can be asked, or the answer is no.
        """
        raise person_refusal(decisions, self.advice)


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


_Gives = TypeVar("_Gives", bound=Record, covariant=True)


class OperationArguments(Arguments, Generic[_Gives]):
    """Arguments that perform their operation; the parameter is the model of its reply, which doors describe."""

    @classmethod
    def reply_model(cls) -> type[Record]:
        """Return the parameter that the class of the operation was derived with."""
        models = (base.__pydantic_generic_metadata__["args"] for base in cls.__mro__ if issubclass(base, BaseModel))
        model: type[Record] = next(args[0] for args in models if args)
        return model

    async def subject(self, served_project: ServedProject) -> object:
        """Return the subject of the call's decisions, in the form that their marks take. Raises PerstackError."""
        return None

    @abstractmethod
    async def perform(self, call: OperationCall[_Gives, R]) -> R:
        """Perform the operation, whose decisions have been made. Raises PerstackError."""


AnyArguments: TypeAlias = OperationArguments[Record]


Effect = Literal["read", "stop", "write", "drive", "task_read", "task_write", "task_delete"]


@dataclass(frozen=True, slots=True)
class Route:
    """The HTTP request of an operation. A part of the path in braces is an argument."""

    method: operation_table.Method
    path: str
    replies: Mapping[int, str]  # meaning by status; an operation that drives no Job replies with the first
    refusals: Mapping[int, str] = field(default_factory=dict[int, str])  # meaning of further errors by status


A = TypeVar("A", bound=AnyArguments, covariant=True)


@dataclass(frozen=True, slots=True)
class OfferedOperation(Generic[A]):
    """An operation with what doors need to offer it."""

    name: str
    arguments: type[A]
    effect: Effect  # what the operation may change, for the hints of its MCP tool
    decides: Mark  # mark if every call is a person's decision, whatever its arguments
    title: str | None = None  # title of its MCP tool; None: no tool, or one of the tools for tasks
    route: Route | None = None  # None if it is not offered over HTTP

    @property
    def gives(self) -> type[Record]:
        """Model of the structured result."""
        return self.arguments.reply_model()

    @property
    def description(self) -> str:
        """Description of the operation in one or two sentences, for people and models."""
        return " ".join((self.arguments.__doc__ or "").split())

    @property
    def summary(self) -> str:
        """First sentence of the description."""
        return f"{self.description.partition('. ')[0].removesuffix('.')}."


def marks_of(operation: OfferedOperation[AnyArguments]) -> dict[str, Mark | None]:
    """Return the marks of an operation and of each of its arguments; None for one that has none."""
    fields = operation.arguments.model_fields
    return {operation.name: operation.decides, **{name: mark_in(field.metadata) for name, field in fields.items()}}


async def perform(
    operation: OfferedOperation[AnyArguments], arguments: AnyArguments, call: OperationCall[Record, R]
) -> R:
    """Perform an operation once a person has made its decisions. Raises NeedsPerson and other PerstackErrors."""
    if call.may_decide or (call.brings_answer and operation.effect == "drive"):
        return await arguments.perform(call)
    subject = partial(arguments.subject, call.served_project)
    decisions = await _decisions_of(operation, arguments, subject)
    if not decisions:
        return await arguments.perform(call)
    if len(decisions) == 1 and decisions[0].answers:
        return await call.ask_question(decisions[0].answers, decisions)

    async def agreed(agreed_call: OperationCall[Record, R], digest: str) -> R:
        now = await _decisions_of(operation, arguments, subject)
        if digest_of(now) != digest:
            raise Conflict("what the person was shown has changed since, so nothing was done: call again")
        return await arguments.perform(replace(agreed_call, seal="".join(decision.seal for decision in now)))

    return await call.confirm(decisions, agreed)


async def _decisions_of(
    operation: OfferedOperation[AnyArguments],
    arguments: AnyArguments,
    subject: Callable[[], Awaitable[object]],
) -> Decisions:
    marks = marks_of(operation)
    is_free = all(isinstance(mark, Free) for mark in marks.values())
    return () if is_free else decisions_in(marks, await subject(), arguments)


# Operations on tasks.

Hides = Callable[[str], bool]  # predicate: True if a door hides the tasks of the agent with this id


class TaskArguments(OperationArguments[Record]):
    """Arguments of an operation on tasks, for programs."""

    row: ClassVar[operation_table.Operation]

    @override
    @classmethod
    def reply_model(cls) -> type[Record]:
        return cls.row.result_type

    @override
    async def subject(self, served_project: ServedProject) -> TaskSubject:
        return await self.subject_in(served_project.host.tasks, served_project.definitions.hides)

    async def subject_in(self, memory: StoredTasks, hides: Hides) -> TaskSubject:
        """Return the task that the operation is about. Raises NotFound also for a task of an agent that `hides`."""
        subject = await memory.subject_of(getattr(self, "task_id", ""))
        if hides(subject.task.agent_id):
            raise _hidden_task(subject.task.task_id)
        return subject

    @override
    async def perform(self, call: OperationCall[Record, R]) -> R:
        served_project = call.served_project
        return call.reply(
            await self.change(served_project.host.tasks.signed(call.by), served_project.definitions.hides)
        )

    async def change(self, memory: TaskMemory, hides: Hides) -> Record:
        """Return the result. Raises PerstackError; NotFound also for a task of an agent that `hides`."""
        command = self.row.command(**{name: getattr(self, name) for name in self.model_fields_set}).through_a_door()
        task_id, agent_id = getattr(command, "task_id", None), getattr(command, "agent_id", "")
        if self.row.is_creation:
            if hides(agent_id):
                raise UsageError(f"tasks of {agent_id} are not kept by this server, which does not offer that Expert")
        elif isinstance(task_id, str) and hides((await memory.get(task_id)).agent_id):
            raise _hidden_task(task_id)
        result = self.row.to_result(command, await memory.do(command))
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
            raise person_refusal(decisions, advice)
    return await arguments.change(memory, hides)


@cache
def task_operation(row: operation_table.Operation) -> OfferedOperation[TaskArguments]:
    """Return the operation on tasks with what doors need to offer it."""
    fields = {argument.name: (argument.type, argument.default) for argument in row.arguments("program")}
    name = row.command.__name__.replace("Command", "Arguments")
    model = create_model(name, __base__=TaskArguments, __doc__=row.description, **cast("dict[str, Any]", fields))
    model.row = row
    effect: Effect = "task_read" if row.is_read_only else "task_delete" if row.method == "DELETE" else "task_write"
    replies = {201 if row.is_creation else 200: "done"}
    return OfferedOperation(row.name, model, effect, row.decides, route=Route(row.method, f"{BASE}{row.path}", replies))
