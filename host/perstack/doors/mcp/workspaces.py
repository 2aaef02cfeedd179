"""The folders that are served: one for all clients, or for each the one that it has open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from perstack.config.load import LoadedProject
from perstack.config.places import find_config
from perstack.dataclass import dataclass
from perstack.engine.session import uninterrupted
from perstack.errors import PerstackError, UsageError
from perstack.frontends.mcp_server.asking import Context
from perstack.frontends.mcp_server.clients import client_of, tell_lists_changed, when_gone
from perstack.frontends.mcp_server.jobs import CallKey
from perstack.frontends.mcp_server.roots import has_roots, roots_of
from perstack.frontends.mcp_server.serving import serving
from perstack.frontends.mcp_server.state import ServerState
from perstack.host import Host

Workspace: TypeAlias = tuple[Host, LoadedProject]

OpenRoot: TypeAlias = Callable[[Path], Workspace]
"""The workspace of a folder. Raises PerstackError, also for a folder that is not to be served."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What is served, and from where."""

    home: Workspace | PerstackError
    """The folder that was named, or that the server was started in; or why that cannot be served."""
    open_root: OpenRoot | None = None
    """For the folders that clients have open; None if they are not asked for them."""
    experts: Sequence[str] = ()
    tasks: bool = False


@dataclass(slots=True)
class _Client:
    """One that says which folders it has open."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    state: ServerState | None = None
    is_asked: bool = False
    """Whether what it said still holds."""


class Workspaces:
    """All that are served, each with a state of its own, so that nothing of one is seen in another."""

    def __init__(self, offer: Offer, stack: AsyncExitStack) -> None:
        self._offer = offer
        self._stack = stack
        self._states: dict[Path, ServerState] = {}
        self._home: ServerState | PerstackError
        self._clients: dict[str, _Client] = {}
        self._opening = asyncio.Lock()

    async def open_home(self) -> None:
        """Before anything else."""
        home = self._offer.home
        self._home = home if isinstance(home, PerstackError) else await self._serve(home)

    @property
    def home(self) -> ServerState:
        """Of clients that do not say where they work. Raises PerstackError if it cannot be served."""
        if isinstance(self._home, PerstackError):
            raise self._home
        return self._home

    async def of(self, context: Context) -> ServerState:
        """Where a client works. Raises PerstackError if that is nowhere, or cannot be read."""
        if self._offer.open_root is None or not has_roots(context):
            return self.home
        client = self._known(context)
        async with client.asking:
            if client.state is None or not client.is_asked:
                await self._place(client, context)
            return client.state or self.home

    def greeted(self, context: Context) -> None:
        """A handshake is done. Where that client works is asked when it wants something."""
        if (self._offer.open_root is None or not has_roots(context)) and isinstance(self._home, ServerState):
            self._home.clients.add(context)

    async def roots_changed(self, context: Context) -> None:
        """A client has opened or closed folders."""
        if self._offer.open_root is None or not has_roots(context):
            return
        self._known(context).is_asked = False
        await tell_lists_changed(context.session)

    def cancel_call(self, key: CallKey) -> None:
        """Interrupt what a call began."""
        for state in self._states.values():
            state.jobs.cancel_call(key)

    async def stop_jobs(self) -> None:
        """Interrupt all that is driven, and wait until that is recorded."""
        await asyncio.gather(*(state.jobs.close() for state in self._states.values()))

    def _known(self, context: Context) -> _Client:
        key = client_of(context)
        if key not in self._clients:
            when_gone(context, partial(self._clients.pop, key, None))
        return self._clients.setdefault(key, _Client())

    async def _place(self, client: _Client, context: Context) -> None:
        client.is_asked = True
        before, is_placed = client.state, False
        try:
            roots = await roots_of(context)
            if roots is not None or before is None:
                client.state = None
                client.state = await self._opened(roots or ())
                client.state.clients.add(context)
            is_placed = True
        finally:
            client.is_asked &= is_placed
            if before is not None and before is not client.state:
                before.clients.remove(client_of(context))

    async def _opened(self, roots: Sequence[Path]) -> ServerState:
        """The first folder with a perstack.toml, in it or above it, as everywhere; else home."""
        folder = next((root for root in roots if find_config(root) is not None), None)
        if folder is None or self._offer.open_root is None:
            if roots and isinstance(self._home, PerstackError):
                names = ", ".join(map(str, roots))
                raise UsageError(f"there is no perstack.toml in what you have open, {names}, or above it; {self._home}")
            return self.home
        async with self._opening:
            return self._states.get(folder) or await self._serve(self._offer.open_root(folder), folder)

    async def _serve(self, workspace: Workspace, folder: Path | None = None) -> ServerState:
        """`folder` is what the client has open, which need not be where its Experts work."""
        host, loaded = workspace
        state = await self._stack.enter_async_context(
            serving(host, loaded, self._offer.experts, tasks=self._offer.tasks)
        )
        self._states[folder or host.workspace] = state
        return state


@asynccontextmanager
async def serving_all(offer: Offer) -> AsyncGenerator[Workspaces]:
    """The workspaces to build a server on; at the end the Jobs of all are interrupted, and that is recorded."""
    async with AsyncExitStack() as stack:
        workspaces = Workspaces(offer, stack)
        await workspaces.open_home()
        try:
            yield workspaces
        finally:
            await uninterrupted(workspaces.stop_jobs())
