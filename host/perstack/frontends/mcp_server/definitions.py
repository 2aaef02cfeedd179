"""The Experts that are offered, as perstack.toml defines them now."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from perstack.config.changes import Stamp, matched, stamps
from perstack.config.load import LoadedProject, load_usable
from perstack.core.definitions import Expert
from perstack.errors import DefinitionError, UsageError
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
        self._loaded = loaded
        self._watched = loaded.files
        self._seen: tuple[Stamp, ...] = ()
        """None to begin with: the files may have changed since they were read, while the server was starting."""
        self._matched = matched(loaded)
        self.experts = self._offered()
        """By the name of the tool."""
        self.problem: str | None = None
        """What is wrong with the files now."""

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
        now = stamps(self._watched)
        if now == self._seen:
            return False
        return self._read()

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Look at the files from time to time, for ever."""
        while True:
            began = time.monotonic()
            found = await asyncio.to_thread(matched, self._loaded)
            took = time.monotonic() - began
            is_new = found != self._matched
            self._matched = found
            if self._read() if is_new else self.refresh():
                await on_change()
            await asyncio.sleep(max(_LOOK_AGAIN, took * _SHARE))

    def _read(self) -> bool:
        before, path = self.experts, self._loaded.files[0]
        try:
            loaded = load_usable(Path(path))
        except DefinitionError as error:
            self._say(error)
            broken = (Path(problem.file) for problem in error.problems)
            self._watched = tuple(dict.fromkeys((*self._loaded.files, *broken)))
            self._seen = stamps(self._watched)
            return False
        self.problem = None
        if loaded.project.broken:
            every = (problem for problems in loaded.project.broken.values() for problem in problems)
            self._say(DefinitionError(tuple(dict.fromkeys(every))))
        held = {key: expert for key, expert in self._loaded.project.experts.items() if key in loaded.project.broken}
        experts = {**loaded.project.experts, **held}
        self._loaded = replace(loaded, project=loaded.project.model_copy(update={"experts": experts}))
        self._watched = self._loaded.files
        self._seen, self._matched = stamps(self._watched), matched(self._loaded)
        self._host.project = self._loaded.project
        self.experts = self._offered()
        return _as_listed(self.experts) != _as_listed(before)

    def _say(self, error: DefinitionError) -> None:
        self.problem = str(error)
        print(f"perstack: {error}\nperstack: until that is mended, what was read before holds", file=sys.stderr)  # noqa: T201

    def _offered(self) -> dict[str, Expert]:
        experts = {key: expert for key, expert in self._loaded.project.experts.items() if self.offers(key)}
        names = tool_names(experts, self._taken)
        return {names[key]: expert for key, expert in experts.items()}


def _as_listed(experts: dict[str, Expert]) -> list[tuple[str, str, str]]:
    """What clients see of them."""
    return [(name, expert.key, expert.description) for name, expert in experts.items()]
