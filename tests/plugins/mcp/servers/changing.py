"""An MCP server whose tools and instructions change. Its argument is a folder.

`lists.json` has the lists of tools, and `instructions.json` the instructions, by turn. The file `turn` has its number.
The tool `turn` begins the next one and announces it. Each call is noted in `notes`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])


def of_turn(name: str):
    values = json.loads((FOLDER / name).read_text())
    turn = FOLDER / "turn"
    return values[min(int(turn.read_text()) if turn.exists() else 0, len(values) - 1)]


def send(**message) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(name: str, args: dict) -> dict:
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{name} {json.dumps(args)}\n")
    if name == "turn":
        turn = FOLDER / "turn"
        turn.write_text(str(int(turn.read_text()) + 1 if turn.exists() else 1))
        send(method="notifications/tools/list_changed")
    return {"content": [{"type": "text", "text": f"{name} was called"}]}


def result(method: str, params: dict) -> dict:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "changing", "version": "1"},
                "instructions": of_turn("instructions.json"),
            }
        case "tools/list":
            return {"tools": of_turn("lists.json")}
        case _:
            return call(params["name"], params.get("arguments", {}))


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        send(id=request["id"], result=result(request["method"], request.get("params", {})))
