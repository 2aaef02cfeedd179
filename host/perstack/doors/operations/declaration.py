"""The declaration of an operation: its arguments, its text and its effect, from which doors derive what they offer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel

from perstack.core.base.records import Fact, JsonObject
from perstack.core.base.validation_errors import in_words
from perstack.core.tasks.operation_table import Operation
from perstack.core.tasks.summaries import TaskPage
from perstack.errors import NotFound, UsageError
from perstack.ports.tasks import TaskMemory


class Arguments(BaseModel):
    """Arguments of one operation, in camelCase or snake_case. Unknown keys are refused, so that a typo is noticed."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, defer_build=True
    )


_A = TypeVar("_A", bound=Arguments)


def read_arguments(model: type[_A], given: JsonObject, what: str = "") -> _A:
    """Return the validated arguments. Raises UsageError that names each wrong argument, prefixed by `what`."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        known = [field.alias or name for name, field in model.model_fields.items()]
        words = in_words(error.errors(include_url=False, include_input=False), given, known)
        raise UsageError(f"{what}: {words}" if what else words) from error


@cache
def arguments_of(operation: Operation) -> type[Arguments]:
    """Return the model of the arguments that a program may pass to the operation."""
    given = {one.name: (one.type, one.default) for one in operation.arguments("program")}
    name = operation.command.__name__.replace("Command", "Arguments")
    return create_model(name, __base__=Arguments, __doc__=f"Of `{operation.name}`.", **cast("dict[str, Any]", given))


Hides = Callable[[str], bool]  # predicate: True if a door hides the tasks of the agent with this id


def hides_none(agent_id: str) -> bool:
    """Return False: every agent's tasks are shown."""
    return False


async def perform(operation: Operation, memory: TaskMemory, arguments: Arguments, hides: Hides = hides_none) -> Fact:
    """Perform the operation. Raises PerstackError; NotFound also for a task of an agent that `hides` names."""
    given = {name: getattr(arguments, name) for name in arguments.model_fields_set}
    command = operation.command(**given).through_a_door()
    task_id, agent_id = getattr(command, "task_id", None), getattr(command, "agent_id", "")
    if operation.makes:
        if hides(agent_id):
            raise UsageError(f"tasks of {agent_id} are not kept by this server, which leaves that Expert out")
    elif isinstance(task_id, str) and hides((await memory.get(task_id)).agent_id):
        raise NotFound(f"there is no task {task_id} of an agent that this server offers")
    done = operation.shown(command, await memory.do(command))
    if isinstance(done, TaskPage):
        return done.model_copy(update={"tasks": tuple(task for task in done.tasks if not hides(task.agent_id))})
    return done
