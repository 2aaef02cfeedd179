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
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(place)
    connection.sendall(json.dumps(asked).encode())
    connection.shutdown(socket.SHUT_WR)
    output = connection.makefile().read()
sys.exit(output or 0)
