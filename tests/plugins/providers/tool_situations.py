"""Rows of the conformance suite for tools whose schema or names a vendor refuses.

The endpoint refuses the whole request for one bad tool, as all vendors do, so each row offers all of its tools at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from provider_suite import HELLO, QUERY, TOOLS, capability, request_of
from tool_rules import refusal, schemas_of
from wire import Said, Wire

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import ExpertMessage, TextPart, ToolMessage, ToolResultPart
from perstack.ports.provider import Generation, GenerationRequest
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest

_TEXT = {"type": "string"}
_LINK = {"$ref": "#/definitions/Node"}

BRANCHES: Mapping[str, Any] = {
    "any_of": {"anyOf": [{"required": ["a"], "properties": {"a": _TEXT}}, {"properties": {"b": _TEXT}}]},
    "one_of": {
        "type": "object",
        "properties": {"kind": _TEXT},
        "oneOf": [
            {"properties": {"kind": {"const": "file"}, "path": _TEXT}, "required": ["kind", "path"]},
            {"properties": {"kind": {"const": "page"}, "url": _TEXT}, "required": ["kind", "url"]},
        ],
    },
    "all_of": {"allOf": [_LINK, {"required": ["name"]}], "definitions": {"Node": {"properties": {"name": _TEXT}}}},
    "reference": {"$ref": "#/definitions/A", "definitions": {"A": {"type": ["object", "null"], "properties": {}}}},
    "choice": {"enum": [{"mode": "fast"}, {"mode": "slow", "limit": 3}]},
    "constant": {"const": {"mode": "fast"}},
    "negated": {"type": "object", "properties": {"a": _TEXT}, "not": {"required": ["a", "b"]}},
    "nullable": {"anyOf": [{"type": "object", "properties": {"a": _TEXT}}, {"type": "null"}]},
}

INCOMPLETE: Mapping[str, Any] = {
    "bare": {"type": "object"},
    "empty": {},
    "nulls": {"type": "object", "properties": None, "required": None},
    "lists": {
        "type": "object",
        "properties": {
            "bare": {"type": "array"},
            "nested": {"type": "array", "items": {"type": "array"}},
            "empty": {"type": "array", "items": {}},
            "pair": {"type": "array", "items": [{"type": "number"}, {"type": "number"}], "additionalItems": False},
            "tuple": {"type": "array", "prefixItems": [_TEXT, {"type": "array"}]},
            "either": {"type": ["string", "array"]},
            "optional": {"anyOf": [{"type": "array", "minItems": 2}, {"type": "null"}]},
            "object": {"type": "object"},
        },
    },
    "cyclic": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/tree",
        "type": "object",
        "properties": {"root": _LINK, "lost": {"$ref": "#/nowhere"}},
        "required": ["root"],
        "definitions": {"Node": {"type": "object", "properties": {"next": _LINK}, "required": ["next"]}},
    },
    "draft4": {
        "id": "tree",
        "type": "object",
        "properties": {
            "n": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "flagged": {"type": "string", "required": True, "format": "uri", "x-order": 1},
            "yes": True,
            "no": False,
            "maybe": {"type": "string", "nullable": True, "enum": ["a", "", None]},
        },
        "dependencies": {"n": ["flagged"]},
    },
    "rubbish": {
        "type": "objekt",
        "properties": [1],
        "required": "a",
        "anyOf": "b",
        "items": 5,
        "enum": {},
        "minProperties": -1,
        "description": 7,
        "$defs": [],
    },
}

NAMES: Mapping[str, Any] = {
    "odata": {
        "type": "object",
        "properties": {
            "$filter": _TEXT,
            "uids[]": {"type": "array", "items": _TEXT},
            "uids{}": _TEXT,
            "uids": _TEXT,
            "x" * 70: _TEXT,
            "x" * 70 + "y": _TEXT,
            "伝票": _TEXT,
            "größe in cm": {"type": "number"},
            "where": {"type": "object", "properties": {"$gt": {"type": "number"}}, "required": ["$gt"]},
            "all": {"type": "array", "items": _LINK},
            "": _TEXT,
        },
        "required": ["uids[]"],
        "definitions": {"Node": {"type": "object", "properties": {"@id": _TEXT, "in": _LINK}}},
    },
    "branches": {"anyOf": [{"properties": {"a[]": _TEXT}, "required": ["a[]"]}, {"properties": {"a{}": _TEXT}}]},
    "3d_view": {"type": "object", "properties": {}},
}

_PATH = "$path"
_CALLED = ToolSpec(name="1st", input_schema={"type": "object", "properties": {_PATH: _TEXT}, "required": [_PATH]})


def _tools(schemas: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    return (*TOOLS, *(ToolSpec(name=name, input_schema=schema) for name, schema in schemas.items()))


def _generate(wire: Wire, request: GenerationRequest, said: Said) -> tuple[Generation, Any]:
    """Make one generation at an endpoint with the vendor's rule. Return it with the body that was sent."""

    def choose(asked: ReceivedRequest) -> PreparedReply:
        words = refusal(wire, json.loads(asked.body))
        return wire.reply(said) if words is None else wire.error_reply(400, words)

    async def scenario() -> tuple[Generation, Any]:
        async with asyncio.timeout(30), FakeEndpoint(choose=choose) as endpoint:
            provider = wire.provider(endpoint.url)
            try:
                generation = await provider.generate(request, lambda delta: None)
            finally:
                await provider.close()
            return generation, json.loads(endpoint.asked[0].body)

    return asyncio.run(scenario())


