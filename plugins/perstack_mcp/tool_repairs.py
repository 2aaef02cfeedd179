"""Repairs of tool lists before the SDK sees them: it would reject a whole list because of one invalid tool.

An invalid optional part of a tool is left out; a tool without a name or a usable input schema is left out itself.
Output schemas are hidden from the SDK, which would validate results on the event loop, without a limit of time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from mcp_types import CallToolResult
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from perstack.core.base.records import JsonObject
from perstack.core.schemas.json_schema import FULL_STEPS, Checker, Meter, schema_problem
from perstack.system.concurrency import violation_of
from perstack_mcp.message_repairs import add_freshness, kind_at, kind_of

if TYPE_CHECKING:
    from pydantic import JsonValue

_MAX_SCHEMA_STEPS = 4 * FULL_STEPS  # maximum validation steps for all schemas of one list
_MAX_TOOLS = 2_000
_SHOWN_CHARS = 100  # maximum characters of a tool's name in a note

_REQUIRED = ("name", "inputSchema")


class OutputSchemas:
    """Output schemas of a server's tools."""

    def __init__(self) -> None:
        self._checkers: dict[str, Checker] = {}

    def take(self, tool: JsonObject, schema: JsonValue, meter: Meter) -> str | None:
        """Keep the output schema of a listed tool.

        Return why it cannot be used; None if it can, or without a schema.
        """
        name = str(tool["name"])
        self._checkers.pop(name, None)
        if not isinstance(schema, dict):
            return None if schema is None else f"it is {kind_of(schema)}"
        problem = schema_problem(schema, meter)
        if problem is None:
            self._checkers[name] = Checker(schema)
        return problem

    async def problem(self, name: str, result: CallToolResult) -> str | None:
        """Return how a result violates its tool's output schema; None if it does not."""
        checker = self._checkers.get(name)
        if checker is None or result.is_error:
            return None
        if "structured_content" not in result.model_fields_set:
            return "the tool has an output schema, but the result has no structured content"
        value = cast("JsonValue", result.structured_content)
        violation = await violation_of(checker, value)
        if violation is not None and isinstance(value, dict) and value.keys() == {"result"}:
            # a value that is not an object is wrapped, by servers or by its repair
            violation = await violation_of(checker, value["result"])
        if violation is None:
            return None
        place = f" at {violation.place}" if violation.place else ""
        return f"the structured output violates the tool's output schema{place}: {violation.message[:200]}"


def repaired_page(page: JsonValue, version: str, outputs: OutputSchemas) -> tuple[JsonObject, Sequence[str]]:
    """Return an answer to `tools/list` in the form that the SDK accepts, and lines about repairs and omissions."""
    lines: list[str] = []
    result = {"tools": page} if isinstance(page, list) else page
    if result is not page or not isinstance(result, dict):
        lines.append(f"(its answer to tools/list was repaired: the result is {kind_of(page)})")
    result = dict(result) if isinstance(result, dict) else {}
    tools = result.get("tools")
    if isinstance(tools, dict):
        lines.append("(its answer to tools/list was repaired: tools is an object)")
        tools = [_add_name(name, tool) for name, tool in tools.items()]
    elif tools is None:
        lines.append(f"(its answer to tools/list was repaired: tools is {kind_at(result, 'tools')})")
        tools = []
    _repair_cursor(result, lines)
    if version in MODERN_PROTOCOL_VERSIONS:
        lines += [f"(its answer to tools/list was repaired: {note})" for note in add_freshness(result)]
    if isinstance(tools, list):
        result["tools"] = _usable_tools(tools, result, version, outputs, lines)
    return result, lines


def _add_name(name: str, tool: JsonValue) -> JsonValue:
    return {**tool, "name": tool.get("name") or name} if isinstance(tool, dict) else tool


