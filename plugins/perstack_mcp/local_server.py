"""`mcpStdioSkill`: a server that is a child process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from perstack.core.definitions import McpStdioSkill
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext
from perstack_mcp.child import Child, running
from perstack_mcp.eras import Eras
from perstack_mcp.launch import launch_of
from perstack_mcp.shown import Shown
from perstack_mcp.ways import AUTO, LEGACY, Way


class LocalServer:
    """Raises SkillError if a variable that it requires is not set."""

    def __init__(self, definition: McpStdioSkill, context: SkillContext) -> None:
        self.name = definition.name
        self.workspace: Path = context.workspace
        self.show = Shown(context.on_stderr)
        self._launch = launch_of(definition, context)
        self._eras = Eras.of_user(context.env)
        self._child: Child | None = None

    @asynccontextmanager
    async def up(self) -> AsyncGenerator[None]:
        """The process, running."""
        self._child = None
        async with running(self._launch, self.show) as self._child:
            yield

    def ways(self) -> Sequence[Way]:
        """The handshake, unless it is known to refuse that; see `eras`."""
        from perstack_mcp.stdio import streams_of

        if self._child is None:
            raise SkillError("the server is not up")
        transport = partial(streams_of, self._child)
        if self._eras.is_stateless(self._launch.argv):
            return [Way(AUTO, transport)]
        return [Way(LEGACY, transport), Way(AUTO, transport, self._remember)]

    async def _remember(self, is_stateless: bool) -> None:
        if is_stateless:
            await asyncio.to_thread(self._eras.remember_stateless, self._launch.argv)

    def last_words(self) -> str:
        """The exit status and the end of stderr."""
        return self._child.last_words if self._child is not None else ""
