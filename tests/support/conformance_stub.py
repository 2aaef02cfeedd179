"""The command that the MCP conformance suite starts for each scenario; see `conformance_client.py`."""

import json
import os
import socket
import sys

_, place, endpoint = sys.argv
asked = {
    "endpoint": endpoint,
    "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
    "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
}
with socket.socket(socket.AF_UNIX) as there:
    there.connect(place)
    there.sendall(json.dumps(asked).encode())
    there.shutdown(socket.SHUT_WR)
    words = there.makefile().read()
sys.exit(words or 0)
