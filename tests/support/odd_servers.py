"""MCP servers that deviate slightly from the protocol, as one table: what each does, and what a model and a person get.

`RESULTS` are odd results of tools: one server offers a tool for each, named after it. `SERVERS` are odd in their
handshake, their list or the form of their messages: each offers `hello`, which answers MARK. As a script it is such a
server over stdio; `serving` has it listen on the loopback. It does not use the SDK, which would not let it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any

MARK = "marker42"
OTHER = "the other half"
HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
ERAS = (HANDSHAKE, STATELESS)
FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
TEXT = {"type": "text", "text": MARK}
PIXEL = "iVBORw0KGgo="


@dataclass(frozen=True)
class Result:
    """Odd result of a tool: the texts that the model gets, and a part of the line that a person sees."""

    name: str
    value: Any
    gets: tuple[str, ...] = (MARK,)
    says: str = ""  # nothing may be said where it is empty
    is_error: bool = False
    blobs: tuple[str, ...] = ()  # media types
    output_schema: Any = None
    eras: tuple[str, ...] = ERAS


def _legacy(*args: Any, **fields: Any) -> Result:
    """Return a result that is odd in the handshake's era alone."""
    return Result(*args, eras=(HANDSHAKE,), **fields)


NEEDS_N = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LISTS = {"type": "array", "items": {"type": "string"}}

