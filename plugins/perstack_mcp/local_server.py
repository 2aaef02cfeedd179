"""Local server (`mcpStdioSkill`): a child process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from perstack.core.definitions.skills import McpStdioSkill
from perstack.errors import SkillError
from perstack.ports.skill import SkillContext
from perstack_mcp.server_interface import AUTO, LEGACY, ConnectionAttempt, RateLimitedOutput, ServerProtocols
from perstack_mcp.server_process import Child, launch_of, run_server


class LocalServer:
    """Local server, connected by the pipes of its process."""

    def __init__(self, definition: McpStdioSkill, context: SkillContext) -> None:
        """Prepare the launch. Raises SkillError if a required variable is not set."""
        self.name = definition.name
        self.workspace: Path = context.workspace
        self.show = RateLimitedOutput(context.on_stderr)
        self._launch = launch_of(definition, context)
        self._protocols = ServerProtocols.of_user(context.env)
        self._child: Child | None = None

    @asynccontextmanager
    async def up(self) -> AsyncGenerator[None]:
        """Start the process, and end it on exit."""
        self._child = None
        async with run_server(self._launch, self.show) as self._child:
            yield

    def attempts(self) -> Sequence[ConnectionAttempt]:
        """Return the attempts: the handshake first, unless the server is known to refuse it."""
        from perstack_mcp.stdio import streams_of

        if self._child is None:
            raise SkillError("the server is not running")
        transport = partial(streams_of, self._child)
        if self._protocols.is_stateless(self._launch.argv):
            return [ConnectionAttempt(AUTO, transport)]
        return [ConnectionAttempt(LEGACY, transport), ConnectionAttempt(AUTO, transport, self._remember)]

    async def _remember(self, is_stateless: bool) -> None:
        if is_stateless:
            await asyncio.to_thread(self._protocols.remember_stateless, self._launch.argv)

    def exit_summary(self) -> str:
        """Return the exit status and the end of stderr."""
        return self._child.exit_summary if self._child is not None else ""
