"""The hooks of `perstack` plugins (pluggy, entry point group `perstack`).

A plugin is a module or object with functions of these names, marked `@hookimpl`. Hooks are synchronous and called once,
when a Host is made. They must import nothing heavy: they return small factories that do the work when they are used.
`perstack_commands` alone is called by the command line, without pluggy, and specified in `ports.commands`.
docs/plugins.md quotes the hooks' docstrings; change both together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

from perstack.ports import PLUGIN_API as PLUGIN_API
from perstack.ports.commands import perstack_commands
from perstack.ports.dispatcher import DispatcherFactory
from perstack.ports.formats import JobFormat
from perstack.ports.provider import ProviderFactory
from perstack.ports.runtime import RuntimeFactory
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import StorageFactory

if TYPE_CHECKING:
    from perstack.core.runs.events import Event

# The listener port: observers of events.


class Listener(ABC):
    """An observer of every event of a Job. It sees stored events after they are on disk.

    If a listener raises, the host reports it once on stderr and does not call it again. It never ends a Run.
    """

    @abstractmethod
    def on_event(self, event: Event, line: bytes) -> None:
        """Receive an event. `line` is its JSON as written to the log, without newline. Must not block."""


PROJECT = "perstack"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

hookspec(perstack_commands)  # otherwise pluggy would refuse a plugin that marks this function with `@hookimpl`


@hookspec
def perstack_storages() -> Sequence[StorageFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Return the kinds of storage of this package, by scheme. Called once when a Host is made."""


@hookspec
def perstack_providers() -> Sequence[ProviderFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Return the model endpoints of this package, by name. Called once when a Host is made."""


@hookspec
def perstack_skills() -> Sequence[SkillFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Return the kinds of skill of this package. Called once when a Host is made."""


@hookspec
def perstack_runtimes() -> Sequence[RuntimeFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Return the runtimes in which programs of tools can run, by name. Called once when a Host is made."""


@hookspec
def perstack_dispatchers() -> Sequence[DispatcherFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Return the dispatchers that assign Jobs to workers, by scheme. Called once when a Host is made."""


@hookspec
def perstack_formats() -> Sequence[JobFormat]:  # type: ignore[empty-body]  # a specification has no body
    """Return the formats in which Jobs are imported and exported, by name. Called once when a Host is made."""


@hookspec
def perstack_listeners() -> Sequence[Listener]:  # type: ignore[empty-body]  # a specification has no body
    """Return listeners that receive every event. Called once when a Host is made."""
