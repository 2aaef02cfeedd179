"""An MCP server that adds its arguments and variables to a file, `told.jsonl`, and writes both to stderr."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

TOOL = {"name": "touch", "description": "Do nothing.", "inputSchema": {"type": "object"}}


def result(method: str, params: dict) -> dict:
    match method:
        case "initialize":
            info = {"name": "telling", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [TOOL]}
        case _:
            return {"content": [{"type": "text", "text": "touched"}]}


def main() -> None:
    told = json.dumps({"args": sys.argv[1:], "env": dict(os.environ)})
    with Path("told.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{told}\n")
    print(told, file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            answer = result(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)


if __name__ == "__main__":
    main()
