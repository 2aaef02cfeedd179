"""Operations that several doors offer, each declared once: what it takes, what it does, what it shows, and where.

A class of arguments is an operation: its fields are the arguments, its docstring describes it to people and models, and
`perform` does it for an `OperationCall`, which a door lends it. An `OfferedOperation` adds what doors need. From these
rows `mcp.tools` makes tools, and `http.routes` and `http.openapi` requests. The rows for Jobs are in `jobs` and
`driving`, what they show in `views`; those for tasks are made here from `core.tasks.operation_table`. Docstrings and
field descriptions are in the schemas that MCP clients and OpenAPI readers see: changing one changes these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel
from typing_extensions import override

from perstack.core.base.ids import By
from perstack.core.base.records import Fact, JsonObject
from perstack.core.base.validation_errors import in_words
from perstack.core.jobs.summary import JobSummary
from perstack.core.tasks import operation_table
from perstack.core.tasks.summaries import TaskPage
from perstack.dataclass import dataclass
from perstack.doors.served_project import DriveJob, ServedProject
from perstack.doors.shared.next_steps import BASE
from perstack.errors import NotFound, UsageError
from perstack.next_steps import GiveAnswer
from perstack.ports.tasks import TaskMemory

R = TypeVar("R")  # what a door replies with: a tool's result, an HTTP response


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Question to a person before something is done."""

    key: str  # name of the field of the form, and of the state that a client returns with the answer
    title: str
    question: str
    digest: str  # digest of what the question shows
    command: str  # command with which a person does it at a terminal


@dataclass(frozen=True)
class OperationCall(ABC, Generic[R]):
    """One call of an operation through a door: the project, the caller, and how to reply, drive and ask there."""

    project: ServedProject

    @property
    @abstractmethod
    def by(self) -> By:
        """The author of an answer that the caller brings."""

    @abstractmethod
    def reply(self, view: Fact, *texts: str, is_error: bool = False) -> R:
        """Return the result, as a structure for programs and as texts for models, by default the structure's JSON."""

    @abstractmethod
    async def drive(self, work: DriveJob, *, wait: bool) -> R:
        """Drive a Job, and reply when it has begun or, with `wait`, when it has ended or stopped."""

    async def ask_approval(self, job: JobSummary) -> R:
        """Ask a person, never a model, to approve the call that the Job waits for. Raises UsageError if nobody can."""
        step = GiveAnswer(job.asking.id if job.asking is not None else job.id, is_approval=True)
        raise UsageError("only a person can approve a call, and this client cannot ask one", next_steps=(step,))

    async def confirm(self, confirmation: Confirmation, answered: Callable[[str, bool], Awaitable[R]]) -> R:
        """Ask a person; reply with what `answered` returns for digest and answer. Raises UsageError if nobody can."""
        raise UsageError(
            f"only a person can agree to a {confirmation.key}, and this client cannot ask one; a person can do it with"
            f" `{confirmation.command}`"
        )


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
        text = in_words(error.errors(include_url=False, include_input=False), arguments, names)
        raise UsageError(f"{prefix}: {text}" if prefix else text) from error


class OperationArguments(Arguments):
    """Arguments that perform their operation."""

    @abstractmethod
    async def perform(self, call: OperationCall[R]) -> R:
        """Perform the operation. Raises PerstackError."""


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
    gives: type[Fact]  # model of the structured result
    effect: Effect  # what it may change; the hints of its MCP tool say so
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


# Operations on tasks.

Hides = Callable[[str], bool]  # predicate: True if a door hides the tasks of the agent with this id


class TaskArguments(OperationArguments):
    """Arguments of an operation on tasks that a program may pass."""

    row: ClassVar[operation_table.Operation]

    @override
    async def perform(self, call: OperationCall[R]) -> R:
        project = call.project
        return call.reply(await self.change(project.host.tasks.signed(call.by), project.definitions.hides))

    async def change(self, memory: TaskMemory, hides: Hides) -> Fact:
        """Return the result. Raises PerstackError; NotFound also for a task of an agent that `hides` names."""
        command = self.row.command(**{name: getattr(self, name) for name in self.model_fields_set}).through_a_door()
        task_id, agent_id = getattr(command, "task_id", None), getattr(command, "agent_id", "")
        if self.row.makes:
            if hides(agent_id):
                raise UsageError(f"tasks of {agent_id} are not kept by this server, which leaves that Expert out")
        elif isinstance(task_id, str) and hides((await memory.get(task_id)).agent_id):
            raise NotFound(f"there is no task {task_id} of an agent that this server offers")
        result = self.row.shown(command, await memory.do(command))
        if isinstance(result, TaskPage):
            return result.model_copy(update={"tasks": tuple(task for task in result.tasks if not hides(task.agent_id))})
        return result


@cache
def task_operation(row: operation_table.Operation) -> OfferedOperation[TaskArguments]:
    """Return an operation on tasks as doors see it."""
    fields = {argument.name: (argument.type, argument.default) for argument in row.arguments("program")}
    name = row.command.__name__.replace("Command", "Arguments")
    model = create_model(name, __base__=TaskArguments, __doc__=row.description, **cast("dict[str, Any]", fields))
    model.row = row
    effect: Effect = "task_read" if row.reads else "task_delete" if row.method == "DELETE" else "task_write"
    replies = {201 if row.makes else 200: "done"}
    return OfferedOperation(row.name, model, row.gives, effect, route=Route(row.method, f"{BASE}{row.path}", replies))
