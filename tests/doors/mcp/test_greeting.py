"""The answer that is given before the SDK is imported is the SDK's own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from editor import Pipe
from hosts import wait_for
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, jsonrpc_message_adapter
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from terminal import Terminal

from perstack.config.load import load_project
from perstack.host import Host
from perstack_server.mcp.greeting import HANDSHAKE_VERSIONS, STATELESS_VERSIONS, greet
from perstack_server.mcp.server import build_server
from perstack_server.mcp.workspaces import ServeOptions, serve_projects

INFO = {"name": "client", "version": "1"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    "io.modelcontextprotocol/clientInfo": INFO,
}


def request(method: str, request_id: object = 1, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()


def initialize(version: str) -> bytes:
    return request("initialize", protocolVersion=version, capabilities={"roots": {}}, clientInfo=INFO)


def said_by_the_sdk(workspace: Path, line: bytes) -> dict[str, object]:
    async def ask() -> dict[str, object]:
        (workspace / "perstack.toml").write_text('[experts.one]\ninstruction = "x"\n')
        loaded = load_project(workspace / "perstack.toml")
        to_server, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](1)
        outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](1)
        async with serve_projects(ServeOptions((Host(loaded.project, workspace=workspace), loaded))) as workspaces:
            server = build_server(workspaces)
            running = asyncio.create_task(server.run(incoming, outgoing, server.create_initialization_options()))
            await to_server.send(SessionMessage(jsonrpc_message_adapter.validate_json(line)))
            answer = (await from_server.receive()).message
            to_server.close()
            await running
            from_server.close()
        assert isinstance(answer, JSONRPCResponse)
        return answer.model_dump(by_alias=True, exclude_unset=True)

    return wait_for(ask())


@pytest.mark.parametrize("version", [*HANDSHAKE_PROTOCOL_VERSIONS, "2026-07-28", "1999-01-01"])
def test_a_handshake_is_answered_as_the_sdk_would(tmp_path: Path, version: str) -> None:
    line = initialize(version)
    reply = greet(line)
    assert reply is not None
    assert json.loads(reply.line) == said_by_the_sdk(tmp_path, line)


def test_the_question_who_one_is_is_answered_as_the_sdk_would(tmp_path: Path) -> None:
    line = request("server/discover", "a", _meta=META)
    reply = greet(line)
    assert reply is not None
    assert reply.line.endswith(b"\n")
    assert json.loads(reply.line) == said_by_the_sdk(tmp_path, line)


def test_the_revisions_are_those_of_the_sdk() -> None:
    assert HANDSHAKE_VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert STATELESS_VERSIONS == MODERN_PROTOCOL_VERSIONS


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[]",
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        request("tools/list", _meta=META),
        request("initialize", True, protocolVersion="2025-11-25", capabilities={}, clientInfo=INFO),
        request("initialize", protocolVersion=1, capabilities={}, clientInfo=INFO),
        request("initialize"),
        request("server/discover"),
        request("server/discover", _meta={**META, "io.modelcontextprotocol/protocolVersion": "2031-01-01"}),
    ],
)
def test_what_is_no_well_formed_opening_is_left_to_the_sdk(line: bytes) -> None:
    assert greet(line) is None


def test_an_opening_is_answered_once_and_a_wrong_one_with_the_sdks_error(terminal: Terminal) -> None:
    client = Pipe(terminal)
    client.write("initialize", 3)
    assert client.read()["error"]["code"] == -32602
    client.greet()
    client.call(4, "list_jobs")
    assert client.answer_to(4)["result"]["structuredContent"] == {"jobs": []}
    assert client.close() == (0, "")
    assert [json.loads(line).get("id") for line in client.seen] == [3, 0, 4]


def test_nothing_heavy_is_imported_before_the_first_answer(terminal: Terminal) -> None:
    code = (
        "import sys\n"
        "from perstack.doors.shared import stdio as wire\n"
        "write = wire.ProtocolStdio.write\n"
        "def spy(self, line):\n"
        "    heavy = {'mcp', 'mcp_types', 'asyncio', 'anyio', 'httpx', 'pluggy', 'perstack.host'}\n"
        "    heavy |= {'perstack.core.runs.events', 'perstack.core.jobs.summary', 'perstack.config.settings'}\n"
        "    print('before the first answer:', sorted(heavy & set(sys.modules)), file=sys.stderr, flush=True)\n"
        "    write(self, line)\n"
        "    raise SystemExit(0)\n"
        "wire.ProtocolStdio.write = spy\n"
        "sys.argv = ['perstack', 'mcp']\n"
        "from perstack.doors.cli.main import entry\n"
        "entry()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=terminal.workspace,
        env=terminal.env,
        input=initialize("2025-11-25") + b"\n",
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stderr.decode() == "before the first answer: []\n"
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "perstack"
