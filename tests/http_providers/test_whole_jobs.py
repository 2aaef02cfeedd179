"""Whole Jobs at each provider: through the command line, over a crash, with files, and with what they cost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import warm
from hosts import Seen
from pages import rows
from pictures import picture
from provider_matrix import PAGE
from provider_suite import WIRES, host_in
from terminal import Terminal
from wire import KEY, Said, Wire
from wire_anthropic import ANTHROPIC
from wire_bedrock import BEDROCK
from wire_google import GOOGLE
from wire_openai import COMPATIBLE, DEEPSEEK, OPENAI
from wire_vertex import VERTEX, VERTEX_CLAUDE

from perstack.core.jobs.job import Job
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply

SERVER = Path(__file__).parents[1] / "plugins" / "mcp" / "servers" / "misbehaving.py"
PNG = picture()
PNG_OF_SERVER = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF = b"%PDF-1.7\n" + bytes(64)
DONE = Said("Done.")


def _project(terminal: Terminal, wire: Wire, url: str, **skills: dict[str, Any]) -> None:
    """A project on the wire's provider at `url`, with its credentials in the environment."""
    config = wire.config(url)
    provider = {"providerName": wire.factory.name, "setting": config.setting}
    experts = {"a": {"instruction": "You are terse.", "skills": skills}}
    terminal.project(tomli_w.dumps({"model": wire.model, "provider": provider, "experts": experts}))
    terminal.env = {name: terminal.env[name] for name in ("PATH", "PERSTACK_TRUST", "XDG_STATE_HOME")} | config.env


async def _run(terminal: Terminal, *args: str) -> list[dict[str, Any]]:
    """A command in a process of its own, which has to succeed; its events."""
    done = await asyncio.to_thread(terminal.run, *args)
    assert done.code == 0, done.out + done.err
    return done.events


def _killed_while_the_model_works(terminal: Terminal, step: int) -> list[dict[str, Any]]:
    """The events of a Run whose process is killed in the generation of a step."""
    events: list[dict[str, Any]] = []
    command = warm.perstack("run", "a", "hi", cwd=terminal.workspace, env=terminal.env, stdout=subprocess.PIPE)
    with command as process:
        assert process.stdout
        for line in process.stdout:
            events.append(json.loads(line))
            if (events[-1]["type"], events[-1].get("stepNumber")) == ("startGeneration", step):
                process.kill()
                break
    assert process.returncode != 0
    return events


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.kept], ids=str)
def test_a_job_whose_process_was_killed_goes_on_with_its_reasoning_in_another(wire: Wire, terminal: Terminal) -> None:
    (terminal.workspace / "b").write_text("found in b")
    thinks = Said(thinking="Hm, yes.", calls=(("c1", "b"),))
    hangs = PreparedReply(headers=wire.reply(DONE).headers, ending="hang")

    async def scenario() -> tuple[Job, list[bytes]]:
        async with FakeEndpoint(wire.reply(thinks), hangs) as endpoint:
            _project(terminal, wire, endpoint.url)
            events = await asyncio.to_thread(_killed_while_the_model_works, terminal, 2)
            endpoint.replies = [wire.reply(DONE)]
            async with host_in(terminal.workspace, wire, endpoint.url) as host:
                job = await host.resume(events[0]["jobId"])
            return job, [endpoint.asked[0].body, endpoint.asked[-1].body]

    job, (first, last) = asyncio.run(scenario())
    assert (job.status, job.text, job.total_steps) == ("completed", "Done.", 2)
    assert wire.unmarked(last).startswith(wire.unmarked(first))
    assert "found in b" in last.decode()
    compact = json.dumps(json.loads(last), ensure_ascii=False, separators=(",", ":"))
    assert all(words in compact for words in wire.kept.values())


