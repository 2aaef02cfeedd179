"""An MCP server of the revision 2026-07-28 alone, in plain Python: it refuses the handshake."""

from __future__ import annotations

import json
import sys

VERSION = "2026-07-28"
FRESH = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
TOOLS = [{"name": "era", "inputSchema": {"type": "object", "properties": {}}}, {"name": "broken", "inputSchema": 1}]


def answer(method: str, params: dict) -> dict:
    if method == "server/discover":
        return {"result": {**FRESH, "supportedVersions": [VERSION], "capabilities": {"tools": {}}}}
    if method == "tools/list":
        return {"result": {**FRESH, "tools": TOOLS}}
    if method == "tools/call":
        version = params["_meta"]["io.modelcontextprotocol/protocolVersion"]
        return {"result": {"resultType": "complete", "content": [{"type": "text", "text": version}]}}
    if method == "initialize":
        print("refused the handshake", file=sys.stderr, flush=True)
    data = {"supported": [VERSION], "requested": params.get("protocolVersion", "")}
    return {"error": {"code": -32022, "message": "unsupported protocol version", "data": data}}


while line := sys.stdin.readline():
    message = json.loads(line)
    if "id" in message:
        reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], message.get("params") or {})}
        print(json.dumps(reply), flush=True)
