"""The Experts that are offered, as perstack.toml defines them now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from perstack.config.load import LoadedProject
from perstack.core.definitions import Expert
from perstack.engine.live import LiveProject
from perstack.errors import UsageError
from perstack.frontends.mcp_server.names import only_experts, tool_names
from perstack.host import Host

_LOOK_AGAIN = 1.0
"""Seconds between two looks at the files, at least."""

_SHARE = 50
"""A look that takes long, because a pattern searches a big tree, is followed by this many times its length of rest."""


class Definitions:
    """Reads the files again when they change. While they are broken, what was read last holds."""

    def __init__(
        self, host: Host, loaded: LoadedProject, *, only: Sequence[str] = (), taken: Iterable[str] = ()
    ) -> None:
        """`only` limits the Experts that are offered, as `only_experts` does; `taken` are names that none may have."""
        self._host = host
        self._only = only_experts(loaded.project, only)
        self._taken = tuple(taken)
        self.live = LiveProject(loaded)
        """The definition itself, and what is wrong with it."""
        self.experts = self._offered()
        """By the name of the tool."""

    def check_offered(self, key: str) -> None:
        """Raises UsageError for an Expert that is left out on purpose."""
        if not self.offers(key):
            known = ", ".join(sorted(self._only))
            raise UsageError(f"Jobs of {key} are not driven by this server, which is limited to: {known}")

    def offers(self, key: str) -> bool:
        """Whether Jobs of this Expert may be driven here."""
        return not self._only or key in self._only

    def refresh(self) -> bool:
        """Read the files again if one has changed; whether what is offered has."""
        return self.live.refresh() and self._take()

    def agree(self, digest: str) -> bool:
        """A person wants a change of what is executed; whether what is offered has changed. Raises StorageError."""
        return self.live.agree(digest) and self._take()

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Look at the files from time to time, for ever."""
        while True:
            began = time.monotonic()
            found = await asyncio.to_thread(self.live.matched)
            took = time.monotonic() - began
            if self.live.refresh_matched(found) and self._take():
                await on_change()
            await asyncio.sleep(max(_LOOK_AGAIN, took * _SHARE))

    def _take(self) -> bool:
        before = self.experts
        self._host.use(self.live.loaded.project)
        self.experts = self._offered()
        return _as_listed(self.experts) != _as_listed(before)

    def _offered(self) -> dict[str, Expert]:
        experts = {key: expert for key, expert in self.live.loaded.project.experts.items() if self.offers(key)}
        names = tool_names(experts, self._taken)
        return {names[key]: expert for key, expert in experts.items()}


def _as_listed(experts: dict[str, Expert]) -> list[tuple[str, str, str]]:
    """What clients see of them."""
    return [(name, expert.key, expert.description) for name, expert in experts.items()]
