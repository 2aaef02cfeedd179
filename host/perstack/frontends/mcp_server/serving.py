"""What serving one workspace takes: the Host, the Jobs' tasks, the watch over perstack.toml."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from perstack.config.load import LoadedProject
from perstack.engine.session import uninterrupted
from perstack.frontends.mcp_server.clients import Clients
from perstack.frontends.mcp_server.definitions import Definitions
from perstack.frontends.mcp_server.jobs import JobTasks
from perstack.frontends.mcp_server.state import ServerState
from perstack.frontends.mcp_server.task_tools import TASK_TOOLS
from perstack.frontends.mcp_server.tools import JOB_TOOLS
from perstack.frontends.mcp_server.watching import Watching
from perstack.host import Host


@asynccontextmanager
async def serving(
    host: Host, loaded: LoadedProject, experts: Sequence[str] = (), *, tasks: bool = False
) -> AsyncGenerator[ServerState]:
    """The state of one workspace.

    At the end the Jobs that are still driven are interrupted, and that is recorded, before the Host is closed.
    """
    async with host:
        definitions = Definitions(host, loaded, only=experts, taken=(*JOB_TOOLS, *TASK_TOOLS))
        clients = Clients()
        state = ServerState(host, definitions, JobTasks(host), clients, Watching(host, clients.resource_updated), tasks)
        watching = asyncio.create_task(definitions.watch(state.clients.definitions_changed))
        try:
            yield state
        finally:
            watching.cancel()
            await state.watching.close()
            # a client that closed stdin may send a signal a moment later: that must not leave a Job unrecorded
            await uninterrupted(state.jobs.close())
