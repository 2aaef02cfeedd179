"""The command of the terminal program, for the host's command line."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.ports.commands import PluginCommand

PLUGIN_API = 1


def perstack_commands() -> Sequence[PluginCommand]:
    """Return `start`, the first command of the help."""
    return [
        PluginCommand(
            "start",
            "Run Experts",
            "Work with Experts in a full-screen terminal program.",
            "perstack_tui.command:start_command",
            examples=("perstack start", 'perstack start writer "A haiku about logs"', "perstack start --job @last"),
            before="run",
        )
    ]