def _taken(wire: Wire, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of each tool as it was sent, in the order of `schemas`, all of them in one request."""
    tools = _tools(schemas)
    generation, body = _generate(wire, request_of(wire, tools=tools), HELLO)
    assert generation.reply.text == HELLO.text
    sent = schemas_of(wire, body)
    assert len(sent) == len(tools), "no tool is left out"
    return dict(zip(schemas, list(sent.values())[len(TOOLS) :], strict=True))


@capability("Tools with branches or a choice at the root")
def branches(wire: Wire) -> str:
    sent = _taken(wire, BRANCHES)
    assert set(sent["any_of"]["properties"]) == {"a", "b"}
    assert set(sent["one_of"]["properties"]) == {"kind", "path", "url"}
    assert sent["one_of"]["required"] == ["kind"]
    assert set(sent["choice"]["properties"]) == {"mode", "limit"}
    assert sent["all_of"]["required"] == ["name"]
    assert set(sent["nullable"]["properties"]) == {"a"}
    return "joined to one object"


@capability("Tools with incomplete, old or wrong schemas")
def incomplete(wire: Wire) -> str:
    sent = _taken(wire, INCOMPLETE)
    assert set(sent["lists"]["properties"]) == set(INCOMPLETE["lists"]["properties"])
    assert "root" in sent["cyclic"]["properties"]
    assert set(sent["draft4"]["properties"]) == {"n", "flagged", "yes", "maybe"}
    return "completed"


@capability("Tools and arguments with other names")
def names(wire: Wire) -> str:
    sent = _taken(wire, NAMES)
    assert len(sent["odata"]["properties"]) == len(NAMES["odata"]["properties"])
    assert len(sent["branches"]["properties"]) == 2
    request = request_of(wire, tools=(_CALLED,))
    ((name, schema),) = schemas_of(wire, _generate(wire, request, HELLO)[1]).items()
    (argument,) = schema["properties"]
    assert argument != _PATH
    generation, _ = _generate(wire, request, Said(calls=(("c1", "a"),), tool=name, argument=argument))
    (call,) = generation.reply.tool_calls
    assert (call.tool_name, call.args) == ("1st", {_PATH: "a"}), "the log and the tool have the true names"
    result = ToolResultPart(tool_call_id=call.tool_call_id, tool_name="1st", contents=(TextPart(text="found"),))
    later = request_of(
        wire,
        QUERY,
        ExpertMessage(contents=generation.reply.contents),
        ToolMessage(contents=(result,)),
        tools=(_CALLED,),
    )
    _, body = _generate(wire, replace(later), HELLO)
    history = json.dumps(body).replace(json.dumps(wire.tools(body)), "")
    assert _PATH not in history
    assert argument in history
    return "renamed, and mapped back in calls"
