"""The agent on the process's own stdin and stdout, until the editor closes them or a signal comes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from acp import run_agent
from pydantic import TypeAdapter

from perstack.core.base import JsonObject
from perstack.frontends.acp.agent import PerstackAgent
from perstack.frontends.acp.sessions import MakeHost, opened
from perstack.frontends.shared.stopping import stopped_by_signals
from perstack.frontends.shared.wire import Wire

if TYPE_CHECKING:
    from acp.interfaces import Agent

_MESSAGE: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


async def serve_acp(make_host: MakeHost, expert: str | None) -> None:
    """Serve one editor. stdout carries the protocol only: what anything else prints goes to stderr."""
    wire = Wire.claim()
    with stopped_by_signals():
        async with opened(make_host, expert) as sessions:
            # the protocol's optional methods are left out: the SDK answers them with «method not found»
            await run_agent(cast("Agent", PerstackAgent(sessions)), _Messages(wire))


class _Messages:
    """The SDK's `Transport`: one message a line, over whatever stdin and stdout are. The event loop itself can wait for
    pipes and terminals, but not for files and /dev/null.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._incoming = wire.start(_MESSAGE.validate_json, "ACP")

    async def send(self, message: JsonObject) -> None:
        """Write a message; to an editor that has gone nothing is said any more."""
        await self._wire.send(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> JsonObject | None:
        """The next message; None at the end."""
        return await anext(self._incoming, None)

    async def close(self) -> None:
        """The wire ends with the process."""
