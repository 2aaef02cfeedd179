"""Execution memory as tools, for agents that keep track of long work: `perstack mcp --tasks`."""

from __future__ import annotations

from typing import Any

from mcp_types import Tool, ToolAnnotations

from perstack.core.base import JsonObject
from perstack.frontends.mcp_server.clients import caller
from perstack.frontends.mcp_server.results import result
from perstack.frontends.mcp_server.schemas import input_schema, output_schema
from perstack.frontends.mcp_server.state import Call, Outcome
from perstack.frontends.shared.arguments import Arguments, read_arguments
from perstack.frontends.tasks.operations import OPERATIONS, Operation

PREFIX = "task_"

TASK_TOOLS: dict[str, Operation[Any]] = {f"{PREFIX}{operation.name}": operation for operation in OPERATIONS}
"""By name."""


def listed_tasks() -> list[Tool]:
    """One tool for each operation."""
    return [_tool(name, operation) for name, operation in TASK_TOOLS.items()]


async def call_task_tool(call: Call) -> Outcome:
    """Raises PerstackError."""
    operation = TASK_TOOLS[call.params.name]
    given: JsonObject = dict(call.params.arguments or {})
    read_arguments(operation.arguments, given, call.params.name)
    done = await operation(call.host.memory.signed(caller(call.context)), given)
    return result(done, done.to_json().decode())


def _tool(name: str, operation: Operation[Any]) -> Tool:
    reads = operation.method == "GET"
    taken: type[Arguments] = operation.arguments
    return Tool(
        name=name,
        description=operation.summary,
        input_schema=input_schema(taken),
        output_schema=output_schema(operation.gives),
        annotations=ToolAnnotations(
            read_only_hint=reads, destructive_hint=operation.name == "delete", open_world_hint=False
        ),
    )
