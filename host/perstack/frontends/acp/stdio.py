"""The agent on the process's own stdin and stdout, until the editor closes them."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, cast

from acp import run_agent

from perstack.frontends.acp.agent import PerstackAgent
from perstack.frontends.acp.sessions import MakeHost, opened

if TYPE_CHECKING:
    from acp.interfaces import Agent

_LONGEST_MESSAGE = 64 << 20


async def serve_acp(make_host: MakeHost, expert: str | None) -> None:
    """Serve one editor. stdout carries the protocol only: what anything else prints goes to stderr."""
    reader, writer = await _claim()
    async with opened(make_host, expert) as sessions:
        # the protocol's optional methods are left out: the SDK answers them with «method not found»
        await run_agent(cast("Agent", PerstackAgent(sessions)), writer, reader)


async def _claim() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sys.stdout.flush()
    theirs, ours = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LONGEST_MESSAGE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(theirs, "rb", buffering=0))
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(ours, "wb", buffering=0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)
