"""Agent programs, written by others, call an Expert with the settings that `perstack mcp --print-config` prints.

Their models are fakes on loopback. Each lives in a home of its own, and what they would say to their makers is off.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from fake_model import FakeModel, serving_model
from npm import installed
from terminal import SECONDS, Terminal, reply

pytestmark = pytest.mark.others

NO_WAY_OUT = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
PROMPT = "Ask solo for the note"
FOUND = "the note says: buy lemons"


@dataclass(frozen=True)
class Home:
    """An agent's home folder, and the settings to put into it."""

    folder: Path
    settings: str
    """The settings as printed by `--print-config`."""
    server_env: dict[str, str]
    """Environment that the server needs to run on a script."""
    model_url: str


@dataclass(frozen=True)
class Agent:
    """An agent program, and how to configure it."""

    client: str
    """The client's name for `--print-config`."""
    package: str
    command: str
    args: tuple[str, ...]
    tool: str
    prepare: Callable[[Home], dict[str, str]]
    """Writes the settings where the agent reads them, and returns variables for the agent."""
    namespace: str | None = None

    def __str__(self) -> str:
        return self.client


def _claude_code(home: Home) -> dict[str, str]:
    (home.folder / ".mcp.json").write_text(home.settings)
    return {
        "ANTHROPIC_BASE_URL": home.model_url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }


def _codex(home: Home) -> dict[str, str]:
    settings: dict[str, Any] = tomllib.loads(home.settings)
    # it hands few variables on, nobody is there to approve of the call, and a slow machine must not change the outcome
    own = {"env": home.server_env, "default_tools_approval_mode": "approve", "required": True}
    settings["mcp_servers"]["perstack"] |= own
    fake = {"name": "fake", "base_url": f"{home.model_url}/v1", "env_key": "FAKE_KEY", "wire_api": "responses"}
    settings |= {"model_provider": "fake", "model": "fake", "model_providers": {"fake": fake}}
    settings |= {"check_for_update_on_startup": False, "analytics": {"enabled": False}}
    (home.folder / ".codex").mkdir()
    (home.folder / ".codex" / "config.toml").write_text(tomli_w.dumps(settings))
    return {"FAKE_KEY": "none"}


def _opencode(home: Home) -> dict[str, str]:
    settings: dict[str, Any] = json.loads(home.settings)
    options = {"baseURL": f"{home.model_url}/v1", "apiKey": "none"}
    fake = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"fake": {}}}
    settings |= {"provider": {"fake": fake}, "model": "fake/fake", "small_model": "fake/fake", "share": "disabled"}
    (home.folder / "opencode.json").write_text(json.dumps(settings))
    return {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }


def _gemini(home: Home) -> dict[str, str]:
    settings: dict[str, Any] = json.loads(home.settings)
    settings |= {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}
    settings |= {"general": {"enableAutoUpdate": False, "disableAutoUpdate": True}, "tools": {"useRipgrep": False}}
    (home.folder / ".gemini").mkdir()
    (home.folder / ".gemini" / "settings.json").write_text(json.dumps(settings))
    return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": home.model_url, "GEMINI_TELEMETRY_ENABLED": "false"}


AGENTS = (
    Agent(
        "claude-code",
        "@anthropic-ai/claude-code@2.1.329",
        "claude",
        ("-p", PROMPT, "--mcp-config", ".mcp.json", "--strict-mcp-config", "--allowedTools", "mcp__perstack__solo"),
        "mcp__perstack__solo",
        _claude_code,
    ),
    Agent(
        "codex",
        "@openai/codex@0.169.0",
        "codex",
        ("exec", "--skip-git-repo-check", "--sandbox", "read-only", PROMPT),
        "solo",
        _codex,
        namespace="mcp__perstack",
    ),
    Agent("opencode", "opencode-ai@1.18.33", "opencode", ("run", "--pure", PROMPT), "perstack_solo", _opencode),
    Agent(
        "gemini",
        "@google/gemini-cli@0.61.0",
        "gemini",
        ("--skip-trust", "--approval-mode", "yolo", "--model", "gemini-2.5-flash", "--prompt", PROMPT),
        "mcp_perstack_solo",
        _gemini,
    ),
)


@pytest.fixture
def home(terminal: Terminal) -> Iterator[Path]:
    """Yield an agent's home, its project folder. Fail if any process remains in it."""
    yield terminal.workspace
    end = time.monotonic() + SECONDS
    while pids := _living_in(terminal.workspace):
        if time.monotonic() > end:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            pytest.fail("the agent, or its server, was still there a minute after its end")
        time.sleep(0.02)  # a poll of other processes, bounded above


def _living_in(home: Path) -> list[int]:
    mark = f"HOME={home}".encode()
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return pids


def run(agent: Agent, terminal: Terminal, home: Path, settings: str) -> None:
    """Run an agent that calls an Expert, and check that it repeats the result, of a Job in its project."""
    cache = agent.package.rpartition("/")[2].replace("@", "-")
    program = installed(cache, (agent.package,), (agent.command,)) / agent.command
    terminal.script(**{"[[solo]]": [reply("", ("readTextFile", {"path": "notes.txt"})), reply(FOUND)]})
    with serving_model(FakeModel(agent.tool, FOUND, agent.namespace)) as model:
        variables = agent.prepare(Home(home, settings, terminal.env, model.url))
        done = subprocess.run(
            [str(program), *agent.args],
            cwd=home,
            env={**terminal.env, "HOME": str(home), **NO_WAY_OUT, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert f"The Expert says: {FOUND}" in done.stdout, done.stdout + done.stderr
    (job,) = terminal.call("jobs", "--json").events
    assert (job["expertKey"], job["query"], job["status"]) == ("solo", "Read the note", "completed")


def printed(terminal: Terminal, agent: Agent) -> str:
    result = terminal.run("mcp", "--print-config", agent.client, "--provider", "scripted")
    assert result.code == 0, result.err
    return result.out


@pytest.mark.timeout(350)  # the first time, the agent is installed
@pytest.mark.parametrize("agent", AGENTS, ids=str)
def test_an_agent_program_calls_an_expert_and_tells_its_result(terminal: Terminal, home: Path, agent: Agent) -> None:
    run(agent, terminal, home, printed(terminal, agent))


@pytest.mark.timeout(350)
@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent.client in ("claude-code", "gemini")], ids=str)
def test_an_agent_that_names_no_workspace_is_served_the_folder_that_it_has_open(
    terminal: Terminal, home: Path, agent: Agent
) -> None:
    settings: dict[str, Any] = json.loads(printed(terminal, agent))
    server = settings["mcpServers"]["perstack"]
    place = server["args"].index("--workspace")
    command = [server["command"], *server["args"][:place], *server["args"][place + 2 :]]
    server |= {"command": "sh", "args": ["-c", 'cd / && exec "$0" "$@"', *command]}
    run(agent, terminal, home, json.dumps(settings))
