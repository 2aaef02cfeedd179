"""An MCP server of the handshake's era in plain Python, that does wrong what its first argument says."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from typing import NoReturn

FAULT = sys.argv[1]
ONCE = sys.argv[2] if len(sys.argv) > 2 else ""
"""A file whose existence means: behave from now on."""

OBJECT = {"type": "object", "properties": {}}

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def send(**message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool(name: str, schema=OBJECT, **more) -> dict:
    return {"name": name, "inputSchema": schema, **more}


TOOLS = [
    tool("echo", annotations={"readOnlyHint": True}),
    tool("set", annotations={"idempotentHint": True}),
    tool("die"),
    tool("flood"),
    tool("pour"),
    tool("babble"),
    tool("garbled"),
    tool("chatter"),
    tool("logs"),
    tool("wrapped"),
    tool("hang"),
    tool("slow"),
    tool("huge"),
    tool("wrong"),
    tool("env"),
    tool("meta"),
    tool("mixed"),
    tool("structured", outputSchema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
]

BROKEN = [
    tool("no_object", {"type": "string"}),
    tool("bad_keyword", {"type": "object", "properties": {"a": {"type": "nothing"}}}),
    tool("dangling", {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}),
    {"name": "no_schema"},
    {"inputSchema": OBJECT},
    "not even an object",
]

EVIL = "^(a+)+$"
FOR_EVER = [
    tool("slow_in", {"type": "object", "properties": {"a": {"pattern": EVIL}, "b": {"pattern": "(?=b)b"}}}),
    tool("slow_out", outputSchema={"type": "object", "properties": {"a": {"pattern": EVIL}}}),
    tool(
        "doubling",
        {
            "type": "object",
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)} | {"d30": {}},
            "properties": {"a": {"$ref": "#/$defs/d0"}},
        },
    ),
    tool("large", {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(30_000)}}),
]


def text(words: str, **more) -> dict:
    return {"content": [{"type": "text", "text": words}], **more}


def flood(piece: str) -> NoReturn:
    print("here it comes", file=sys.stderr, flush=True)
    while True:
        sys.stdout.write(piece)


def call(name: str, params: dict) -> dict | None:
    token = params.get("_meta", {}).get("progressToken")
    match name:
        case "echo" | "set":
            return text("here")
        case "flood":
            flood("nothing of use\n" * 1000)
        case "pour":
            flood("x" * 100_000)
        case "babble":
            print("not a message\n[]", flush=True)
            send(id=10_000, result={})
            send(method="notifications/nobody-knows", params={"a": 1})
            send(method="notifications/progress", params={"progressToken": "no-such-token", "progress": 1})
            return text("here")
        case "chatter":
            for number in range(1500):
                print("chatter", number, file=sys.stderr)
                send(method="notifications/message", params={"level": "info", "data": {"number": number}})
                send(method="notifications/progress", params={"progressToken": token, "progress": number})
            send(method="notifications/message", params={"level": "error", "data": "x" * 5000})
            return text("here")
        case "logs":
            send(method="notifications/message", params={"level": "warning", "data": "it is late"})
            send(method="notifications/message", params={"level": "info", "logger": "a", "data": {"at": 9}})
            return text("here")
        case "wrapped":
            return text("the text", structuredContent={"content": "the text"})
        case "garbled":
            return {"content": [{"type": "hologram"}], "isError": "perhaps"}
        case "die":
            print("about to die", file=sys.stderr, flush=True)
            os._exit(3)
        case "hang":
            print("hanging", file=sys.stderr, flush=True)
            return None
        case "slow":
            for part in range(4):
                time.sleep(0.7)
                send(method="notifications/progress", params={"progressToken": token, "progress": part, "total": 4})
            return text("done")
        case "huge":
            return text("a" * 20_000_000 + "end")
        case "wrong":
            return text("it did not work", isError=True)
        case "env":
            return text(json.dumps(dict(os.environ)))
        case "meta":
            return text(json.dumps(params["_meta"]))
        case "slow_out":
            return text("{}", structuredContent={"a": "a" * 40 + "!"})
        case "structured":
            return text("{}", structuredContent={"n": "not a number"})
        case _:
            data = base64.b64encode(b"bytes").decode()
            document = base64.b64encode(b"%PDF-bytes").decode()
            return {
                "content": [
                    {"type": "text", "text": "words"},
                    {"type": "image", "data": PNG, "mimeType": "image/png"},
                    {"type": "audio", "data": data, "mimeType": "audio/wav"},
                    {"type": "image", "data": "@@", "mimeType": "image/png"},
                    {"type": "resource_link", "uri": "file:///a", "name": "a", "description": "the a"},
                    {"type": "resource", "resource": {"uri": "file:///t", "text": "inside"}},
                    {
                        "type": "resource",
                        "resource": {"uri": "file:///b", "blob": document, "mimeType": "application/pdf"},
                    },
                ],
                "structuredContent": {"n": 1},
            }


def result(method: str, params: dict) -> dict | None:
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "misbehaving", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        if FAULT == "lists-nonsense":
            print("here is my list", file=sys.stderr, flush=True)
            return {"tools": "none of your business"}
        if FAULT == "schemas-that-take-for-ever":
            return {"tools": [*TOOLS, *FOR_EVER]}
        return {"tools": [*TOOLS, *BROKEN] if FAULT == "broken-schemas" else TOOLS}
    return call(params["name"], params)


def misbehave() -> None:
    match FAULT:
        case "dies-at-start":
            print("cannot find my configuration", file=sys.stderr)
            sys.exit(7)
        case "hangs-at-start":
            print("still looking", file=sys.stderr)
            time.sleep(1000)
        case "garbage-at-start":
            print('Welcome to this server!\n{"not": "a message"}\n\n', flush=True)
        case "floods":
            flood("nothing of use\n" * 1000)
        case "one-endless-line":
            flood("x" * 100_000)
        case "starts-slowly":
            time.sleep(1)
        case "deaf":
            import signal

            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "has-children":
            subprocess.Popen(["sleep", "1000"])


def main() -> None:
    misbehave()
    while line := sys.stdin.readline():
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "notifications/cancelled":
            print("cancelled", message["params"]["requestId"], file=sys.stderr, flush=True)
        if number is None or method is None:
            continue
        if method not in ("initialize", "tools/list", "tools/call"):
            if FAULT != "ignores-the-unknown":
                send(id=number, error={"code": -32601, "message": "no such method"})
            continue
        answer = result(method, message.get("params") or {})
        if answer is not None:
            send(id=number, result=answer)
    if FAULT == "deaf":
        time.sleep(1000)


if __name__ == "__main__":
    main()
