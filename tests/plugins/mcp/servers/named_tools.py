"""An MCP server with tools of given names. Its arguments are a folder and the names.

Its starts and ends are lines of `life` in the folder. The tool `wait` never answers. While the folder has a file
`hold`, no start answers; while it has a file `broken`, each start fails.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

FOLDER, NAMES = Path(sys.argv[1]), sys.argv[2:]


def note(word: str) -> None:
    with (FOLDER / "life").open("a") as file:
        file.write(f"{word} {' '.join(NAMES)}\n")


def block() -> None:
    while True:
        time.sleep(3600)


def result(method: str, params: dict) -> dict:
    match method:
        case "initialize":
            if (FOLDER / "broken").exists():
                sys.exit("this server is broken")
            if (FOLDER / "hold").exists():
                block()
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "named", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]}
        case _:
            if params["name"] == "wait":
                block()
            return {"content": [{"type": "text", "text": f"{params['name']} of {NAMES}"}]}


note("start")
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        answer = result(request["method"], request.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}), flush=True)
note("end")
