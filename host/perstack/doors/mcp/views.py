"""Tools' results, and the JSON schemas that clients receive, with the fields and docstrings of the models."""

from __future__ import annotations

from functools import cache

from mcp_types import CallToolResult, ContentBlock, TextContent
from pydantic import JsonValue

from perstack.core.base.records import Fact, JsonObject
from perstack.core.definitions.result_schemas import placed_below
from perstack.core.jobs.summary import JobSummary
from perstack.doors.operations.declaration import Arguments
from perstack.doors.operations.views import job_view, standing
from perstack.doors.shared.next_steps import mcp_phrase
from perstack.errors import DefinitionError, PerstackError


@cache
def input_schema(model: type[Arguments]) -> JsonObject:
    """Return the JSON schema of a tool's arguments, without noise for clients."""
    return _plain(model.model_json_schema(by_alias=True))


@cache
def output_schema(model: type[Fact]) -> JsonObject:
    """Return the JSON schema of a tool's structured result."""
    return _plain(model.model_json_schema(by_alias=True, mode="serialization"))


def expert_output_schema(model: type[Fact], result: JsonObject | None) -> JsonObject:
    """Return the output schema of an Expert's tool, whose `result` fits the Expert's own schema."""
    whole = output_schema(model)
    properties = whole.get("properties")
    if result is None or not isinstance(properties, dict):
        return whole
    placed = placed_below(result, "#/properties/result")
    return whole if placed is None else {**whole, "properties": {**properties, "result": placed}}


def _plain(schema: JsonObject) -> JsonObject:
    """Return the schema without titles; an optional value may be left out rather than null."""
    plain = _without_noise(schema)
    return plain if isinstance(plain, dict) else {}


def _without_noise(value: JsonValue, *, is_names: bool = False) -> JsonValue:
    if isinstance(value, list):
        return [_without_noise(one) for one in value]
    if not isinstance(value, dict):
        return value
    if is_names:
        return {name: _without_noise(each) for name, each in value.items()}
    found: JsonObject = {}
    for name, each in value.items():
        if name == "title" or (name == "default" and each is None) or (name == "description" and "properties" in value):
            continue
        found[name] = _without_noise(each, is_names=name in ("properties", "$defs"))
    options = found.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [one for one in options if one != {"type": "null"}]
        found.pop("anyOf")
        first = rest[0]
        found = {**first, **found} if len(rest) == 1 and isinstance(first, dict) else {**found, "anyOf": rest}
    return found


# Results of tools: structured for programs, and text for models and people.

ERROR_KEY = "perstack/error"  # in `_meta`: a tool's output schema allows no error in the result itself


def result(view: Fact, *texts: str, is_error: bool = False) -> CallToolResult:
    """Return a tool's result: the structure, and each text as a block."""
    content: list[ContentBlock] = [TextContent(text=text) for text in texts]
    structured = view.model_dump(mode="json", by_alias=True, exclude_none=True)
    return CallToolResult(content=content, structured_content=structured, is_error=is_error)


def error_result(error: PerstackError) -> CallToolResult:
    """Return an error for the model to read and correct."""
    text = error.said(mcp_phrase)
    told: JsonObject = {"name": type(error).__name__, "message": text}
    if isinstance(error, DefinitionError):
        told["problems"] = [
            {"file": one.file, "line": one.line, "key": one.key, "message": one.message, "severity": one.severity}
            for one in error.problems
        ]
    return CallToolResult(content=[TextContent(text=text)], is_error=True, _meta={ERROR_KEY: told})


def job_result(job: JobSummary, *notes: str) -> CallToolResult:
    """Return the Job's state as a result; its result text, if any, is alone in the first block."""
    texts = [job.text] if job.text else []
    return result(job_view(job), *texts, standing(job), *notes, is_error=job.status == "stoppedByError")
