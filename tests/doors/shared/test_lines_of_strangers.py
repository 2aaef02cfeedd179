"""Input of `perstack mcp` and `perstack acp` that is not a message costs one line on stderr."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

import pytest
import warm
from terminal import SECONDS, Terminal

from perstack.doors.shared.stdio import MAX_MESSAGE_BYTES

HELLO = {
    "mcp": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    "acp": {"protocolVersion": 1, "clientCapabilities": {}},
}
SERVERS = ["mcp", pytest.param("acp", marks=pytest.mark.skipif(find_spec("acp") is None, reason="needs perstack[acp]"))]
DEEP = b"[" * 20_000
LONG = b"x" * (MAX_MESSAGE_BYTES + (1 << 20))
BAD = (
    DEEP,
    b'{"jsonrpc": "2.0", "id": 2, "method": "x", "params": {"a": ' + DEEP,
    b'{"jsonrpc": "2.0", "id": 2, "method": "x", "params": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
    b'{"jsonrpc": "2.0", "id": ' + b"9" * 5000 + b', "method": "x", "params": {}}',
    b'{"jsonrpc": "2.0", "id": "\\ud800", "method": "x", "params": {}}',
    b"\xff\xfe\x00",
    b"[]",
    b"null",
    b"1e999",
    b"nonsense " * 1000,
)


def start_server(terminal: Terminal, server: str) -> subprocess.Popen[bytes]:
    terminal.project('[experts.one]\ninstruction = "x"\n')
    return warm.perstack(
        *(server, "--provider", "scripted"),
        cwd=terminal.workspace,
        env=terminal.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def hello(server: str, request_id: object = 1) -> bytes:
    message = {"jsonrpc": "2.0", "id": request_id, "method": "initialize", "params": HELLO[server]}
    return json.dumps(message).encode()


def served(terminal: Terminal, server: str, lines: Sequence[bytes], answers: int) -> tuple[list[dict], list[str]]:
    """Return a server's answers to these lines, and what it writes to stderr until it ends successfully."""
    process = start_server(terminal, server)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"".join(line + b"\n" for line in lines))
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended first
    told = [json.loads(process.stdout.readline()) for _ in range(answers)]
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (0, b"")
    return told, err.decode().splitlines()


@pytest.mark.parametrize("server", SERVERS)
def test_lines_that_are_no_message_are_named_and_what_follows_is_answered(terminal: Terminal, server: str) -> None:
    lines = (hello(server), *BAD, hello(server, 3))
    told, said = served(terminal, server, lines, 2)
    assert [message["id"] for message in told] == [1, 3]
    assert len(said) == len(BAD)
    for line in said:
        assert line.startswith(f"perstack: stdin: a line is not {server.upper()}, and is ignored: ")
        assert len(line) < 300


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("opening", [DEEP, b'{"id": "\\ud800", ' + hello("mcp")[1:].replace(b'"id": 1, ', b"")])
def test_a_first_line_that_is_no_message_is_named_and_what_follows_is_answered(
    terminal: Terminal, server: str, opening: bytes
) -> None:
    told, (said,) = served(terminal, server, (opening, hello(server)), 1)
    assert told[0]["id"] == 1
    assert "is ignored" in said


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("before", [(), ("hello",)])
def test_a_message_without_end_ends_the_server_in_one_line(
    terminal: Terminal, server: str, before: tuple[str, ...]
) -> None:
    told, said = served(terminal, server, (*(hello(server) for _ in before), LONG), len(before))
    assert [message["id"] for message in told] == [1] * len(before)
    assert said == ["perstack: the client sent a message of more than 64 MB: the server stops"]
