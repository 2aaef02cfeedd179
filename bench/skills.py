"""What MCP servers cost a run, with a lock and without, and what a call of one costs."""

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
    """Print the figures; the environment is one with the scripted model."""
    none, locked_one, one, three = _folder(0), _folder(1), _folder(1), _folder(3, wait=1)
    subprocess.run([PERSTACK, "install"], cwd=locked_one, env=env, check=True, capture_output=True)
    # in turns, so that whatever else the machine does falls on all three alike
    rounds = [[_run(folder, env)[0] for folder in (none, locked_one, one)] for _ in range(9)]
    without, locked, unlocked = (sorted(column)[4] for column in zip(*rounds, strict=True))
    print(
        f"first generation after {without:.3f} s without an MCP server, {locked:.3f} s with a locked one,"
        f" {unlocked:.3f} s with one that is not locked"
    )
    shown = [json.loads(line) for line in _run(three, env)[1]]
    began = min(event["timestamp"] for event in shown if event["type"] == "skillStarting")
    ready = [event["timestamp"] for event in shown if event["type"] == "skillConnected"]
    assert len(ready) == 3
    print(f"three servers that take 1 s each to start are ready within {(max(ready) - began) / 1000:.2f} s")
    bare, ours = asyncio.run(calling())
    print(f"a stdio tool call takes {ours:.2f} ms, through the bare SDK {bare:.2f} ms: {ours - bare:+.2f} ms")


async def calling() -> tuple[float, float]:
    """Milliseconds for one call of the same tool: through the SDK alone, and through a skill's session."""
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
            bare, ours = list[float](), list[float]()
            for _ in range(ROUNDS):
                for _ in range(CALLS):
                    began = time.perf_counter()
                    await client.call_tool("walk", {})
                    bare.append(time.perf_counter() - began)
                for _ in range(CALLS):
                    began = time.perf_counter()
                    await session.call(call)
                    ours.append(time.perf_counter() - began)
    finally:
        await session.close()
    return sorted(bare)[len(bare) // 2] * 1000, sorted(ours)[len(ours) // 2] * 1000


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


def _run(folder: Path, env: Mapping[str, str]) -> tuple[float, list[bytes]]:
    """Seconds to the first generation, and every event."""
    command = [PERSTACK, "run", "bench", "go", "--provider", "scripted"]
    began, first, lines = time.perf_counter(), 0.0, []
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for line in process.stdout or ():
            lines.append(line)
            if not first and b'"type":"startGeneration"' in line:
                first = time.perf_counter() - began
    assert process.returncode == 0
    return first, lines


if __name__ == "__main__":
    skills({**os.environ, "PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"})