def _is_shown(wire: Wire, row: str) -> bool:
    """Whether docs/provider-matrix.md says that the model is shown the content itself."""
    cells = {cells[0]: cells[1:] for cells in rows(PAGE.read_text())}
    return cells[row][WIRES.index(wire)] != "as a line of text"


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_files_that_tools_read_reach_the_model_and_are_kept_once(wire: Wire, terminal: Terminal) -> None:
    (terminal.workspace / "a.png").write_bytes(PNG)
    (terminal.workspace / "a.pdf").write_bytes(PDF)
    script = (
        Said(calls=(("c1", "a.png"), ("c2", "a.png")), tool="readImageFile"),
        Said(calls=(("c3", "a.pdf"),), tool="readPdfFile"),
        DONE,
    )

    async def scenario() -> tuple[Seen, str]:
        async with FakeEndpoint(*map(wire.reply, script)) as endpoint:
            seen = Seen()
            async with host_in(terminal.workspace, wire, endpoint.url) as host:
                job = await host.run("a", "look", on_event=seen)
            assert (job.status, job.text) == ("completed", "Done.")
            return seen, endpoint.asked[-1].body.decode()

    seen, sent = asyncio.run(scenario())
    for content, kind, row, times in (
        (PNG, "image/png", "Images that a tool returns", 2),
        (PDF, "application/pdf", "PDFs that a tool returns", 1),
    ):
        base64 = b64encode(content).decode()
        assert sent.count(base64) == (times if _is_shown(wire, row) else 0)
        if not _is_shown(wire, row):
            assert f"{kind}, {len(content)} bytes" in sent
        assert base64.encode() not in b"".join(seen.lines)
    (job,) = terminal.jobs().iterdir()
    kept = [path.read_bytes() for path in (job / "blobs").iterdir()]
    tools = [blob for blob in kept if blob.startswith(b'[{"name":"attemptCompletion"')]
    assert len(tools) == 1  # what the model was offered is kept once, too
    assert sorted(blob for blob in kept if blob not in tools) == sorted([PDF, PNG])


@pytest.mark.parametrize("wire", [ANTHROPIC, OPENAI, COMPATIBLE, GOOGLE, BEDROCK], ids=str)
def test_files_that_an_mcp_server_returns_reach_the_model(wire: Wire, terminal: Terminal) -> None:
    skill = {"type": "mcpStdioSkill", "command": sys.executable, "args": [str(SERVER), "none"]}

    async def scenario() -> str:
        asks = Said(calls=(("c1", "x"),), tool="mixed")
        async with asyncio.timeout(60), FakeEndpoint(wire.reply(asks), wire.reply(DONE)) as endpoint:
            _project(terminal, wire, endpoint.url, bad=skill)
            await _run(terminal, "run", "a", "look")
            return endpoint.asked[-1].body.decode()

    sent = asyncio.run(scenario())
    files = ("Images that a tool returns", "PDFs that a tool returns")
    media = (PNG_OF_SERVER, b64encode(b"%PDF-bytes").decode())
    assert [data in sent for data in media] == [_is_shown(wire, row) for row in files]
    assert "audio/wav, 5 bytes" in sent, "which no vendor is sent"


PRICED = (ANTHROPIC, OPENAI, GOOGLE, DEEPSEEK, VERTEX, VERTEX_CLAUDE, BEDROCK)


@pytest.mark.parametrize("wire", PRICED, ids=str)
def test_a_job_tells_what_it_cost_and_how_full_its_context_is(wire: Wire, terminal: Terminal) -> None:
    async def scenario() -> tuple[Job, Seen]:
        async with FakeEndpoint(wire.reply(Said(calls=(("c1", "b"),))), wire.reply(DONE)) as endpoint:
            seen = Seen()
            async with host_in(terminal.workspace, wire, endpoint.url) as host:
                return await host.run("a", "hi", on_event=seen), seen

    job, seen = asyncio.run(scenario())
    first, last = seen.of("finishGeneration")
    assert last.usage.cost_usd
    assert job.usage.cost_usd == pytest.approx(2 * last.usage.cost_usd)
    place = seen.of("finishRun")[0].checkpoint_id
    checkpoint = json.loads(terminal.call("log", "--checkpoint", place, "--json").out)
    assert (last.usage.total_tokens, checkpoint["usage"]["totalTokens"]) == (150, 300)
    share = round(150 / first.context_window, 4)
    assert checkpoint["contextWindowUsage"] == share, "of the last generation, not of all"


