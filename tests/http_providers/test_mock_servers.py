"""Mock servers that others wrote, as second opinions on the formats: each a process of its own on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import provider_suite
import pytest
from npm import installed
from provider_suite import run_at
from wire import READ, Wire
from wire_anthropic import ANTHROPIC
from wire_bedrock import BEDROCK_ANTHROPIC
from wire_google import GOOGLE
from wire_openai import COMPATIBLE, OLLAMA, OPENAI
from wire_vertex import VERTEX_CLAUDE

pytestmark = pytest.mark.timeout(350)  # the first time, packages are installed

SECONDS = 30
HELLO, READS, BUSY = "say hello", "please read", "be busy"
WIRES = {wire.title: wire for wire in provider_suite.WIRES}
SAYS, FOUND, WORDS = "Hello from the mock server.", "The file was read.", "slow down please"


@dataclass(frozen=True)
class Server:
    """How one of them is set up and started."""

    name: str
    prepare: Callable[[Path, Wire], None]
    """Writes what it is to answer."""
    command: Callable[[Path, int], list[str]]
    bases: dict[str, str]
    """What follows the server's address, for each wire that it speaks."""
    script: Callable[[str, str], None] = lambda url, query: None
    """Tells a running server what to answer next, if it takes no file."""
    refuses: bool = True
    """Whether it can answer a request for a stream with an error."""

    def __str__(self) -> str:
        return self.name


def _python(name: str) -> str:
    pytest.importorskip(name, reason=f"{name} is not there: pip install {name}")
    return str(Path(sys.executable).with_name(name))


def _aimock(folder: Path, port: int) -> list[str]:
    program = installed("aimock-1.43.0", ["@copilotkit/aimock@1.43.0"], ["llmock"]) / "llmock"
    return [str(program), "-p", str(port), "-f", str(folder / "fixtures.json"), "--log-level", "silent"]


def _aimock_fixtures(folder: Path, wire: Wire) -> None:
    call = {"id": "call_1", "name": READ, "arguments": {"path": "a"}}
    error = {"error": {"message": WORDS, "type": "rate_limit_error"}, "status": 429}
    fixtures = [
        {"match": {"userMessage": READS, "toolResultContains": "found in a"}, "response": {"content": FOUND}},
        {"match": {"userMessage": READS}, "response": {"toolCalls": [call]}},
        {"match": {"userMessage": BUSY}, "response": error},
        {"match": {"userMessage": HELLO}, "response": {"content": SAYS}},
    ]
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": fixtures}))


def _fakellm_rules(folder: Path, wire: Wire) -> None:
    call = {"name": READ, "arguments": {"path": "a"}}
    rules = [
        {"when": {"messages_contain": READS, "tool_result_contains": "found in a"}, "respond": {"content": FOUND}},
        {"when": {"messages_contain": READS}, "respond": {"tool_calls": [call]}},
        {"when": {"messages_contain": BUSY}, "respond": {"status": 429, "error": WORDS}},
        {"when": {"messages_contain": HELLO}, "respond": {"content": SAYS}},
    ]
    named = [{"name": f"rule{number}", **rule} for number, rule in enumerate(rules)]
    (folder / "fakellm.yaml").write_text(json.dumps({"version": 1, "rules": named}))


def _stubllm_fixtures(folder: Path, wire: Wire) -> None:
    function = {"name": READ, "arguments": '{"path": "a"}'}
    calls = {"tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    answers: list[tuple[str, dict[str, Any]]] = [
        (READS, {"sequence": [calls, {"content": FOUND}]}),
        (BUSY, {"response": {"http_status": 429, "error_message": WORDS}}),
        (HELLO, {"response": {"content": SAYS}}),
    ]
    fixtures = [
        {"name": query, "match": {"messages": [{"role": "user", "content": {"contains": query}}]}, **answer}
        for query, answer in answers
    ]
    (folder / "fixtures.yaml").write_text(json.dumps({"fixtures": fixtures}))


