"""Settings for the editors and agents that use the server, in the format of each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import cast

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass

NAME = "perstack"  # name of the server in the clients' settings

_HOUR_S = 3600
_MINUTE_S = 60


_COMMAND, _ARGS, _LINE, _URL, _BEARER = "$command", "$args", "$line", "$url", "$bearer"  # `_LINE` is COMMAND and ARGS
_LOCAL: JsonObject = {"command": _COMMAND, "args": _ARGS}
_HEADERS: JsonObject = {"headers": {"Authorization": _BEARER}}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings for one client."""

    file: str  # the file that the settings belong to
    tables: tuple[str, ...]  # the nested keys that contain the server's settings
    local: JsonObject  # template of the settings for a command
    remote: JsonObject  # template of the settings for a URL
    head: JsonObject = field(default_factory=dict[str, JsonValue])  # further top-level content of the file

    def text(self, command: str, args: Sequence[str]) -> str:
        """Return the settings for a command and its arguments."""
        return self._render(self.local, {_COMMAND: command, _ARGS: [*args], _LINE: [command, *args]})

    def remote_text(self, url: str, token: str) -> str:
        """Return the settings for a server's URL and its token."""
        return self._render(self.remote, {_URL: url, _BEARER: f"Bearer {token}"})

    def _render(self, server: JsonObject, values: JsonObject) -> str:
        settings: JsonValue = {NAME: _fill_template(server, values)}
        for key in reversed(self.tables):
            settings = {key: settings}
        if self.file.endswith(".toml"):
            import tomli_w

            return tomli_w.dumps(cast("dict[str, object]", settings)).rstrip()
        return json.dumps({**self.head, **cast("JsonObject", settings)}, indent=2, ensure_ascii=False)


def _fill_template(value: JsonValue, values: JsonObject) -> JsonValue:
    if isinstance(value, dict):
        return {key: _fill_template(item, values) for key, item in value.items()}
    return values.get(value, value) if isinstance(value, str) else value


_STDIO: JsonObject = {"type": "stdio", **_LOCAL}
_HTTP: JsonObject = {"type": "http", "url": _URL, **_HEADERS}
_OPENCODE_LIMIT: JsonObject = {"enabled": True, "timeout": _MINUTE_S * 1000}  # maximum milliseconds without progress
_ZED_LIMIT: JsonObject = {"timeout": 10 * _MINUTE_S}  # maximum milliseconds of a call, even with progress
CLIENTS = {
    "claude-code": ClientConfig(
        ".mcp.json in the project; Claude Code asks you to approve it", ("mcpServers",), _STDIO, _HTTP
    ),
    "codex": ClientConfig(
        "~/.codex/config.toml",
        ("mcp_servers",),
        # with the default readiness, "connection", the client would start before the tools are listed
        {**_LOCAL, "tool_timeout_sec": _HOUR_S, "startup_readiness": "catalog"},
        {"url": _URL, "http_headers": {"Authorization": _BEARER}, "tool_timeout_sec": _HOUR_S},
    ),
    "cursor": ClientConfig(".cursor/mcp.json in the project, or ~/.cursor/mcp.json", ("mcpServers",), _STDIO, _HTTP),
    "vscode": ClientConfig(".vscode/mcp.json in the project", ("servers",), _STDIO, _HTTP),
    "zed": ClientConfig(
        "settings.json of Zed",
        ("context_servers",),
        {**_LOCAL, "env": {}, **_ZED_LIMIT},
        {"url": _URL, **_HEADERS, **_ZED_LIMIT},
    ),
    "gemini": ClientConfig(
        ".gemini/settings.json in the project, or ~/.gemini/settings.json",
        ("mcpServers",),
        {**_LOCAL, "timeout": _HOUR_S * 1000},
        {"httpUrl": _URL, **_HEADERS, "timeout": _HOUR_S * 1000},
    ),
    "opencode": ClientConfig(
        "opencode.json in the project, or ~/.config/opencode/opencode.json",
        ("mcp",),
        {"type": "local", "command": _LINE, **_OPENCODE_LIMIT},
        {"type": "remote", "url": _URL, **_HEADERS, **_OPENCODE_LIMIT},
        head={"$schema": "https://opencode.ai/config.json"},
    ),
}
"""The settings by the names that `--print-config` takes."""


def launch_command(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the absolute command that starts this perstack, with its arguments: an editor's PATH may lack it."""
    script = Path(sys.executable).with_name("perstack")
    if script.is_file():
        return str(script), ["mcp", *arguments]
    return sys.executable, ["-P", "-m", "perstack", "mcp", *arguments]
