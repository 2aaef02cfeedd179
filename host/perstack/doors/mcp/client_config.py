"""Settings for the editors and agents that use the server, each in its own format."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from perstack.dataclass import dataclass
from perstack.doors.mcp.greeting import NAME

_HOUR_S = 3600
_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Snippet:
    """The settings for one client."""

    file: str  # the file they belong to
    text: Callable[[str, Sequence[str]], str]  # return the settings for a command and its arguments
    remote: Callable[[str, str], str]  # return the settings for a server's URL and its token


def _mcp_servers(command: str, args: Sequence[str]) -> str:
    return _json({"mcpServers": {NAME: {"type": "stdio", "command": command, "args": list(args)}}})


def _gemini(command: str, args: Sequence[str]) -> str:
    return _json({"mcpServers": {NAME: {"command": command, "args": list(args), "timeout": _HOUR_S * 1000}}})


def _vscode(command: str, args: Sequence[str]) -> str:
    return _json({"servers": {NAME: {"type": "stdio", "command": command, "args": list(args)}}})


def _zed(command: str, args: Sequence[str]) -> str:
    # seconds for a whole call, the maximum that Zed accepts; it ignores progress
    server: dict[str, object] = {"command": command, "args": list(args), "env": {}, "timeout": 10 * _MINUTE_S}
    return _json({"context_servers": {NAME: server}})


def _opencode(command: str, args: Sequence[str]) -> str:
    # milliseconds since the last progress
    server = {"type": "local", "command": [command, *args], "enabled": True, "timeout": _MINUTE_S * 1000}
    return _json({"$schema": "https://opencode.ai/config.json", "mcp": {NAME: server}})


def _codex(command: str, args: Sequence[str]) -> str:
    import tomli_w

    # the default, "connection", is ready a second before the tools are
    server = {"command": command, "args": list(args), "tool_timeout_sec": _HOUR_S, "startup_readiness": "catalog"}
    return tomli_w.dumps({"mcp_servers": {NAME: server}}).rstrip()


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _servers_http(url: str, token: str) -> str:
    return _json({"mcpServers": {NAME: {"type": "http", "url": url, "headers": _bearer(token)}}})


def _gemini_http(url: str, token: str) -> str:
    server = {"httpUrl": url, "headers": _bearer(token), "timeout": _HOUR_S * 1000}
    return _json({"mcpServers": {NAME: server}})


def _vscode_http(url: str, token: str) -> str:
    return _json({"servers": {NAME: {"type": "http", "url": url, "headers": _bearer(token)}}})


def _zed_http(url: str, token: str) -> str:
    server = {"url": url, "headers": _bearer(token), "timeout": 10 * _MINUTE_S}
    return _json({"context_servers": {NAME: server}})


def _opencode_http(url: str, token: str) -> str:
    server = {"type": "remote", "url": url, "headers": _bearer(token), "enabled": True, "timeout": _MINUTE_S * 1000}
    return _json({"$schema": "https://opencode.ai/config.json", "mcp": {NAME: server}})


def _codex_http(url: str, token: str) -> str:
    import tomli_w

    server = {"url": url, "http_headers": _bearer(token), "tool_timeout_sec": _HOUR_S}
    return tomli_w.dumps({"mcp_servers": {NAME: server}}).rstrip()


CLIENTS = {
    "claude-code": Snippet(".mcp.json in the project; Claude Code asks you to approve it", _mcp_servers, _servers_http),
    "codex": Snippet("~/.codex/config.toml", _codex, _codex_http),
    "cursor": Snippet(".cursor/mcp.json in the project, or ~/.cursor/mcp.json", _mcp_servers, _servers_http),
    "vscode": Snippet(".vscode/mcp.json in the project", _vscode, _vscode_http),
    "zed": Snippet("settings.json of Zed", _zed, _zed_http),
    "gemini": Snippet(".gemini/settings.json in the project, or ~/.gemini/settings.json", _gemini, _gemini_http),
    "opencode": Snippet("opencode.json in the project, or ~/.config/opencode/opencode.json", _opencode, _opencode_http),
}
"""The settings by the names that `--print-config` takes."""


def command_of(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the absolute command that starts this perstack, and its arguments: editors have a PATH of their own."""
    script = Path(sys.executable).with_name("perstack")
    if script.is_file():
        return str(script), ["mcp", *arguments]
    return sys.executable, ["-P", "-m", "perstack", "mcp", *arguments]


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
