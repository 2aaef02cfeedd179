"""What MCP servers cost a run, with a lock and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

PERSTACK = str(Path(sys.executable).with_name("perstack"))
SERVER = Path(__file__).parents[1] / "tests" / "plugins" / "mcp" / "servers" / "from_file.py"
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
