"""The OpenAPI 3.1 description of the HTTP door, generated from the operations, and an HTML page of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias, cast

from pydantic import BaseModel, JsonValue
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from perstack.core.base.records import JsonObject
from perstack.doors.operations import AnyArguments, OfferedOperation, Route, task_operation
from perstack.doors.operations.jobs import JOB_OPERATIONS
from perstack.doors.operations.views import SubmittedJob
from perstack.doors.shared.next_step_phrases import BASE
from perstack.tasks import operation_table
from perstack.tasks.operation_table import OPERATIONS
from perstack.version import VERSION

HOOKS = "/v1/hooks"

_Operation: TypeAlias = OfferedOperation[AnyArguments]

_SCHEMAS = "#/components/schemas/"
_PROBLEM: JsonObject = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "allowed": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "status", "detail"],
}
_REFUSALS = {
    "400": "wrong arguments",
    "401": "no token",
    "403": "a person makes this decision: send a token with that right",
    "404": "no such task or Job",
    "409": "not in this status or version",
}


def describe_api(server: str, rows: Sequence[operation_table.Operation] = OPERATIONS) -> JsonObject:
    """Return the OpenAPI description of all routes, for the server at this address."""
    operations = [
        operation for operation in (*map(task_operation, rows), *JOB_OPERATIONS) if operation.route is not None
    ]
    schemas = _schemas(operations)
    paths: dict[str, JsonObject] = {f"{HOOKS}/{{token}}": {"post": _describe_webhook()}}
    for operation in operations:
        if operation.route is not None:
            paths.setdefault(operation.route.path, {})[operation.route.method.lower()] = _describe_operation(
                operation, operation.route, schemas
            )
    components: JsonObject = {
        "schemas": {**schemas, "Problem": _PROBLEM},
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Perstack execution memory",
            "version": VERSION,
            "description": "Tasks that agents pause, and any later process resumes from the same point.",
        },
        "servers": [{"url": server}],
        "security": [{"token": []}, {}],
        "paths": cast("JsonObject", paths),
        "components": components,
    }


def html_page() -> str:
    """Return the description as an HTML table."""
    rows = "".join(
        f"<tr><td>{row.method}</td><td><code>{escape(BASE + row.path)}</code></td>"
        f"<td>{escape(task_operation(row).summary)}</td></tr>"
        for row in OPERATIONS
    )
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Perstack execution memory</title>"
        "<style>body{font:16px/1.5 sans-serif;margin:2em auto;max-width:50em}td{padding:.2em 1em .2em 0}</style>"
        "<h1>Execution memory</h1><p>Tasks that agents pause, and any later process resumes from the same point."
        ' The whole description: <a href="openapi.json">openapi.json</a>.</p>'
        f"<table>{rows}<tr><td>POST</td><td><code>{HOOKS}/{{token}}</code></td>"
        "<td>Say that what a task waits for has come, by the token that its pause returned.</td></tr></table></html>"
    )


def _schemas(operations: Sequence[_Operation]) -> dict[str, JsonObject]:
    results: dict[type[BaseModel], JsonSchemaMode] = {operation.gives: "serialization" for operation in operations}
    inputs: dict[type[BaseModel], JsonSchemaMode] = {operation.arguments: "validation" for operation in operations}
    _, schemas = models_json_schema([*results.items(), *inputs.items()], ref_template=_SCHEMAS + "{model}")
    return cast("dict[str, JsonObject]", schemas["$defs"])


def _describe_operation(operation: _Operation, route: Route, schemas: dict[str, JsonObject]) -> JsonObject:
    """Return the OpenAPI operation of a route; each argument may be spelled in camelCase or snake_case."""
    model = operation.arguments
    schema = schemas[model.__name__]
    properties = cast("dict[str, JsonObject]", schema.get("properties", {}))
    spellings = {field.alias or name: name for name, field in model.model_fields.items()}
    path_names = [name for name in properties if f"{{{name}}}" in route.path]
    required = [name for name in cast("list[str]", schema.get("required", [])) if name not in path_names]
    spelled_properties = {
        spelling: part for name in properties for spelling, part in _spellings(name, spellings[name], properties[name])
    }
    parameters: list[JsonValue] = [_parameter(name, "path", {"type": "string"}, required=True) for name in path_names]
    if "job_id" in model.model_fields:
        parameters.append(_parameter("Idempotency-Key", "header", {"type": "string"}, required=False))
    described: JsonObject = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description,
        "parameters": parameters,
        "responses": _responses(operation, route),
    }
    if route.method in ("GET", "DELETE"):
        path_spellings = {*path_names, *(spellings[name] for name in path_names)}
        parameters += [
            _parameter(name, "query", spelled_properties[name], required=False)
            for name in spelled_properties
            if name not in path_spellings
        ]
    else:
        described["requestBody"] = {
            "required": bool(required),
            "content": _content(_body(spelled_properties, required, spellings)),
        }
    return described


def _body(properties: dict[str, JsonObject], needed: Sequence[str], spellings: Mapping[str, str]) -> JsonObject:
    """Return the schema of an arguments object whose keys may each be spelled in camelCase or snake_case."""
    body: JsonObject = {
        "type": "object",
        "properties": cast("JsonObject", properties),
        "required": [name for name in needed if name == spellings[name]],
        "additionalProperties": False,
    }
    either = [
        {"anyOf": [{"required": [name]}, {"required": [spellings[name]]}]} for name in needed if name != spellings[name]
    ]
    return {**body, "allOf": cast("JsonValue", either)} if either else body


def _spellings(camel: str, snake: str, property_schema: JsonObject) -> list[tuple[str, JsonObject]]:
    if camel == snake:
        return [(camel, property_schema)]
    description = f"The same as `{camel}`."
    return [(camel, property_schema), (snake, {**property_schema, "description": description})]


def _parameter(name: str, location: str, schema: JsonObject, *, required: bool) -> JsonObject:
    return {"name": name, "in": location, "required": required, "schema": schema}


def _responses(operation: _Operation, route: Route) -> JsonObject:
    reply: dict[str, JsonValue] = {"content": _content({"$ref": _SCHEMAS + operation.gives.__name__})}
    if operation.gives is SubmittedJob and route.method == "POST":
        reply["headers"] = {"Location": {"description": "where it is shown", "schema": {"type": "string"}}}
    successes: JsonObject = {str(status): {"description": words, **reply} for status, words in route.replies.items()}
    refusals = {**_REFUSALS, **{str(status): words for status, words in route.refusals.items()}}
    return {**successes, **{status: _refusal(words) for status, words in refusals.items()}}


def _refusal(description: str) -> JsonObject:
    problem: JsonObject = {"application/problem+json": {"schema": {"$ref": f"{_SCHEMAS}Problem"}}}
    return {"description": description, "content": problem}


def _describe_webhook() -> JsonObject:
    return {
        "operationId": "signal",
        "summary": "Report the event that a task waits for; the body, or a CloudEvent's data, becomes its input.",
        "security": [],
        "parameters": [{"name": "token", "in": "path", "required": True, "schema": {"type": "string"}}],
        "requestBody": {"required": False, "content": _content({})},
        "responses": {
            "202": {"description": "taken"},
            "400": {"description": "not JSON, or not a CloudEvent 1.0"},
            "404": {"description": "no task waits for this token"},
            "409": {"description": "the token has already been used"},
        },
    }


def _content(schema: JsonObject) -> JsonObject:
    return {"application/json": {"schema": schema}}
