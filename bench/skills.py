"""Cost of MCP servers per run, with and without a lock, and of a call of one of their tools."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from perstack.core.definitions.skills import McpStdioSkill
from perstack.ports.skill import SkillContext, ToolCall
from perstack_mcp.plugin import McpSkillFactory

PERSTACK = str(Path(sys.executable).with_name("perstack"))
SERVER = Path(__file__).parents[1] / "tests" / "plugins" / "mcp" / "servers" / "from_file.py"
CALLS, ROUNDS = 50, 20
TOOL = {"name": "walk", "inputSchema": {"type": "object", "properties": {}}}


def skills(env: Mapping[str, str]) -> None:
    """Print the figures; `env` selects the scripted model."""
    without_server, with_locked, with_unlocked, with_three = _folder(0), _folder(1), _folder(1), _folder(3, wait=1)
    install = [PERSTACK, "install"]
    subprocess.run(install, cwd=with_locked, env=_trusting(with_locked, env), check=True, capture_output=True)
    # In turn, so that other load on the machine affects all three equally.
    rounds = [[_run(folder, env)[0] for folder in (without_server, with_locked, with_unlocked)] for _ in range(9)]
    without_s, locked_s, unlocked_s = (sorted(column)[4] for column in zip(*rounds, strict=True))
    print(
        f"first generation after {without_s:.3f} s without an MCP server, {locked_s:.3f} s with a locked one,"
        f" {unlocked_s:.3f} s with one that is not locked"
    )
    events = [json.loads(line) for line in _run(with_three, env)[1]]
    began = min(event["timestamp"] for event in events if event["type"] == "skillStarting")
    ready = [event["timestamp"] for event in events if event["type"] == "skillConnected"]
    assert len(ready) == 3
    print(f"three servers that take 1 s each to start are ready within {(max(ready) - began) / 1000:.2f} s")
    sdk_ms, skill_ms = asyncio.run(measure_calls())
    print(
        f"a stdio tool call takes {skill_ms:.2f} ms, through the bare SDK {sdk_ms:.2f} ms: {skill_ms - sdk_ms:+.2f} ms"
    )


async def measure_calls() -> tuple[float, float]:
    """Return the milliseconds of a call of one tool: through the SDK alone, and through a skill's session."""
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters

    folder = _folder(0)
    args = [str(SERVER), str(folder / "tools.json"), str(folder / "notes")]
    definition = McpStdioSkill(name="bench", command=sys.executable, args=tuple(args))
    session = await McpSkillFactory().open(definition, SkillContext(folder, "job", os.environ))
    call = ToolCall("walk", {}, "key", "run", "bench", _NoBlobs(), lambda line: None)
    try:
        await session.tools()
        async with Client(StdioServerParameters(command=sys.executable, args=args), mode="legacy") as client:
            sdk_times, skill_times = list[float](), list[float]()
            for _ in range(ROUNDS):
                for _ in range(CALLS):
                    began = time.perf_counter()
                    await client.call_tool("walk", {})
                    sdk_times.append(time.perf_counter() - began)
                for _ in range(CALLS):
                    began = time.perf_counter()
                    await session.call(call)
                    skill_times.append(time.perf_counter() - began)
    finally:
        await session.close()
    return sorted(sdk_times)[len(sdk_times) // 2] * 1000, sorted(skill_times)[len(skill_times) // 2] * 1000


class _NoBlobs:
    async def put(self, data: bytes) -> str:
        raise AssertionError

    async def get(self, sha256: str) -> bytes:
        raise AssertionError


def _folder(servers: int, wait: int = 0) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perstack-bench-"))
    (folder / "tools.json").write_text(json.dumps([TOOL]))
    (folder / "script.json").write_text(json.dumps({"experts": {"[[bench]]": {"turns": [{"text": "done"}]}}}))
    toml = '[experts.bench]\ninstruction = "[[bench]]"\n'
    for number in range(servers):
        line = f"sleep {wait}; exec {sys.executable} {SERVER} tools.json notes-{number}"
        toml += f'[experts.bench.skills.s{number}]\ntype = "mcpStdioSkill"\ncommand = "sh"\n'
        toml += f"args = {json.dumps(['-c', line])}\n"
    (folder / "perstack.toml").write_text(toml)
    return folder


def _trusting(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    return {**env, "PERSTACK_TRUST": str(folder)}


def _run(folder: Path, env: Mapping[str, str]) -> tuple[float, list[bytes]]:
    """Return the seconds to the first generation, and all events."""
    command = [PERSTACK, "run", "bench", "go", "--provider", "scripted"]
    began, first_generation_s, lines = time.perf_counter(), 0.0, []
    env = _trusting(folder, env)
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for line in process.stdout or ():
            lines.append(line)
            if not first_generation_s and b'"type":"startGeneration"' in line:
                first_generation_s = time.perf_counter() - began
    assert process.returncode == 0
    return first_generation_s, lines


if __name__ == "__main__":
    skills({**os.environ, "PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"})