def test_keys_may_stand_in_files_which_never_come_before_the_environment(terminal: Terminal) -> None:
    files = {".env": "from-env", ".env.local": "from-local", "mine.env": "from-mine"}
    for name, key in files.items():
        (terminal.workspace / name).write_text(f"ANTHROPIC_API_KEY={key}\n")

    async def scenario() -> list[str]:
        async with asyncio.timeout(60), FakeEndpoint(ANTHROPIC.reply(DONE)) as endpoint:
            _project(terminal, ANTHROPIC, endpoint.url)
            await _run(terminal, "run", "a", "hi")
            del terminal.env["ANTHROPIC_API_KEY"]
            await _run(terminal, "run", "a", "hi")
            await _run(terminal, "run", "a", "hi", "--env-path", "mine.env")
            (terminal.workspace / ".env.local").unlink()
            await _run(terminal, "run", "a", "hi")
            return [asked.headers["x-api-key"] for asked in endpoint.asked]

    assert asyncio.run(scenario()) == [KEY, "from-local", "from-mine", "from-env"]


@pytest.mark.parametrize("wire", [ANTHROPIC, BEDROCK], ids=str)
def test_every_status_that_may_pass_is_tried_again_in_one_step(wire: Wire, terminal: Terminal) -> None:
    statuses = (408, 409, 424, 429, 500, 502, 503, 504, 529)
    half = wire.reply(Said("Half a reply"))
    cut = PreparedReply(half.chunks[:4], headers=half.headers, ending="cut")
    failing = [wire.error_reply(status, "later", **{"retry-after": "0"}) for status in statuses]

    async def scenario() -> tuple[Job, Seen]:
        async with FakeEndpoint(cut, *failing, wire.reply(DONE)) as endpoint:
            seen = Seen()
            async with host_in(terminal.workspace, wire, endpoint.url, max_retries=20) as host:
                return await host.run("a", "hi", on_event=seen), seen

    job, seen = asyncio.run(scenario())
    retries = seen.of("retry")
    assert [event.error.status_code for event in retries] == [None, *statuses]
    assert [event.attempt for event in retries] == list(range(1, 11))
    assert (retries[0].error.name, retries[1].delay_ms, job.text, job.total_steps) == ("CutStream", 0, "Done.", 1)
    assert job.usage.total_tokens == 150, "of the one that was whole"


def test_a_server_that_cannot_be_reached_is_tried_again(terminal: Terminal) -> None:
    async def scenario() -> list[dict[str, Any]]:
        async with FakeEndpoint() as gone:
            url = gone.url
        _project(terminal, ANTHROPIC, url)
        done = await asyncio.to_thread(terminal.run, "run", "a", "hi", "--max-retries", "1")
        assert done.code == 1
        return done.events

    events = asyncio.run(scenario())
    (retry,) = (event for event in events if event["type"] == "retry")
    assert (retry["error"]["name"], retry["attempt"]) == ("ConnectError", 1)
    assert 250 <= retry["delayMs"] <= 500
    assert (events[-1]["type"], events[-1]["error"]["name"]) == ("errorRun", "ConnectError")


@pytest.mark.parametrize("wire", [GOOGLE, VERTEX, COMPATIBLE, OPENAI, ANTHROPIC], ids=str)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[" * 300 + "]" * 300, "they have more than 100 levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "they have more than 100 levels"),
        ("9" * 5000, ""),
    ],
    ids=["300 lists", "900 objects", "5,000 digits"],
)
def test_arguments_that_no_log_holds_are_refused_and_the_reply_is_paid_for_once(
    wire: Wire, value: str, words: str, terminal: Terminal
) -> None:
    called = wire.reply(Said(calls=(("c1", "QQQQ"),)))
    as_text = json.dumps(value)[1:-1].encode() + rb",\"z\":\"QQ"
    chunks = tuple(one.replace(rb"\"QQ", as_text).replace(b'"QQQQ"', value.encode()) for one in called.chunks)

    async def scenario() -> tuple[list[dict[str, Any]], int]:
        async with FakeEndpoint(PreparedReply(chunks, headers=called.headers), wire.reply(DONE)) as endpoint:
            _project(terminal, wire, endpoint.url)
            return await _run(terminal, "run", "a", "hi"), len(endpoint.asked)

    events, requests = asyncio.run(scenario())
    (result,) = [event for event in events if event["type"] == "finishToolCall"]
    assert (result["isError"], requests) == (True, 2)
    assert words in json.dumps(result["contents"])
    assert not [event for event in events if event["type"] == "retry"]
    assert all(event["usage"]["totalTokens"] for event in events if event["type"] == "finishGeneration")
