"""A plugin for tests of commands in one process: `PERSTACK_PLUGINS=memory_workers`, `--dispatcher memory:NAME`."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.ports.dispatcher import DispatcherFactory
from perstack.ports.hooks import hookimpl
from perstack.testing.in_memory_dispatcher import InMemoryDispatchers

ENGINES = InMemoryDispatchers()


@hookimpl
def perstack_dispatchers() -> Sequence[DispatcherFactory]:
    return [ENGINES]