RESULTS = [
    Result("plain", {"content": [TEXT]}),
    Result("nulls", {"content": [TEXT], "structuredContent": None, "isError": None, "_meta": None}),
    # content
    Result("content-text", {"content": MARK}, says="content is a text"),
    Result("content-object", {"content": TEXT}, says="content is an object"),
    Result("content-null", {"content": None, "structuredContent": {"a": MARK}}, says="content is null"),
    Result("content-missing", {"structuredContent": {"a": MARK}}, says="content is missing"),
    Result("content-number", {"content": 42}, gets=("42",), says="content is a number"),
    Result("nothing-at-all", {}, gets=(), says="content is missing"),
    Result("other-keys", {"output": MARK, "took": 3}, says="content is missing"),
    Result("tool-result", {"toolResult": {"a": MARK}}, says="content is missing"),
    Result("a-block-itself", {"type": "text", "text": MARK}, says="content is missing"),
    Result("chat-message", {"role": "tool", "content": [TEXT]}),
    # not an object
    Result("bare-list", [TEXT], says="the result is a list"),
    Result("bare-texts", [MARK, OTHER], gets=(MARK, OTHER), says="the result is a list"),
    Result("bare-text", MARK, says="the result is a text"),
    Result("bare-number", 42, gets=("42",), says="the result is a number"),
    Result("bare-true", True, gets=("true",), says="the result is true"),
    Result("bare-null", None, gets=(), says="the result is null"),
    # blocks
    Result("block-text", {"content": [MARK, OTHER]}, gets=(MARK, OTHER), says="content.0 is a text"),
    Result("block-null", {"content": [None, TEXT]}, says="content.0 is null"),
    Result("block-number", {"content": [7, TEXT]}, gets=("7", MARK), says="content.0 is a number"),
    Result("block-list", {"content": [[TEXT]]}, says="content.0 is a list"),
    Result("unknown-type", {"content": [{"type": "hologram", "x": MARK}]}, says="'hologram'"),
    Result("no-type", {"content": [{"text": MARK}]}, says="content.0.type is missing"),
    Result("type-null", {"content": [{"type": None, "text": MARK}]}, says="content.0.type is null"),
    Result("type-shouted", {"content": [{"type": "TEXT", "text": MARK}]}, says="'TEXT'"),
    Result("output-text", {"content": [{"type": "output_text", "text": MARK}]}, says="'output_text'"),
    Result("json-block", {"content": [{"type": "json", "json": {"a": MARK}}]}, says="'json'"),
    Result("text-missing", {"content": [{"type": "text"}, TEXT]}, says="content.0.text is missing"),
    Result("text-null", {"content": [{"type": "text", "text": None}, TEXT]}, says="content.0.text is null"),
    Result("text-object", {"content": [{"type": "text", "text": {"a": MARK}}]}, says="content.0.text is an object"),
    Result("text-number", {"content": [{"type": "text", "text": 42}]}, gets=("42",), says="content.0.text is a number"),
    Result("text-elsewhere", {"content": [{"type": "text", "value": MARK}]}, says="content.0.text is missing"),
    Result("null-fields", {"content": [{**TEXT, "annotations": None, "_meta": None}]}),
    _legacy("odd-annotations", {"content": [{**TEXT, "annotations": {"priority": "high"}}]}, says="annotations"),
    _legacy("odd-audience", {"content": [{**TEXT, "annotations": {"audience": ["bot"]}}]}, says="annotations"),
    Result("annotations-list", {"content": [{**TEXT, "annotations": []}]}, says="annotations"),
    Result("odd-block-meta", {"content": [{**TEXT, "_meta": "x"}]}, says="_meta"),
    # bytes
    Result(
        "image-untyped",
        {"content": [{"type": "image", "data": PIXEL}, TEXT]},
        says="content.0.mimeType is missing",
        blobs=("image/png",),
    ),
    Result(
        "image-snake",
        {"content": [{"type": "image", "data": PIXEL, "mime_type": "image/png"}, TEXT]},
        says="content.0.mimeType is missing",
        blobs=("image/png",),
    ),
    Result(
        "image-source",
        {"content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}, TEXT]},
        says="content.0.data is missing",
        blobs=("image/png",),
    ),
    Result(
        "image-address",
        {"content": [{"type": "image", "data": f"data:image/png;base64,{PIXEL}", "mimeType": "image/png"}, TEXT]},
        says="content.0.data is a data: address",
        blobs=("image/png",),
    ),
    Result(
        "image-lines",
        {"content": [{"type": "image", "data": PIXEL[:4] + "\r\n" + PIXEL[4:].rstrip("="), "mimeType": "image/png"}]},
        gets=(),
        blobs=("image/png",),
    ),
    Result("image-empty", {"content": [{"type": "image"}, TEXT]}, says="content.0.data is missing"),
    Result("link-unnamed", {"content": [{"type": "resource_link", "uri": f"file:///{MARK}"}]}, says="content.0.name"),
    Result("link-nowhere", {"content": [{"type": "resource_link", "name": MARK}]}, says="content.0.uri is missing"),
    Result("resource-bare", {"content": [{"type": "resource", "resource": {"text": MARK}}]}, says="uri is missing"),
    Result(
        "resource-flat", {"content": [{"type": "resource", "uri": "a:b", "text": MARK}]}, says="resource is missing"
    ),
    Result("resource-void", {"content": [{"type": "resource", "resource": {"uri": f"a:{MARK}"}}]}, says="resource"),
    # structured content
    _legacy("structured-list", {"content": [], "structuredContent": [MARK]}, says="structuredContent is a list"),
    _legacy("structured-text", {"content": [TEXT], "structuredContent": OTHER}, gets=(MARK, OTHER), says="is a text"),
    _legacy("structured-number", {"content": [TEXT], "structuredContent": 7}, gets=(MARK, "7"), says="is a number"),
    Result("structured-any", {"content": [], "structuredContent": [MARK]}, eras=(STATELESS,)),
    Result("both", {"content": [TEXT], "structuredContent": {"a": OTHER}}, gets=(MARK, OTHER)),
    Result("both-odd", {"content": TEXT, "structuredContent": {"a": OTHER}}, gets=(MARK, OTHER), says="content is"),
    # failed or not
    Result("failed", {"content": [TEXT], "isError": True}, is_error=True),
    Result("failed-text", {"content": [TEXT], "isError": "true"}, is_error=True, says="isError is a text"),
    Result("failed-number", {"content": [TEXT], "isError": 1}, is_error=True, says="isError is a number"),
    Result("failed-word", {"content": [TEXT], "isError": "timeout"}, is_error=True, says="isError is a text"),
    Result("failed-object", {"content": [TEXT], "isError": {"code": 5}}, is_error=True, says="isError is an object"),
    Result("failed-snake", {"content": [TEXT], "is_error": True}, is_error=True, says="is_error"),
    Result("failed-and-odd", {"content": MARK, "isError": True}, is_error=True, says="content is a text"),
    Result("fine-text", {"content": [TEXT], "isError": "false"}, says="isError is a text"),
    Result("fine-number", {"content": [TEXT], "isError": 0}, says="isError is a number"),
    Result("fine-empty", {"content": [TEXT], "isError": ""}, says="isError is a text"),
    Result("meta-list", {"content": [TEXT], "_meta": []}, says="_meta is a list"),
    Result("odd-result-type", {"content": [TEXT], "resultType": 7}, says="resultType", eras=(STATELESS,)),
    # output schemas
    Result(
        "schema-met", {"content": [TEXT], "structuredContent": {"n": 1}}, gets=(MARK, '"n": 1'), output_schema=NEEDS_N
    ),
    Result(
        "schema-broken",
        {"content": [TEXT], "structuredContent": {"n": OTHER}},
        gets=(MARK, OTHER),
        says="violates the tool's output schema at n",
        output_schema=NEEDS_N,
    ),
    Result("schema-unanswered", {"content": [TEXT]}, says="no structured content", output_schema=NEEDS_N),
    _legacy(
        "schema-of-list",
        {"content": [TEXT], "structuredContent": [OTHER]},
        gets=(MARK, OTHER),
        says="structuredContent is a list",
        output_schema=LISTS,
    ),
    Result("schema-failed", {"content": [TEXT], "isError": True}, is_error=True, output_schema=NEEDS_N),
    Result("schema-no-type", {"content": [TEXT]}, says="no structured content", output_schema={"description": "d"}),
    Result(
        "schema-anyof",
        {"content": [TEXT], "structuredContent": {"a": 1}},
        output_schema={"anyOf": [{"type": "object"}, {"type": "array"}]},
    ),
    *(
        Result(
            f"schema-{name}", {"content": [TEXT]}, says=f"tool schema-{name}: its output schema", output_schema=schema
        )
        for name, schema in {
            "invalid": {"type": "object", "properties": {"a": {"type": "nothing"}}},
            "dangling": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
            "text": "object",
            "true": True,
            "list": [NEEDS_N],
            "remote": {"$ref": "https://example.com/schema.json"},
        }.items()
    ),
]


def tool(name: str, schema: Any = OBJECT, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": schema, **more}


HELLO = tool("hello")
Page = Callable[[str | None], Mapping[str, Any]]


def _endless_page(cursor: str | None) -> dict[str, Any]:
    number = int(cursor or 0)
    return {"tools": [HELLO if number == 0 else tool(f"tool{number}")], "nextCursor": str(number + 1)}


_NUMBERS = count(1)


def _ignore_cursor(_: str | None) -> dict[str, Any]:
    return {"tools": [HELLO, tool("more")], "nextCursor": f"c{next(_NUMBERS)}"}


def _cyclic_page(cursor: str | None) -> dict[str, Any]:
    return {
        None: {"tools": [HELLO], "nextCursor": "a"},
        "a": {"tools": [tool("more")], "nextCursor": "b"},
        "b": {"tools": [tool("most")], "nextCursor": "a"},
    }[cursor]


def _slow_page(cursor: str | None) -> dict[str, Any]:
    if cursor is not None:
        time.sleep(1)
    return _endless_page(cursor)


@dataclass(frozen=True)
class Server:
    """Odd server: its deviation from a plain one, the tools that it still has, and the line that a person sees."""

    name: str
    says: str = ""  # nothing may be said where it is empty
    refused: str = ""  # a part of the reason for which it is not connected to
    initialize: Any = field(default_factory=dict)  # replaced parts of its answer, or another answer
    page: Page | None = None  # the answer to tools/list, by cursor
    tools: Any = (HELLO,)
    lists: tuple[str, ...] = ("hello",)
    dress: Callable[[dict[str, Any]], str] = json.dumps  # a message as it is written
    first: bytes = b""  # what it writes before its first message
    errors: str = ""
    only: str = ""  # the only transport, or both
    eras: tuple[str, ...] = (HANDSHAKE,)
    body: tuple[str, Callable[[str], str]] = ("application/json", str)  # type and form of its bodies over HTTP
    ignores_unknown: bool = False


def _stdio(*args: Any, **fields: Any) -> Server:
    return Server(*args, only="stdio", **fields)


def _http(name: str, kind: str, form: Callable[[str], str] = str, says: str = "", **fields: Any) -> Server:
    return Server(name, says, body=(kind, form), only="http", eras=ERAS, **fields)


def _with_changed_keys(**changed: Any) -> Callable[[dict[str, Any]], str]:
    """Write answers with other keys, None for absent ones; other messages as they are."""

    def dress(message: dict[str, Any]) -> str:
        if "result" not in message:
            return json.dumps(message)
        made = {key: value(message) if callable(value) else value for key, value in changed.items()}
        return json.dumps(without_absent({**message, **made}))

    return dress


def _with_damage(name: str, damage: Callable[[str], str]) -> Server:
    return Server(name, "damaged characters", dress=lambda message: damage(json.dumps(message)))


ABSENT = object()
EVENT = "text/event-stream"
WITHOUT = {"capabilities": {}}
MANY = tuple(f"tool{n}" for n in range(1, 100))

SERVERS = [
    Server("plain", eras=ERAS),
    # capabilities
    Server("no-capability", "does not announce", initialize=WITHOUT, eras=ERAS),
    _stdio("no-capability-no-tools", initialize=WITHOUT, tools=None, lists=()),
    _stdio("no-capability-silent", "does not announce", initialize=WITHOUT, tools=..., lists=()),
    Server("capabilities-missing", "capabilities is missing", initialize={"capabilities": ABSENT}),
    Server("capabilities-null", "capabilities is null", initialize={"capabilities": None}, eras=ERAS),
    Server("capabilities-list", "capabilities is a list", initialize={"capabilities": []}, eras=ERAS),
    Server("tools-list", "capabilities.tools is a list", initialize={"capabilities": {"tools": [HELLO]}}, eras=ERAS),
    Server("tools-null", "does not announce", initialize={"capabilities": {"tools": None}}),
    _stdio("tools-true", refused="capabilities.tools", initialize={"capabilities": {"tools": True}}),
    Server("changed-text", "listChanged", initialize={"capabilities": {"tools": {"listChanged": "maybe"}}}),
    Server("logging-true", "capabilities.logging", initialize={"capabilities": {"tools": {}, "logging": True}}),
    Server("prompts-list", "capabilities.prompts", initialize={"capabilities": {"tools": {}, "prompts": []}}),
    # the rest of the handshake
    Server("instructions-null", initialize={"instructions": None}, eras=ERAS),
    Server("instructions-list", "instructions is a list", initialize={"instructions": ["a"]}, eras=ERAS),
    Server("title-number", "serverInfo.title", initialize={"serverInfo": {"name": "a", "version": "1", "title": 7}}),
    Server("info-null-parts", initialize={"serverInfo": {"name": "a", "version": "1", "icons": None}}),
    Server("version-number", "serverInfo.version", initialize={"serverInfo": {"name": "a", "version": 1.5}}),
    _stdio("info-without-version", refused="serverInfo.version", initialize={"serverInfo": {"name": "a"}}),
    _stdio("version-unknown", refused="1.0", initialize={"protocolVersion": "1.0"}),
    _stdio("version-future", refused="2099-01-01", initialize={"protocolVersion": "2099-01-01"}),
    Server("version-oldest", "2024-10-07", initialize={"protocolVersion": "2024-10-07"}),
    Server("version-blanks", "protocolVersion", initialize={"protocolVersion": " 2025-06-18\n"}),
    Server("version-old", initialize={"protocolVersion": "2024-11-05"}),
    _stdio(
        "refused-at-once",
        refused="protocolVersion: Input should be",
        initialize={"protocolVersion": 7},
        ignores_unknown=True,
    ),
    # bytes on stdout and stderr
    _stdio("bom", first=b"\xef\xbb\xbf"),
    _stdio("bom-each", dress=lambda message: "\ufeff" + json.dumps(message)),
    _stdio("banner", "Server v1.0", first=b"Server v1.0\n\n\x1b[32mready\x1b[0m\n"),
    _stdio(
        "log-lines", '"level"', first=b'{"level":"info","msg":"init"}\n[1,2]\n"x"\n{"id":1,"error":"e","level":"x"}\n'
    ),
    _stdio("crlf", dress=lambda message: json.dumps(message) + "\r"),
    _stdio("blank-lines", dress=lambda message: f"\n \n{json.dumps(message)}\n"),
    _stdio("stderr-flood", "noise", errors="noise " * 10 + "\n"),
    _stdio("glued", refused="not on a line of its own", first=b"starting... "),
    _stdio("pretty", refused="over several lines", dress=lambda message: json.dumps(message, indent=1)),
    _stdio("echo", '"initialize"', first=b'< {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}\n'),
    # envelopes
    Server("id-text", dress=_with_changed_keys(id=lambda message: str(message["id"])), eras=ERAS),
    Server("id-float", "id is", dress=_with_changed_keys(id=lambda message: float(message["id"])), eras=ERAS),
    Server("id-null", "id is null", dress=_with_changed_keys(id=None), eras=ERAS),
    Server("error-null", dress=_with_changed_keys(error=None), eras=ERAS),
    Server("error-empty", "error is an object", dress=_with_changed_keys(error={}), eras=ERAS),
    Server("no-version", "jsonrpc is missing", dress=_with_changed_keys(jsonrpc=ABSENT), eras=ERAS),
    Server("version-2", "jsonrpc is a number", dress=_with_changed_keys(jsonrpc=2.0), eras=ERAS),
    Server("method-echoed", "method", dress=_with_changed_keys(method="x"), eras=ERAS),
    _with_damage("half-character", lambda text: text.replace('"odd"', '"od\\ud83d"')),
    _with_damage("latin-1", lambda text: text.replace('"odd"', '"\udce9"')),
    _with_damage("control", lambda text: text.replace('"odd"', '"o\t\x01d"')),
    Server("batch", "a list", dress=lambda message: json.dumps([message]), eras=ERAS),
    # lists of tools
    Server("bare-tools", "the result is a list", page=lambda _: [HELLO], eras=ERAS),  # type: ignore[arg-type, return-value]
    Server("tools-by-name", "tools is an object", page=lambda _: {"tools": {"hello": {**HELLO, "name": None}}}),
    Server("tools-missing", "tools is missing", page=lambda _: {}, lists=()),
    Server("tools-none", "tools is null", page=lambda _: {"tools": None}, lists=(), eras=ERAS),
    Server("one-invalid", "tool bad is left out", tools=(HELLO, tool("bad", {"type": "string"})), eras=ERAS),
    Server("one-nameless", "tool ? is left out", tools=({"inputSchema": OBJECT}, HELLO, None, 7), eras=ERAS),
    *(
        Server(f"schema-{name}", "tool odd is left out", tools=(HELLO, tool("odd", schema)), eras=ERAS)
        for name, schema in {
            "null": None,
            "true": True,
            "array-typed": {"type": ["object", "null"]},
            "ref": {"$ref": "#/definitions/A", "definitions": {"A": {"type": "object"}}},
            "draft4": {"type": "object", "properties": {"n": {"minimum": 0, "exclusiveMinimum": True}}},
            "list": [OBJECT],
        }.items()
    ),
    Server("schema-missing", "tool odd is left out", tools=(HELLO, {"name": "odd"}), eras=ERAS),
    Server("schema-snake", "input_schema", tools=({"name": "hello", "input_schema": OBJECT},), eras=ERAS),
    Server("description-list", "description is a list", tools=(tool("hello") | {"description": ["a"]},), eras=ERAS),
    Server("description-null", tools=(HELLO | {"description": None, "title": None, "_meta": None},), eras=ERAS),
    Server("annotations-text", "annotations", tools=(tool("hello", annotations="readOnly"),), eras=ERAS),
    Server("hint-word", "annotations", tools=(tool("hello", annotations={"readOnlyHint": "never"}),), eras=ERAS),
    Server("meta-list", "_meta", tools=(tool("hello", _meta=[]),), eras=ERAS),
    Server("icons-text", "icons", tools=(tool("hello", icons="x.png"),), eras=ERAS),
    # cursors
    Server("cursor-empty", page=lambda _: {"tools": [HELLO], "nextCursor": ""}, eras=ERAS),
    Server("cursor-null", page=lambda _: {"tools": [HELLO], "nextCursor": None}, eras=ERAS),
    Server("cursor-false", "nextCursor is false", page=lambda _: {"tools": [HELLO], "nextCursor": False}, eras=ERAS),
    Server(
        "cursor-object", "nextCursor is an obj", page=lambda _: {"tools": [HELLO], "nextCursor": {"a": 1}}, eras=ERAS
    ),
    Server("cursor-repeated", "repeats", page=lambda _: {"tools": [HELLO], "nextCursor": "a"}, eras=ERAS),
    Server("cursor-cyclic", "repeats", page=_cyclic_page, lists=("hello", "more", "most"), eras=ERAS),
    Server("cursor-ignored", "the same tools", page=_ignore_cursor, lists=("hello", "more"), eras=ERAS),
    Server("pages-endless", "more than 100 pages", page=_endless_page, lists=("hello", *MANY), eras=ERAS),
    Server("pages-slow", "in time", page=_slow_page, lists=..., eras=ERAS),  # type: ignore[arg-type]
    Server(
        "second-page-fails", "second page", page=lambda c: {"tools": [HELLO], "nextCursor": "b"} if c is None else None
    ),  # type: ignore[arg-type, return-value]
    # what the stateless revisions require of every result
    Server("ageless-greeting", "ttlMs is missing", initialize=dict.fromkeys(FRESH, ABSENT), eras=(STATELESS,)),
    Server(
        "ageless-list",
        "ttlMs is missing",
        page=lambda _: {"tools": [HELLO], **dict.fromkeys(FRESH, ABSENT)},
        eras=(STATELESS,),
    ),
    Server("age-text", "ttlMs is a text", page=lambda _: {"tools": [HELLO], "ttlMs": "5"}, eras=(STATELESS,)),
    Server("supported-text", "supportedVersions", initialize={"supportedVersions": STATELESS}, eras=(STATELESS,)),
    # bodies
    _http("untyped", ""),
    _http("typed-text", "text/plain; charset=utf-8", says="text/plain"),
    _http("typed-rpc", "application/json-rpc", says="application/json-rpc"),
    _http("body-bom", "application/json", lambda body: "\ufeff" + body),
    _http("body-blanks", "application/json", lambda body: f"\r\n\r\n{body}\r\n"),
    _http("events", EVENT, lambda body: f"event: message\ndata: {body}\n\n"),
    _http("events-crlf", EVENT, lambda body: f"event: message\r\nid: 1\r\ndata: {body}\r\n\r\n"),
    _http("events-bom", EVENT, lambda body: f"\ufeffdata: {body}\n\n"),
    _http("events-unnamed", EVENT, lambda body: f": ping\n\ndata:{body}\n\n"),
    _http("events-named", EVENT, lambda body: f"event: response\ndata: {body}\n\n", says="'response'"),
    _http("events-cut", EVENT, lambda body: f"data: {body}", says="cut"),
    _http("events-done", EVENT, lambda body: f"data: ping\n\ndata: {body}\n\ndata: [DONE]\n\n", says="'ping'"),
    _http("events-typed-json", "application/json", lambda body: f"data: {body}\n\n", says="application/json"),
    _http("json-typed-events", EVENT, lambda body: body, says=EVENT),
]


def without_absent(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if value is not ABSENT}


class Playing:
    """A server of one era that plays a situation."""

    def __init__(self, name: str, era: str) -> None:
        self.server = next((one for one in SERVERS if one.name == name), Server("results"))
        self.is_results = name == "results"
        self.era = era

    def answer(self, message: Mapping[str, Any]) -> str | None:
        """Return what it writes on a message."""
        if "id" not in message or "method" not in message:
            return None
        answer = self._result_of(message["method"], message.get("params") or {})
        if answer is None:
            return None
        made = {"jsonrpc": "2.0", "id": message["id"], **answer}
        return self.server.dress(made)

    def _result_of(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        if method in ("initialize", "server/discover"):
            return self._greeting_result(method, params)
        if method == "tools/list":
            return self._tools_result(params)
        if method == "tools/call":
            return self._add_required_fields(self._call_result(params["name"]))
        if self.server.ignores_unknown:
            return None
        return {"error": {"code": -32601, "message": "no such method"}}

    def _greeting_result(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        if (method == "server/discover") != (self.era == STATELESS):
            if self.server.ignores_unknown:
                return None
            data = {"supported": [STATELESS], "requested": str(params.get("protocolVersion"))}
            refusal = {"code": -32022, "message": "not here", "data": data}
            return {"error": refusal if self.era == STATELESS else {"code": -32601, "message": "no such method"}}
        plain: dict[str, Any] = {"capabilities": {"tools": {}}}
        if self.era == STATELESS:
            plain = {**FRESH, "supportedVersions": [STATELESS], **plain}
        else:
            plain |= {"protocolVersion": HANDSHAKE, "serverInfo": {"name": "odd", "version": "1"}}
        return {"result": without_absent({**plain, **self.server.initialize})}

    def _tools_result(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        if self.is_results:
            named = [one for one in RESULTS if self.era in one.eras]
            schemas = {one.name: {"outputSchema": one.output_schema} for one in named if one.output_schema is not None}
            return self._add_required_fields({"tools": [tool(one.name, **schemas.get(one.name, {})) for one in named]})
        if self.server.tools is ...:
            return None
        if self.server.tools is None:
            return {"error": {"code": -32601, "message": "no tools here"}}
        page = self.server.page
        found = page(params.get("cursor")) if page is not None else {"tools": list(self.server.tools)}
        return {"error": {"code": -32603, "message": "no more"}} if found is None else self._add_required_fields(found)

    def _call_result(self, name: str) -> Any:
        return next(one.value for one in RESULTS if one.name == name) if self.is_results else {"content": [TEXT]}

    def _add_required_fields(self, result: Any) -> dict[str, Any]:
        fresh = {**FRESH} if self.era == STATELESS else {}
        made = {**fresh, **result} if isinstance(result, dict) else result
        return {"result": without_absent(made) if isinstance(made, dict) else made}


@contextmanager
def serving(name: str, era: str) -> Iterator[str]:
    """Yield the address of a server that plays a situation over streamable HTTP."""
    playing = Playing(name, era)
    kind, form = playing.server.body

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = playing.answer(message)
            self.send(
                202 if said is None else 200, b"" if said is None else form(said).encode("utf-8", "surrogateescape")
            )

        def do_GET(self) -> None:
            self.send(405, b"")

        def send(self, status: int, body: bytes) -> None:
            typed = f"content-type: {kind}\r\n" if kind else ""
            head = f"HTTP/1.1 {status} OK\r\n{typed}content-length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)  # in one write, or delayed acknowledgements cost 40 ms

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}/mcp"
        finally:
            listening.shutdown()
            thread.join()


def main(arguments: Sequence[str]) -> None:
    playing = Playing(*arguments)
    out = sys.stdout.buffer
    out.write(playing.server.first)
    out.flush()
    sys.stderr.write(playing.server.errors * 20_000)
    for line in sys.stdin:
        said = playing.answer(json.loads(line))
        if said is not None:
            out.write(said.encode("utf-8", "surrogateescape") + b"\n")
            out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
