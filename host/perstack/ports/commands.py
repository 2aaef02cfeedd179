"""The command port: commands that plugins add to the command line, such as a door of one's own.

`perstack --help` and shell completion read the commands of all plugins, so reading them must cost little. This module
imports neither pydantic nor pluggy, and commands have an entry point group of their own, whose modules import what runs
a command only through `PluginCommand.import_path`. A built-in command reads none of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from perstack.dataclass import dataclass

GROUP = "perstack.commands"  # entry point group of modules with the function `perstack_commands`


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A command as lists show it, and the place of its click command."""

    name: str  # lower-case letters, digits and `-`
    group: str  # heading in `perstack --help`, such as Serve; a new one is listed last
    text: str  # one sentence for lists
    import_path: str  # `package.module:attribute` of the click command, imported when it is called
    examples: tuple[str, ...] = ()  # command lines for the end of its `--help`
    before: str | None = None  # command of the group that is listed after it; by default it is the last one


@dataclass(frozen=True, slots=True)
class PluginDocument:
    """A format of `perstack export` in which a Job is one file, and the place of the function that makes it."""

    name: str  # the value of `--format`
    text: str  # what the file is, for lists
    import_path: str  # `package.module:attribute` of an async function of a Host and a Job id, which returns the bytes


def perstack_documents() -> Sequence[PluginDocument]:  # type: ignore[empty-body]  # a specification has no body
    """Return the documents of this package: optional. Called when a Job is exported in a format of a plugin."""


def perstack_commands() -> Sequence[PluginCommand]:  # type: ignore[empty-body]  # a specification has no body
    """Return the commands of this package. Called for lists of commands, and for a command that is not built in."""
