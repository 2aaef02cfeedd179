"""The command of the servers, for the host's command line."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.ports.commands import PluginCommand

PLUGIN_API = 1


def perstack_commands() -> Sequence[PluginCommand]:
    return [
        PluginCommand(
            "mcp",
            "Serve",
            "Serve Experts and Jobs over MCP.",
            "perstack_server.command:mcp_command",
            examples=(
                "perstack mcp --print-config claude-code > .mcp.json",
                "perstack mcp --print-config codex --workspace ~/notes --experts writer,critic",
            ),
            before="acp",
        )
    ]
