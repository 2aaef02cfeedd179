"""The command of the agent for editors, for the host's command line."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.ports.commands import PluginCommand

PLUGIN_API = 1


def perstack_commands() -> Sequence[PluginCommand]:
    return [
        PluginCommand(
            "acp",
            "Serve",
            "Serve an Expert to an editor over the Agent Client Protocol.",
            "perstack_acp.command:acp_command",
            examples=("perstack acp --expert writer",),
            before="worker",
        )
    ]
