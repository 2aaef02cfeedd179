"""The operations on tasks as programs call them: their arguments as models, and how they are done."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from pydantic import create_model

from perstack.core.base import Fact
from perstack.core.tasks.table import Operation
from perstack.frontends.shared.arguments import Arguments
from perstack.ports.tasks import TaskMemory


@cache
def arguments_of(operation: Operation) -> type[Arguments]:
    """The model of what a program may give."""
    given = {one.name: (one.type, one.default) for one in operation.arguments("program")}
    name = f"{operation.command.__name__}Arguments"
    return create_model(name, __base__=Arguments, __doc__=f"Of `{operation.name}`.", **cast("dict[str, Any]", given))


async def perform(operation: Operation, memory: TaskMemory, arguments: Arguments) -> Fact:
    """Do it. Raises PerstackError."""
    given = {name: getattr(arguments, name) for name in arguments.model_fields_set}
    command = operation.command(**given).through_a_door()
    return operation.shown(command, await memory.do(command))
