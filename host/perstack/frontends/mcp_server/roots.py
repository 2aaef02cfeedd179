"""The folders that a client has open.

Source: MCP 2025-11-25, roots. The stateless era (2026-07-28) deprecates them: there a call may still ask for them, but
a list of tools may not, and so they are of no use here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import ListRootsRequest, ListRootsResult
from pydantic import ValidationError

from perstack.engine.notices import notice
from perstack.frontends.mcp_server.asking import Context
from perstack.frontends.mcp_server.greeting import STATELESS_VERSIONS

_PATIENCE = 10.0
"""Seconds for the client to answer: it asks no person."""


def has_roots(context: Context) -> bool:
    """Whether the client can be asked."""
    capabilities = context.session.client_capabilities
    is_asked = context.protocol_version not in STATELESS_VERSIONS
    return is_asked and capabilities is not None and capabilities.roots is not None


async def roots_of(context: Context) -> tuple[Path, ...] | None:
    """The folders of this machine, in the client's order; None if it does not say."""
    try:
        result = await context.session.send_request(
            ListRootsRequest(),
            ListRootsResult,
            request_read_timeout_seconds=_PATIENCE,
            # over HTTP: on the stream of this request, for there may be no other
            metadata=ServerMessageMetadata(related_request_id=context.request_id),
        )
    except (MCPError, ValidationError) as error:
        notice(f"the client does not say which folders it has open: {error}")
        return None
    return tuple(_folders(str(root.uri) for root in result.roots))


def _folders(uris: Iterable[str]) -> Iterable[Path]:
    for uri in uris:
        parts = urlsplit(uri)
        folder = Path(unquote(parts.path))
        if parts.scheme == "file" and parts.netloc in ("", "localhost") and folder.is_dir():
            yield folder.resolve()
