"""A plugin for tests of commands in one process: `PERSTACK_PLUGINS=memory_workers`, `--dispatcher memory:NAME`.

`--dispatcher down:` is an engine that always fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from perstack.errors import DispatcherError
from perstack.ports.dispatcher import Dispatcher, DispatcherFactory, Order
from perstack.ports.hooks import hookimpl
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher, InMemoryDispatchers

ENGINES = InMemoryDispatchers()


class Down(InMemoryDispatcher):
    """An unreachable engine."""

    scheme = "down"

    def open(self, location: str) -> Dispatcher:
        return self

    async def submit(self, order: Order) -> None:
        raise DispatcherError("the engine is down")


@hookimpl
def perstack_dispatchers() -> Sequence[DispatcherFactory]:
    return [ENGINES, Down()]