def _repair_cursor(result: JsonObject, lines: list[str]) -> None:
    """Remove an invalid or empty cursor; an empty one ends the list."""
    cursor = result.pop("nextCursor", None)
    if isinstance(cursor, str) and cursor:
        result["nextCursor"] = cursor
    elif isinstance(cursor, int | float) and not isinstance(cursor, bool):
        lines.append("(its answer to tools/list was repaired: nextCursor is a number)")
        result["nextCursor"] = json.dumps(cursor)
    elif cursor is not None and cursor != "":
        lines.append(
            f"(its answer to tools/list was repaired: nextCursor is {kind_of(cursor)}, so the list ends there)"
        )


def _usable_tools(
    tools: Sequence[JsonValue], result: JsonObject, version: str, outputs: OutputSchemas, lines: list[str]
) -> list[JsonValue]:
    """Return the repaired tools that a model can use, and add a line to `lines` about each other one."""
    meter = Meter(_MAX_SCHEMA_STEPS)
    # only short values, since they are validated once per tool
    scalar_fields: JsonObject = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
    usable: list[JsonValue] = []
    for tool in tools[:_MAX_TOOLS]:
        repaired, problem = _repair_tool(tool, scalar_fields, version, lines)
        if problem is None:
            problem = schema_problem(repaired.get("inputSchema"), meter)
        name = str(repaired.get("name") or "?")[:_SHOWN_CHARS]
        if problem is not None:
            lines.append(f"tool {name} is left out: {problem}")
            continue
        output_problem = outputs.take(repaired, repaired.pop("outputSchema", None), meter)
        if output_problem is not None:
            lines.append(f"tool {name}: its output schema is not used: {output_problem.removeprefix('its schema ')}")
        usable.append(repaired)
    if len(tools) > _MAX_TOOLS:
        lines.append(f"{len(tools) - _MAX_TOOLS} tools are left out: more than {_MAX_TOOLS} at once")
    return usable


def _repair_tool(
    tool: JsonValue, scalar_fields: JsonObject, version: str, lines: list[str]
) -> tuple[JsonObject, str | None]:
    """Return a tool without its invalid optional parts, and the reason why it cannot be used, or None."""
    if not isinstance(tool, dict):
        return {}, f"it is {kind_of(tool)}"
    repaired = {key: value for key, value in tool.items() if value is not None or key in _REQUIRED}
    name = str(repaired.get("name") or "?")[:_SHOWN_CHARS]
    if "inputSchema" not in repaired and isinstance(repaired.get("input_schema"), dict):
        lines.append(f"tool {name}: inputSchema is missing, input_schema is used")
        repaired["inputSchema"] = repaired.pop("input_schema")
    schema = repaired.pop("outputSchema", None)
    if not isinstance(repaired.get("description", ""), str):
        lines.append(f"tool {name}: description is {kind_of(repaired['description'])}")
        repaired["description"] = json.dumps(repaired["description"], ensure_ascii=False)
    wrong = _find_invalid_parts(repaired, scalar_fields, version)
    for part in wrong:
        if part in repaired and part not in _REQUIRED:
            lines.append(f"tool {name}: {part} is left out: {wrong[part]}")
            del repaired[part]
    if wrong:
        wrong = _find_invalid_parts(repaired, scalar_fields, version)
    part, message = next(iter(wrong.items()), ("", ""))
    return {**repaired, "outputSchema": schema}, f"{part}: {message}" if wrong else None


def _find_invalid_parts(tool: JsonObject, scalar_fields: JsonObject, version: str) -> dict[str, str]:
    """Return the parts of a tool that its revision does not allow, with the reasons."""
    try:
        validate_server_result("tools/list", version, {**scalar_fields, "tools": [tool]})
    except ValidationError as error:
        wrong: dict[str, str] = {}
        for problem in error.errors(include_url=False, include_input=False):
            place = [str(part) for part in problem["loc"][2:]]
            wrong.setdefault(place[0] if place else "", f"{'.'.join(place[1:])}: {problem['msg']}".removeprefix(": "))
        return wrong
    except KeyError:
        return {}
    return {}
