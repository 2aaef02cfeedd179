"""The tools of the MCP server: one for each Expert, and one for each operation on Jobs and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeAlias

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, Tool, ToolAnnotations
from pydantic import JsonValue

from perstack.core.base.records import JsonObject, Record
from perstack.core.base.text import nearest
from perstack.core.definitions.experts import Expert
from perstack.core.schemas.result_schemas import move_schema
from perstack.doors.operations import (
    AnyArguments,
    Arguments,
    Effect,
    OfferedOperation,
    perform,
    read_arguments,
    task_operation,
)
from perstack.doors.operations.driving import EXPERT_OPERATION, ExpertArguments
from perstack.doors.operations.jobs import JOB_OPERATIONS
from perstack.doors.operations.views import JobView
from perstack.tasks.operation_table import OPERATIONS
from perstack_server.mcp.driving import ClientCall, Outcome
from perstack_server.mcp.notifications import ClientProject

AnyOperation: TypeAlias = OfferedOperation[AnyArguments]

JOB_TOOLS: Mapping[str, AnyOperation] = {
    operation.name: operation for operation in JOB_OPERATIONS if operation.title is not None
}
TASK_TOOLS: Mapping[str, AnyOperation] = {f"task_{row.name}": task_operation(row) for row in OPERATIONS}

_HINTS: Mapping[Effect, ToolAnnotations] = {
    "read": ToolAnnotations(read_only_hint=True, open_world_hint=False),
    "stop": ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False),
    "write": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False),
    "drive": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True),
    "task_read": ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False),
    "task_write": ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False),
    "task_delete": ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False),
}


def operations_of(client_project: ClientProject) -> Mapping[str, AnyOperation]:
    """Return the operations that are tools of a project, by name."""
    return {**JOB_TOOLS, **TASK_TOOLS} if client_project.has_tasks else JOB_TOOLS


def list_tools(experts: Mapping[str, Expert], operations: Mapping[str, AnyOperation] = JOB_TOOLS) -> list[Tool]:
    """Return every tool, Experts first."""
    return [
        *(_expert_tool(name, expert) for name, expert in experts.items()),
        *(_operation_tool(name, operation) for name, operation in operations.items()),
    ]


def drives(name: str) -> bool:
    """Return whether a call of the tool may run an Expert or change files."""
    operation = JOB_TOOLS.get(name)
    return name not in TASK_TOOLS if operation is None else operation.effect in ("drive", "write")


async def call_tool(client_call: ClientCall) -> Outcome:
    """Perform a call. Raises PerstackError for an error of the caller, and MCPError for an unknown tool."""
    name, arguments = client_call.params.name, client_call.params.arguments or {}
    experts, operations = client_call.served_project.definitions.experts, operations_of(client_call.served_project)
    if name in operations:
        return await perform(operations[name], read_arguments(operations[name].arguments, arguments, name), client_call)
    if name in experts:
        expert_arguments = read_arguments(ExpertArguments, arguments, name).of(experts[name].key)
        return await perform(EXPERT_OPERATION, expert_arguments, client_call)
    names = (*experts, *operations)
    similar_name = nearest(name, names)
    hint = f"available: {', '.join(names)}" if similar_name is None else f"did you mean {similar_name!r}?"
    raise MCPError(INVALID_PARAMS, f"Unknown tool {name!r}: {hint}")


def _expert_tool(name: str, expert: Expert) -> Tool:
    return Tool(
        name=name,
        title=expert.key,
        description=expert.description or f"Runs the Expert {expert.key}.",
        input_schema=input_schema(ExpertArguments),
        output_schema=_expert_output_schema(expert.output),
        annotations=_HINTS["drive"],
    )


def _operation_tool(name: str, operation: AnyOperation) -> Tool:
    return Tool(
        name=name,
        title=operation.title,
        description=operation.description,
        input_schema=input_schema(operation.arguments),
        output_schema=_output_schema(operation.gives),
        annotations=_HINTS[operation.effect],
    )


# JSON schemas, with the fields and docstrings of the models.


@cache
def input_schema(model: type[Arguments]) -> JsonObject:
    """Return the JSON schema of a tool's arguments, without keywords that clients do not need."""
    return _simplify_schema(model.model_json_schema(by_alias=True))


@cache
def _output_schema(model: type[Record]) -> JsonObject:
    """Return the JSON schema of a tool's structured result."""
    return _simplify_schema(model.model_json_schema(by_alias=True, mode="serialization"))


def _expert_output_schema(result: JsonObject | None) -> JsonObject:
    """Return the output schema of an Expert's tool; its `result` has the Expert's schema, if that can be embedded."""
    schema = _output_schema(JobView)
    properties = schema.get("properties")
    if result is None or not isinstance(properties, dict):
        return schema
    result_schema = move_schema(result, "#/properties/result")
    return schema if result_schema is None else {**schema, "properties": {**properties, "result": result_schema}}


def _simplify_schema(schema: JsonObject) -> JsonObject:
    """Return the schema without titles and defaults of null; an optional value is left out instead of null."""
    simplified = _simplify(schema)
    return simplified if isinstance(simplified, dict) else {}


def _simplify(value: JsonValue, *, is_names: bool = False) -> JsonValue:
    if isinstance(value, list):
        return [_simplify(item) for item in value]
    if not isinstance(value, dict):
        return value
    if is_names:
        return {name: _simplify(each) for name, each in value.items()}
    result: JsonObject = {}
    for name, each in value.items():
        if name == "title" or (name == "default" and each is None) or (name == "description" and "properties" in value):
            continue
        result[name] = _simplify(each, is_names=name in ("properties", "$defs"))
    options = result.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        others = [option for option in options if option != {"type": "null"}]
        result.pop("anyOf")
        first = others[0]
        result = {**first, **result} if len(others) == 1 and isinstance(first, dict) else {**result, "anyOf": others}
    return result
