"""An MCP server of the handshake's era whose tools stand in a JSON file, its first argument.

It notes each start and each call in a file, its second. A third argument is a pipe that it writes its process id to
before it says nothing at all.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

TOOLS = json.loads(Path(sys.argv[1]).read_text())


def note(line: str) -> None:
    with Path(sys.argv[2]).open("a") as file:
        file.write(line + "\n")


def result(method: str, params: dict) -> dict:
    if method == "initialize":
        info = {"name": "from-file", "version": "1"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": info,
            "instructions": "Mind the file.",
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    note(f"call {params['name']}")
    return {"content": [{"type": "text", "text": f"{params['name']} was called"}]}


note("start")
if len(sys.argv) > 3:
    Path(sys.argv[3]).write_text(str(os.getpid()))
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and len(sys.argv) <= 3:
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": result(request["method"], request.get("params", {}))}
        print(json.dumps(answer), flush=True)
