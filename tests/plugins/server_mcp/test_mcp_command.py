"""`perstack mcp` on the command line: settings to print, and mistakes."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
from click import Option
from editor import connected
from hosts import wait_for
from terminal import Terminal

from perstack_server.command import mcp_command
from perstack_server.mcp.client_config import CLIENTS

SHAPES = {
    "claude-code": ("mcpServers", "perstack"),
    "codex": ("mcp_servers", "perstack"),
    "cursor": ("mcpServers", "perstack"),
    "vscode": ("servers", "perstack"),
    "zed": ("context_servers", "perstack"),
    "gemini": ("mcpServers", "perstack"),
    "opencode": ("mcp", "perstack"),
}


FIELDS: dict[str, dict[str, object]] = {
    "claude-code": {"type": "stdio"},
    "codex": {"tool_timeout_sec": 3600, "startup_readiness": "catalog"},
    "cursor": {"type": "stdio"},
    "vscode": {"type": "stdio"},
    "zed": {"env": {}, "timeout": 600},
    "gemini": {"timeout": 3_600_000},
    "opencode": {"type": "local", "enabled": True, "timeout": 60_000},
}
"""Fields besides the command, as documented by each client or found in its source in November 2026."""


def printed(terminal: Terminal, client: str, *args: str) -> list[str]:
    """Return the command line in a client's printed settings."""
    result = terminal.run("mcp", "--print-config", client, *args)
    assert result.code == 0, result.err
    settings = tomllib.loads(result.out) if client == "codex" else json.loads(result.out)
    for name in SHAPES[client]:
        settings = settings[name]
    command = settings["command"]
    return command if isinstance(command, list) else [command, *settings["args"]]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_settings_of_each_client_start_this_perstack_from_anywhere(terminal: Terminal, client: str) -> None:
    (terminal.workspace / "my.env").write_text("A=b\n")
    command = printed(terminal, client, "--workspace", ".", "--env-path", "my.env", "--experts", "solo,researcher")
    assert Path(command[0]).is_absolute()
    assert "--provider" not in command
    assert command[-4:] == ["--experts", "solo,researcher", "--env-path", str(terminal.workspace / "my.env")]
    greeting = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    done = subprocess.run(
        command,
        cwd="/",
        env=terminal.env,
        input=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting}) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "perstack"


@pytest.mark.parametrize("client", CLIENTS)
def test_the_settings_are_in_the_format_that_the_client_documents(client: str) -> None:
    text = CLIENTS[client].text("/bin/perstack", ["mcp", "--workspace", "/a folder"])
    settings = tomllib.loads(text) if client == "codex" else json.loads(text)
    assert settings.pop("$schema", None) == ("https://opencode.ai/config.json" if client == "opencode" else None)
    outer, name = SHAPES[client]
    command = (
        {"command": ["/bin/perstack", "mcp", "--workspace", "/a folder"]}
        if client == "opencode"
        else {"command": "/bin/perstack", "args": ["mcp", "--workspace", "/a folder"]}
    )
    assert settings == {outer: {name: command | FIELDS[client]}}


def test_options_that_were_given_are_in_the_settings_and_others_are_not(terminal: Terminal) -> None:
    (terminal.workspace / "other.toml").write_text("")
    flags = ("--tasks", "--unattended")
    command = printed(terminal, "zed", "--model", "m", "--config", "other.toml", "--max-steps", "7", *flags)
    tail = command[command.index("mcp") + 1 :]
    assert tail == [
        *("--workspace", str(terminal.workspace)),
        *("--config", str(terminal.workspace / "other.toml")),
        *("--model", "m", "--max-steps", "7"),
        *flags,
    ]


def test_no_option_that_was_given_is_left_out_of_the_settings(terminal: Terminal) -> None:
    (terminal.workspace / "my.env").write_text("A=b\n")
    (terminal.workspace / "other.toml").write_text("")
    (terminal.workspace / "rules.toml").write_text('[permissions]\ndeny = ["exec"]\n')
    values = {
        "compaction": "off",
        "config": "other.toml",
        "env_path": "my.env",
        "permissions": "rules.toml",
        "provider": "recorded",
        "recording": "haiku.json",
        "storage": "file:there",
        "workspace": ".",
    }
    arguments = {
        option.opts[0]: () if option.is_flag else (values.get(str(option.name), "2"),)
        for option in mcp_command.params
        if isinstance(option, Option) and option.name not in ("client", "address", "names", "help")
    }
    arguments["--reasoning-budget"] = ("low",)
    arguments["--experts"] = ("solo",)
    command = printed(terminal, "zed", *(part for name, value in arguments.items() for part in (name, *value)))
    assert set(arguments) <= set(command)
    for name in ("config", "permissions", "recording"):
        assert command[command.index(f"--{name}") + 1] == str(terminal.workspace / values[name]), (
            "clients are elsewhere"
        )
    assert command[command.index("--permissions") + 1] == str(terminal.workspace / "rules.toml")


def test_where_the_settings_go_is_said_beside_them(terminal: Terminal) -> None:
    assert ".vscode/mcp.json" in terminal.run("mcp", "--print-config", "vscode").err


def test_a_missing_file_is_the_only_thing_said(terminal: Terminal) -> None:
    for options in (("--config", "no.toml"), ("--permissions", "no.toml"), ("--config", "no.toml", "--http", "8765")):
        result = terminal.run("mcp", "--print-config", "vscode", *options)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
        assert result.err.startswith("error: ")
        assert "no.toml" in result.err


def test_without_perstack_toml_it_ends_with_one_line(tmp_path: Path) -> None:
    done = Terminal(tmp_path).run("mcp", stdin="")
    assert (done.code, done.out) == (2, "")
    steps = "write one with `perstack init`, or name one with --config"
    assert done.err == f"error: there is no perstack.toml in {tmp_path} or above; {steps}\n"


def test_a_broken_perstack_toml_is_told_line_by_line_before_anything_is_answered(terminal: Terminal) -> None:
    (terminal.workspace / "perstack.toml").write_text("[experts.solo]\ninstruction = 1\nskils = {}\n")
    result = terminal.run("mcp", stdin="{}\n")
    assert (result.code, result.out) == (2, "")
    assert [line.split(": ")[1].rpartition(":")[2] for line in result.err.splitlines()] == ["2", "3"]


def test_an_expert_that_is_not_there_is_named(terminal: Terminal) -> None:
    result = terminal.run("mcp", "--experts", "solo,nosuch", stdin="")
    assert result.code == 2
    assert "no Expert 'nosuch'" in result.err
    assert "@team/lead, researcher, solo" in result.err


def test_storage_and_workspace_are_those_of_the_options(terminal: Terminal, tmp_path: Path) -> None:
    work = tmp_path / "elsewhere"
    work.mkdir()
    (work / "notes.txt").write_text("a note")

    async def call() -> None:
        options = ("--workspace", str(work), "--storage", "sqlite:state.db", "--config", "perstack.toml")
        async with connected(terminal, *options) as editor:
            await editor.call("solo", query="go")

    wait_for(call(), 60)
    assert (work / "state.db").exists()
    assert not terminal.jobs().exists()
