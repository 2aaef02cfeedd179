"""Whatever bytes come from outside, they are read, or refused by an error of ours: never a traceback.

A hundred inputs for each kind in an ordinary run, made from real ones by small edits; PERSTACK_FUZZ=N tries about N, of
what is quick to read more, and PERSTACK_FUZZ_SEED others. What was once found is kept in `corpus/KIND/`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
import shell_scripts
from fuzzing import MANY, SEED, fuzz, keep
from mcp_types import jsonrpc_message_adapter
from provider_suite import WIRES
from pydantic import JsonValue
from pydantic_core import from_json
from starlette.applications import Starlette
from wire import Said, Wire

from perstack.audit.auditor import verify_any
from perstack.audit.replay import replay_job
from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.core.definitions.permissions import Permissions, RuleSet
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.policy_calls import policy_call
from perstack.definition_files import load_project
from perstack.doors.cli.param_types import (
    read_answer,
    read_error,
    read_moment,
    read_object,
    read_since,
    read_span,
)
from perstack.engine.jobs.reader import JobReader
from perstack.engine.plugins.registry import load_plugins
from perstack.errors import Conflict, PerstackError
from perstack.lockfile.lock import read_lock
from perstack.memory import ExecutionMemory
from perstack.oversight.cloud_events import read_cloud_event
from perstack.ports.storage import RunRef
from perstack.recordings.job_exports import job_document
from perstack.tasks.operation_table import OPERATIONS
from perstack.testing.in_memory_storage import InMemoryStorage, InMemoryStore
from perstack.trust.env_files import read_env
from perstack_base.tools import SPECS
from perstack_mcp import stdio as client_side
from perstack_server.command import offers_roots
from perstack_server.http.routes import routes
from perstack_server.mcp import server as server_side

CORPUS = Path(__file__).parent / "corpus"
HISTORIES = Path(__file__).parents[1] / "histories"

TOML = b"""
model = "m"
maxSteps = 3
include = ["no.toml"]
[provider]
providerName = "anthropic"
[provider.setting]
baseUrl = "https://x.example"
headers = { a = "${B}" }
[experts."@a/b"]
version = "1.0.0"
description = "d"
instruction = '''i'''
delegates = ["c"]
[experts."@a/b".skills.s]
type = "mcpStdioSkill"
command = "npx"
args = ["-y", "x"]
pick = ["t"]
requiredEnv = ["K"]
[experts.c]
instruction = "c"
[experts.c.skills.u]
type = "interactiveSkill"
[experts.c.skills.u.tools.ask]
description = "a"
inputJsonSchema = '{"type": "object"}'
"""
LOCK = b"""
version = 1
[[skills]]
name = "s"
digest = "sha256-x"
[[skills.tools]]
name = "t"
inputSchema = '{"type": "object"}'
"""
ENV = b"# words\nA=1\nexport B='two'\nC=\"th\\nree\"\nD=${A}\n"
BODIES = (
    b'{"taskId": "t", "state": {"a": [1, 2.5, null, "\\ud83d\\ude00"]}, "status": "running"}',
    b'{"reason": "scheduled_wait", "resumeAt": "2030-01-01T00:00:00Z", "message": "m", "dependsOn": ["x"]}',
    b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {"a": true}}',
)
MESSAGES = (
    b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities":'
    b' {"roots": {}}, "clientInfo": {"name": "x", "version": "1"}}}',
    b'{"jsonrpc": "2.0", "id": "a", "method": "server/discover", "params": {"_meta":'
    b' {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}}',
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t", "arguments": {"a": [1, null]}}}',
    b'{"jsonrpc": "2.0", "id": "x", "result": {"content": [{"type": "text", "text": "w"}], "isError": false}}',
    b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 0.5}}',
    b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}}',
)
WORDS = (
    b'{"left": ["a", 2.5, {"b": null}], "text": "\\ud83d\\ude00"}', b"yes: because", b"+5m", b"2026-11-22T08:00", b"7d",
    b"1795325465131", b"true",
)  # fmt: skip


def read_or_refuse(read: Callable[[], object]) -> None:
    """Read, or refused in words."""
    with suppress(PerstackError):
        read()


@pytest.mark.timeout(7200)
def test_a_perstack_toml_of_any_bytes_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "perstack.toml"

    def take(data: bytes) -> None:
        path.write_bytes(data)
        read_or_refuse(lambda: load_project(path))

    fuzz(CORPUS / "toml", (TOML,), take)


@pytest.mark.timeout(7200)
def test_a_perstack_lock_of_any_bytes_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "perstack.lock"

    def take(data: bytes) -> None:
        path.write_bytes(data)
        read_or_refuse(lambda: read_lock(path))

    fuzz(CORPUS / "lock", (LOCK,), take)


@pytest.mark.timeout(7200)
def test_a_file_of_variables_of_any_bytes_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / ".env"

    def take(data: bytes) -> None:
        path.write_bytes(data)
        read_or_refuse(lambda: read_env(tmp_path))

    fuzz(CORPUS / "env", (ENV,), take)


@pytest.mark.timeout(7200)
def test_a_log_with_any_event_is_read_or_refused() -> None:
    logs = [path.read_bytes().splitlines() for path in sorted(HISTORIES.glob("*-1.jsonl"))]
    payloads = tuple({line for log in logs for line in log})
    plugins = load_plugins((), {})

    async def look(first: bytes, second: bytes) -> None:
        storage = InMemoryStorage(InMemoryStore())
        await storage.create_job("job")
        sealed, _ = seal(EMPTY_LOG, [first, second])
        try:
            await storage.append(RunRef("job", "job-1"), 0, sealed)
        except Conflict:
            return  # the storage takes no line that is not an object
        reader = JobReader(storage)

        async def replay(job_id: str) -> None:
            await replay_job(storage, job_id, plugins.skills, Path())

        async def document(job_id: str) -> None:
            await job_document(storage, await reader.job(job_id))

        for ask in (reader.load, reader.job, partial(verify_any, storage), replay, document):
            with suppress(PerstackError):
                await ask("job")

    start = payloads_of(logs[0][0])
    seeds = tuple(payloads_of(line) for line in payloads)

    def take(data: bytes) -> None:
        asyncio.run(look(start, data.replace(b"\n", b" ")))
        asyncio.run(look(data.replace(b"\n", b" "), data.replace(b"\n", b" ")))

    fuzz(CORPUS / "event", seeds, take, 0.1)


def payloads_of(line: bytes) -> bytes:
    """A line of a log as an event of Job `job`, without its chain."""
    event = json.loads(line)
    for key in ("digest", "hash"):
        event.pop(key, None)
    return json.dumps({**event, "jobId": "job", "runId": "job-1"}).encode()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_a_reply_of_any_bytes_is_understood_or_refused(wire: Wire) -> None:
    said = Said(text="Hello", thinking="Hm", calls=(("c1", "a.txt"), ("c2", "b.txt")))
    chunks = wire.reply(said).chunks

    def take(data: bytes) -> None:
        read_or_refuse(lambda: wire.decode([data]))

    fuzz(CORPUS / "reply", (b"".join(chunks),), take, 0.33)


@pytest.mark.timeout(7200)
def test_a_message_of_any_bytes_is_taken_or_passed_over_in_both_directions() -> None:
    def take(data: bytes) -> None:
        offers_roots(data)
        taken = [*client_side._parse_messages(data)[0]]
        with suppress(ValueError):  # which whoever reads the lines passes over
            taken.append(server_side._parse_message(data).message)
        for message in taken:
            # what was taken can be sent on
            line = message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8", "replace")
            jsonrpc_message_adapter.validate_json(line)

    fuzz(CORPUS / "message", MESSAGES, take, 4)


@pytest.mark.timeout(7200)
def test_words_and_json_of_any_bytes_on_the_command_line_are_taken_or_refused() -> None:
    async def keep(value: JsonValue) -> None:
        memory = ExecutionMemory(InMemoryStorage(InMemoryStore()))
        await memory.create("t", start=True)
        await memory.pause("t", "human_input", "?")
        with suppress(PerstackError):
            await memory.answer("t", value)
        assert from_json((await memory.get("t")).to_json())

    def take(data: bytes) -> None:
        typed = data.decode("utf-8", "surrogateescape").lstrip("@")  # a file is another kind, and so is stdin
        if typed == "-":
            return
        for read in (read_object, read_error, read_span, read_since, read_moment):
            read_or_refuse(lambda read=read: read(typed, "WHAT"))
        with suppress(PerstackError):
            value = read_answer(typed, "WHAT")
            asyncio.run(keep(value))
            read_cloud_event(value)

    fuzz(CORPUS / "words", (*WORDS, *BODIES), take, 0.5)


@pytest.mark.timeout(7200)
def test_a_body_of_any_bytes_is_taken_or_refused_by_every_operation() -> None:
    async def ask(paths: list[tuple[str, str]], data: bytes) -> None:
        app = Starlette(routes=routes(ExecutionMemory(InMemoryStorage(InMemoryStore()))))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            for method, path in paths:
                answer = await client.request(method, path, content=data)
                assert answer.status_code < 500, (method, path, answer.text)

    posts = [
        (operation.method, f"/v1/execution{operation.path.replace('{taskId}', 't')}")
        for operation in OPERATIONS
        if operation.method not in ("GET", "DELETE")
    ]
    paths = [("POST", "/v1/execution/tasks"), *posts, ("POST", "/v1/hooks/token")]

    def take(data: bytes) -> None:
        asyncio.run(ask(paths, data))

    fuzz(CORPUS / "body", BODIES, take, 0.05)


PARTS = 4  # which run in parallel
SCRIPTS, RUNS = 625, 90
"""Scripts of one part of an ordinary run, each ruled on for `bash` and for `sh`; how many allowed ones run."""


@pytest.mark.timeout(14400)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_script_that_rules_allow_runs_no_other_program_in_any_shell(tmp_path: Path, part: int) -> None:
    """Each shell that is installed runs what the rules allow: a reader that is wrong about one of them is found out."""
    rules = RuleSet(
        source="perstack.toml [permissions]",
        permissions=Permissions(
            default="deny", allow=(*(f"exec({name} *)" for name in shell_scripts.ALLOWED), "writeTextFile(out)")
        ),
    )
    exec_tool = next(spec for spec in SPECS if spec.name == "exec")
    installed = list(shell_scripts.shells(tmp_path))
    assert installed[0].ran("ls; ./ev"), "a program that no rule allows is not noticed"
    assert installed[0].ran("nosuch"), "a program that does not exist is not noticed"
    assert not installed[0].ran("ls; echo a | cat > out")
    scripts = shell_scripts.Scripts(random.Random(f"script {part} {SEED}"))
    number, most = (round(MANY * 5.5 / PARTS), None) if MANY else (SCRIPTS, RUNS)
    ran: set[tuple[str, str]] = set()
    began = time.monotonic()

    def attack(script: str) -> None:
        for name in ("bash", "sh"):
            call = policy_call(exec_tool, "exec", {"command": name, "args": ["-c", script]})
            if decide_call([rules], call).decision != "allow" or (most is not None and len(ran) >= most):
                continue
            if (name, script) in ran or not shell_scripts.is_safe_to_run(script):
                continue
            ran.add((name, script))
            for shell in installed:
                if (shell.name == "bash") == (name == "bash"):
                    found = shell.ran(script)
                    where = keep(CORPUS / "script", script.encode()) if found and MANY else "the seed"
                    assert not found, f"{shell.name} ran {found!r} of {script!r}, found by {where}"

    for path in sorted((CORPUS / "script").glob("*"))[part::PARTS]:
        attack(path.read_text())
    for _ in range(number):
        attack(scripts.script())
    assert len(ran) >= min(number // 50, most or number), "hardly anything was allowed, so that this shows nothing"
    took = time.monotonic() - began
    print(f"script {part}: {2 * number} rulings, seed {SEED}, {len(ran)} allowed and run, in {took:.0f} s, none found")
