"""The command of the studio, for the host's command line."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.ports.commands import PluginCommand, PluginDocument

PLUGIN_API = 1


def perstack_commands() -> Sequence[PluginCommand]:
    """Return `studio`, in the group of `start`."""
    return [
        PluginCommand(
            "studio",
            "Run Experts",
            "See Jobs in a browser, and answer their questions.",
            "perstack_studio.command:studio_command",
            examples=("perstack studio", "perstack studio --read-only", "perstack studio --link"),
            before="submit",
        )
    ]


def perstack_documents() -> Sequence[PluginDocument]:
    """Return `html`, the page of a Job as a file."""
    return [PluginDocument("html", "one page that needs no server", "perstack_studio.html_export:html_of_job")]
