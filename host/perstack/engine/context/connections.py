"""Open the storage and the dispatcher of a project.

A project's own address is used only if its user has agreed to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perstack.config.project_place import ProjectPlace
from perstack.core.definitions.project import Project
from perstack.engine.plugins.registry import Plugins
from perstack.errors import StorageError, UsageError
from perstack.next_steps import SetOption
from perstack.ports.storage import Storage
from perstack.support.variables import fill_address, find_by_address, variables_in

if TYPE_CHECKING:
    from perstack.engine.plugins.trust_checks import TrustCheck
    from perstack.ports.dispatcher import Dispatcher, Order


def open_state(
    plugins: Plugins,
    project: Project,
    place: ProjectPlace,
    named_address: str | None,
    env: Mapping[str, str],
    agreement: TrustCheck,
) -> Storage:
    """Open the storage at the address `named_address`, relative to the current folder, or without one the project's.

    Raises UsageError if the storage is not installed or not trusted, if a variable is not set, or if a link leads to
    the project's own state.
    """
    setting = project.storage_setting
    if named_address is not None:
        address = storage_address(plugins, named_address, env)
        is_same_kind = address.partition(":")[0] == project.storage.partition(":")[0]
        return plugins.open_storage(address, place.folder, setting if is_same_kind else {})
    agreement.check_keys(project, ("storage", "storage_setting"))
    address = storage_address(plugins, project.storage, env)
    storage = plugins.open_storage(address, place.state_root, setting)
    _refuse_link(storage, place.state_root)
    return storage


def _refuse_link(storage: Storage, root: Path) -> None:
    """Raise UsageError if a link below `root` leads to the state: a repository could redirect all writes."""
    if not storage.places:
        return
    state = Path(os.path.normpath(storage.location))
    if not state.is_relative_to(root):
        return
    real = Path(os.path.realpath(storage.location))
    if real != Path(os.path.realpath(root), state.relative_to(root)):
        raise UsageError(
            f"the state is not kept in {state}, because a link there leads to {real}:"
            " remove the link if you did not make it",
            next_steps=(SetOption("storage"),),
        )


def storage_address(plugins: Plugins, address: str, env: Mapping[str, str]) -> str:
    """Return the address with the values of its variables. Raises UsageError."""
    filled_address = fill_address(address, env)
    if variables_in([address]):
        find_by_address(address, plugins.storage_at, filled_address)
    return filled_address


def dispatcher_address(plugins: Plugins, address: str, env: Mapping[str, str]) -> str:
    """Return the address with the values of its variables. Raises UsageError."""
    filled_address = fill_address(address, env, "dispatcher")
    if variables_in([address]):
        find_by_address(address, plugins.dispatcher_at, filled_address)
    return filled_address


# The dispatcher that queues Jobs for workers.


class LazyDispatcher:
    """A project's dispatcher, opened on first use; possibly none."""

    def __init__(self, open: Callable[[], Dispatcher | None] = lambda: None, *, is_chosen: bool = False) -> None:
        """`is_chosen`: continued Jobs are queued for workers by default."""
        self.is_chosen = is_chosen
        self._open = open
        self._dispatcher: Dispatcher | None = None
        self._storage_name: str | None = None

    @property
    def dispatcher(self) -> Dispatcher | None:
        """The opened dispatcher; None without one. Raises UsageError for an invalid address."""
        if self._dispatcher is None:
            self._dispatcher = self._open()
        return self._dispatcher

    def require(self) -> Dispatcher:
        """Return the dispatcher. Raises UsageError without one."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            message = (
                "there is no dispatcher to queue a Job for workers: set `dispatcher` in [workers] of perstack.toml"
            )
            raise UsageError(message, next_steps=(SetOption("dispatcher"),))
        return dispatcher

    async def submit(self, order: Order, storage: Storage, *, once: bool = False) -> bool:
        """Queue an order for a Job of this storage; with `once`, unless it has one. Return whether it was queued.

        Raises UsageError and DispatcherError.
        """
        from perstack.engine.log.storage_access import ensure_storage_name

        dispatcher = self.require()
        if self._storage_name is None:
            with suppress(StorageError):  # the name is optional in an order
                self._storage_name = await ensure_storage_name(storage)
        if once and await dispatcher.order(order.job_id, order.run_id) is not None:
            return False
        await dispatcher.submit(replace(order, storage=self._storage_name))
        return True

    async def close(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            await dispatcher.close()


def choose_dispatcher(
    plugins: Plugins,
    project: Project,
    named_dispatcher: str | Dispatcher | None,
    state_address: str,
    env: Mapping[str, str],
    agreement: TrustCheck,
) -> LazyDispatcher:
    """Return the named dispatcher, the project's, or the storage's database if it can be a dispatcher.

    `state_address` is the address of the storage, or empty. Opening the project's dispatcher raises
    UsageError if it is not trusted.
    """
    if named_dispatcher is not None and not isinstance(named_dispatcher, str):
        dispatcher = named_dispatcher
        return LazyDispatcher(lambda: dispatcher, is_chosen=True)
    configured_address = project.workers.dispatcher if project.workers is not None else None
    if named_dispatcher:
        return LazyDispatcher(lambda: _open_dispatcher(plugins, named_dispatcher, env), is_chosen=True)
    if configured_address is not None:

        def open_configured() -> Dispatcher:
            agreement.check_keys(project, ("workers",))
            return _open_dispatcher(plugins, configured_address, env)

        return LazyDispatcher(open_configured, is_chosen=True)
    if state_address.partition(":")[0] in plugins.dispatchers:
        return LazyDispatcher(
            lambda: _open_dispatcher(plugins, state_address, env), is_chosen=project.workers is not None
        )
    return LazyDispatcher()


def _open_dispatcher(plugins: Plugins, address: str, env: Mapping[str, str]) -> Dispatcher:
    return plugins.open_dispatcher(dispatcher_address(plugins, address, env))
