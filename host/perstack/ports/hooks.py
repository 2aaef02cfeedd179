"""The hooks of the `perstack` plugins (pluggy, entry point group `perstack`).

A plugin is a module or object with functions marked `@hookimpl` of these names. Hooks are synchronous, are called once
while the host starts, and must import nothing heavy: they return small factories, which do the work when used.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from perstack.ports.dispatcher import DispatcherFactory
from perstack.ports.formats import JobFormat
from perstack.ports.listener import Listener
from perstack.ports.provider import ProviderFactory
from perstack.ports.runtime import RuntimeFactory
from perstack.ports.skill import SkillFactory
from perstack.ports.storage import StorageFactory

PROJECT = "perstack"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def perstack_storages() -> Sequence[StorageFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Fires when a Host is made: the kinds of storage this package brings, by scheme."""


@hookspec
def perstack_providers() -> Sequence[ProviderFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Fires when a Host is made: the model endpoints this package brings, by name."""


@hookspec
def perstack_skills() -> Sequence[SkillFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Fires when a Host is made: the kinds of skill this package brings."""


@hookspec
def perstack_runtimes() -> Sequence[RuntimeFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Fires when a Host is made: where programs of tools can run, by name."""


@hookspec
def perstack_dispatchers() -> Sequence[DispatcherFactory]:  # type: ignore[empty-body]  # a specification has no body
    """Fires when a Host is made: the engines that can say which process drives a Job, by scheme."""


@hookspec
def perstack_formats() -> Sequence[JobFormat]:  # type: ignore[empty-body]  # a specification has no body
    """Fires when a Host is made: the forms of other programs that Jobs can be read from and exported to, by name."""


@hookspec
def perstack_listeners() -> Sequence[Listener]:  # type: ignore[empty-body]  # a specification has no body
    """Fires when a Host is made: who else wants to see every event."""
