"""An MCP server in plain Python whose tool `hostile` answers with the result in the file that is its argument."""

from __future__ import annotations

import json
import sys
from pathlib import Path

RESULT = Path(sys.argv[1]).read_text()
OBJECT = {"type": "object", "properties": {}}
TEXT = {"content": [{"type": "text", "text": "marker42"}]}
INFO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "h", "version": "1"}}
ANSWERS = {
    "initialize": INFO,
    "tools/list": {"tools": [{"name": n, "inputSchema": OBJECT} for n in ("hello", "hostile")]},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    is_hostile = message["method"] == "tools/call" and message["params"]["name"] == "hostile"
    result = RESULT if is_hostile else json.dumps(ANSWERS.get(message["method"], TEXT))
    print(f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {result}}}', flush=True)
