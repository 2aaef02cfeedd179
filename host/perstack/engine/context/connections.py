"""Where the Jobs of a Host are queued for workers, if anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from perstack.engine.state import dispatcher_address
from perstack.errors import StorageError, UsageError
from perstack.next_steps import Give

if TYPE_CHECKING:  # a Run that is driven here needs no dispatcher
    from perstack.core.definitions import Project
    from perstack.engine.plugins import Plugins
    from perstack.ports.dispatcher import Dispatcher, Order
    from perstack.ports.storage import Storage


class Dispatching:
    """A dispatcher that is opened when it is used."""

    def __init__(self, open: Callable[[], Dispatcher | None] = lambda: None, *, is_chosen: bool = False) -> None:
        """`is_chosen`: somebody has named it, so that what continues is left to workers unless it is said otherwise."""
        self.is_chosen = is_chosen
        self._open = open
        self._opened: Dispatcher | None = None
        self._storage_name: str | None = None

    @property
    def dispatcher(self) -> Dispatcher | None:
        """None: there is none. Raises UsageError for an address that is none."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def required(self) -> Dispatcher:
        """Raises UsageError if there is none."""
        found = self.dispatcher
        if found is None:
            words = "nothing says which worker drives a Job: set `dispatcher` in [workers] of perstack.toml"
            raise UsageError(words, next_steps=(Give("dispatcher"),))
        return found

    async def submit(self, order: Order, storage: Storage, *, once: bool = False) -> bool:
        """Queue what that storage has, which is always the same one; with `once` only if it has no order. Whether it
        was queued. Raises UsageError and DispatcherError."""
        from perstack.engine.storage_name import named

        dispatcher = self.required()
        if self._storage_name is None:
            with suppress(StorageError):  # an order is good without it
                self._storage_name = await named(storage)
        if once and await dispatcher.order(order.job_id, order.run_id) is not None:
            return False
        await dispatcher.submit(replace(order, storage=self._storage_name))
        return True

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()


def dispatching_of(
    plugins: Plugins, project: Project, named: str | Dispatcher | None, storage: str, env: Mapping[str, str]
) -> Dispatching:
    """The one that is named, or the project's; or the database where the state is, if that can be one.

    `storage` is the address of the storage, or empty.
    """
    if named is not None and not isinstance(named, str):
        given = named
        return Dispatching(lambda: given, is_chosen=True)
    written = project.workers.dispatcher if project.workers is not None else None
    address = named or written
    if address is not None:
        return Dispatching(lambda: _opened(plugins, address, env), is_chosen=True)
    if storage.partition(":")[0] in plugins.dispatchers:
        return Dispatching(lambda: _opened(plugins, storage, env), is_chosen=project.workers is not None)
    return Dispatching()


def _opened(plugins: Plugins, address: str, env: Mapping[str, str]) -> Dispatcher:
    return plugins.open_dispatcher(dispatcher_address(plugins, address, env))
