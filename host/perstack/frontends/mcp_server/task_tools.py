"""Execution memory as tools, for agents that keep track of long work: `perstack mcp --tasks`."""

from __future__ import annotations

from mcp_types import Tool, ToolAnnotations

from perstack.core.tasks.table import OPERATIONS, Operation
from perstack.frontends.mcp_server.clients import caller
from perstack.frontends.mcp_server.results import result
from perstack.frontends.mcp_server.schemas import input_schema, output_schema
from perstack.frontends.mcp_server.state import Call, Outcome
from perstack.frontends.shared.arguments import read_arguments
from perstack.frontends.tasks.operations import arguments_of, perform

PREFIX = "task_"

TASK_TOOLS: dict[str, Operation] = {f"{PREFIX}{operation.name}": operation for operation in OPERATIONS}
"""By name."""


def listed_tasks() -> list[Tool]:
    """One tool for each operation."""
    return [_tool(name, operation) for name, operation in TASK_TOOLS.items()]


async def call_task_tool(call: Call) -> Outcome:
    """Raises PerstackError."""
    operation = TASK_TOOLS[call.params.name]
    arguments = read_arguments(arguments_of(operation), dict(call.params.arguments or {}), call.params.name)
    done = await perform(operation, call.host.memory.signed(caller(call.context)), arguments)
    return result(done, done.to_json().decode())


def _tool(name: str, operation: Operation) -> Tool:
    return Tool(
        name=name,
        description=operation.description,
        input_schema=input_schema(arguments_of(operation)),
        output_schema=output_schema(operation.gives),
        annotations=ToolAnnotations(
            read_only_hint=operation.reads, destructive_hint=operation.method == "DELETE", open_world_hint=False
        ),
    )
