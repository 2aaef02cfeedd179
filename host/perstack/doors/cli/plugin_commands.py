"""Commands of plugins: found, checked, and listed among the built-in ones.

The sources are entry points of the group `perstack.commands`, and modules named in PERSTACK_PLUGINS that have the
function `perstack_commands`. They are read for lists (`--help`, completion, a misspelt command) and for a command that
is not built in, never for a built-in one. A faulty plugin is skipped with one notice that names its package and the
remedy; a plugin can neither replace a command nor break another one.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from operator import attrgetter
from typing import cast

import click

from perstack.dataclass import dataclass
from perstack.doors.cli.commands import COMMANDS, GROUPS
from perstack.errors import UsageError
from perstack.ports import PLUGIN_API
from perstack.ports.commands import GROUP, PluginCommand
from perstack.system.plugin_modules import EXTRA_MODULES, installed_modules, named_modules

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_IMPORT_PATH = re.compile(r"[\w.]+:[\w.]+")


@dataclass(frozen=True, slots=True)
class _Plugin:
    """A plugin module that is not imported yet, and may have the hook `perstack_commands`."""

    place: str  # plugin and package, for errors
    remedy: str
    load: Callable[[], object]
    is_declared: bool  # True if the module must have the hook: its package declares it only for commands


@dataclass(frozen=True, slots=True)
class FoundCommand:
    """A command of a plugin that is offered."""

    entry: PluginCommand
    plugin: _Plugin


def plugin_commands() -> Mapping[str, FoundCommand]:
    """Return the commands of plugins by name. The first call prints a notice for each that is skipped."""
    return _with_named_commands(os.environ.get(EXTRA_MODULES, ""))


def find_command(name: str) -> FoundCommand | None:
    """Return the command of a plugin, or None.

    Modules named in PERSTACK_PLUGINS are imported only if no installed package has the command: importing them may
    print, and a command that speaks a protocol must take over stdout first.
    """
    return _installed_commands().get(name) or plugin_commands().get(name)


@cache
def _installed_commands() -> Mapping[str, FoundCommand]:
    return _read_commands(_installed_plugins(), {})


@cache
def _with_named_commands(modules: str) -> Mapping[str, FoundCommand]:
    return _read_commands(_named_plugins(modules), _installed_commands())


def _read_commands(plugins: Iterable[_Plugin], earlier: Mapping[str, FoundCommand]) -> Mapping[str, FoundCommand]:
    """Return `earlier` with the commands of the plugins. A command that cannot be used is skipped with a notice."""
    commands = dict(earlier)
    for plugin in plugins:
        for entry in _entries_of(plugin):
            problem = _problem_of(entry, commands)
            if problem is not None:
                _report_skipped(plugin, problem)
            elif isinstance(entry, PluginCommand):
                commands.setdefault(entry.name, FoundCommand(entry, plugin))
    return commands


def listed_groups() -> dict[str, dict[str, str]]:
    """Return the texts of all commands, built in and of plugins, by group and name, in the order of the help."""
    groups = {title: {name: entry.text for name, entry in group.items()} for title, group in GROUPS.items()}
    for name, plugin_command in plugin_commands().items():
        rows = list(groups.get(plugin_command.entry.group, {}).items())
        names = [command_name for command_name, _ in rows]
        index = names.index(plugin_command.entry.before) if plugin_command.entry.before in names else len(names)
        rows.insert(index, (name, plugin_command.entry.text))
        groups[plugin_command.entry.group] = dict(rows)
    return groups


def listed_commands() -> dict[str, str]:
    """Return the texts of all commands by name, in the order of the help."""
    return {name: text for group in listed_groups().values() for name, text in group.items()}


def import_command(found: FoundCommand) -> click.Command:
    """Import the click command. Raises UsageError if that fails."""
    path, plugin = found.entry.import_path, found.plugin
    module, _, attribute = path.partition(":")
    try:
        command: object = attrgetter(attribute)(importlib.import_module(module))
    except (Exception, SystemExit) as error:  # a module may raise anything
        text = f"{found.entry.name} of {plugin.place}: {path} cannot be imported ({_cause_text(error)})"
        raise UsageError(f"{text}; {plugin.remedy}") from error
    if not isinstance(command, click.Command):
        raise UsageError(f"{found.entry.name} of {plugin.place}: {path} is not a click command; {plugin.remedy}")
    return command


def _installed_plugins() -> Iterator[_Plugin]:
    for point, package, _ in installed_modules(GROUP):
        place, remedy = f"plugin {point.name} of {package}", f"install another version of {package}, or uninstall it"
        yield _Plugin(place, remedy, point.load, is_declared=True)


def _named_plugins(modules: str) -> Iterator[_Plugin]:
    for name in named_modules({EXTRA_MODULES: modules}):
        remedy = f"correct the module, or remove its name from {EXTRA_MODULES}"
        yield _Plugin(
            f"module {name} of {EXTRA_MODULES}", remedy, partial(importlib.import_module, name), is_declared=False
        )


def _entries_of(plugin: _Plugin) -> tuple[object, ...]:
    """Return what the hook of a plugin returns; nothing, with a notice, if it fails."""
    try:
        module = plugin.load()
        api: object = getattr(module, "PLUGIN_API", PLUGIN_API)
        hook: Callable[[], Iterable[object]] | None = getattr(module, "perstack_commands", None)
        if api != PLUGIN_API:
            _report_skipped(plugin, f"it is written for plugin API {api}, but the host has {PLUGIN_API}")
        elif hook is not None:
            return tuple(hook())
        elif plugin.is_declared:
            _report_skipped(plugin, "it has no function perstack_commands")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything, and other commands must work
        _report_skipped(plugin, _cause_text(error))
    return ()


def _problem_of(entry: object, commands: Mapping[str, FoundCommand]) -> str | None:
    if not isinstance(entry, PluginCommand):
        return f"perstack_commands returns {type(entry).__name__}, not PluginCommand"
    if _has_wrong_field(entry):
        return f"the command {entry.name!r} has a field that is empty or of a wrong type"
    if not _NAME.fullmatch(entry.name):
        return f"the name {entry.name!r} is not a command name: use lower-case letters, digits and -"
    if not _IMPORT_PATH.fullmatch(entry.import_path):
        return f"the import path {entry.import_path!r} of {entry.name} is not `package.module:attribute`"
    if entry.name in COMMANDS:
        return f"perstack has its own command {entry.name}"
    # the entries are equal for an installed module that is also named
    if entry.name in commands and commands[entry.name].entry != entry:
        return f"{commands[entry.name].plugin.place} already has a command {entry.name}"
    return None


def _has_wrong_field(entry: PluginCommand) -> bool:
    if not isinstance(cast("object", entry.examples), tuple):
        return True
    texts = (entry.name, entry.group, entry.text, entry.import_path, entry.before or "-", *entry.examples)
    return not all(isinstance(text, str) and text for text in cast("tuple[object, ...]", texts))


def _report_skipped(plugin: _Plugin, cause: str) -> None:
    from perstack.system.user import notice

    notice(f"a command of {plugin.place} was skipped: {cause}; {plugin.remedy}")


def _cause_text(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