def _llmock_scenario(url: str, query: str) -> None:
    behaviors: dict[str, list[dict[str, Any]]] = {
        HELLO: [{"type": "reply", "text": SAYS}],
        READS: [
            {"type": "reply", "tool_calls": [{"name": READ, "arguments": {"path": "a"}}]},
            {"type": "reply", "text": FOUND},
        ],
        BUSY: [{"type": "fail", "status": 429, "message": WORDS}],
    }
    body = json.dumps({"behaviors": behaviors[query]}).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/_llmock/scenario", body, headers), timeout=SECONDS):
        pass


def _nothing(folder: Path, wire: Wire) -> None:
    """It takes no file."""


def _all_of(*wires: Wire) -> dict[str, str]:
    return {wire.title: wire.base for wire in wires}


SERVERS = (
    # it has no Claude on Vertex AI, and its chunks of InvokeModelWithResponseStream are not as AWS's service model says
    Server(
        "aimock",
        _aimock_fixtures,
        _aimock,
        _all_of(*(wire for wire in provider_suite.WIRES if wire not in (VERTEX_CLAUDE, BEDROCK_ANTHROPIC))),
    ),
    Server(
        "fakellm",
        _fakellm_rules,
        lambda folder, port: [
            _python("fakellm"),
            "serve",
            "--port",
            str(port),
            "--config",
            str(folder / "fakellm.yaml"),
        ],
        _all_of(ANTHROPIC, COMPATIBLE, OLLAMA),
        refuses=False,
    ),
    # its other formats lack what their vendors always send: the start of a block, and the reason of an end
    Server(
        "stubllm",
        _stubllm_fixtures,
        lambda folder, port: [
            *(_python("stubllm"), "serve", "--port", str(port), "--fixture-file", str(folder / "fixtures.yaml"))
        ],
        _all_of(COMPATIBLE, OLLAMA),
    ),
    Server(
        "llmock",
        _nothing,
        lambda folder, port: [_python("llmock"), "serve", "--port", str(port), "--log-level", "error"],
        _all_of(OPENAI, COMPATIBLE, OLLAMA) | {ANTHROPIC.title: "/anthropic", GOOGLE.title: "/gemini"},
        _llmock_scenario,
    ),
)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()[-2000:]
        time.sleep(0.02)  # a poll of another process, bounded above
    pytest.fail(f"it does not listen: {log.read_text()[-2000:]}")


@contextmanager
def _run_server(server: Server, wire: Wire, folder: Path) -> Iterator[str]:
    """Its address; its whole process group is ended after."""
    server.prepare(folder, wire)
    port, log = _free_port(), folder / "log"
    command = server.command(folder, port)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        _until_it_listens(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)


@pytest.mark.parametrize(
    ("server", "wire"),
    [pytest.param(server, WIRES[title], id=f"{server}-{WIRES[title]}") for server in SERVERS for title in server.bases],
)
def test_text_a_tool_and_an_error_of_a_server_that_others_wrote(server: Server, wire: Wire, tmp_path: Path) -> None:
    wire = replace(wire, base=server.bases[wire.title])
    with _run_server(server, wire, tmp_path) as url:
        server.script(url, HELLO)
        job, seen = asyncio.run(run_at(wire, url, HELLO))
        assert (job.status, job.text) == ("completed", SAYS)
        assert "".join(event.delta for event in seen.of("streamText")) == SAYS
        server.script(url, READS)
        job, seen = asyncio.run(run_at(wire, url, READS))
        assert (job.status, job.text, job.total_steps) == ("completed", FOUND, 2)
        (result,) = seen.of("finishToolCall")
        assert (result.tool_name, result.is_error, "found in a" in result.contents[0].text) == (READ, False, True)
        if not server.refuses:
            return
        server.script(url, BUSY)
        job, seen = asyncio.run(run_at(wire, url, BUSY, max_retries=0))
        error = seen.of("errorRun")[0].error
        assert (error.name, error.status_code, error.is_retryable) == ("RateLimit", 429, True)
        assert WORDS in error.message
