"""Private names of the SDKs that have no public equivalent. Only this module uses them; others use our names for them.

`tests/plugins/mcp/test_sdk.py` fails when one of them has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpcore2
import httpx2

if TYPE_CHECKING:
    from httpx2._client import UseClientDefault as UseClientDefault
    from httpx2._types import AuthTypes as AuthTypes
    from mcp.client._transport import ReadStream as ReadStream
    from mcp.client._transport import TransportStreams as TransportStreams
    from mcp.client._transport import WriteStream as WriteStream


class BackendTransport(httpx2.AsyncHTTPTransport):
    """HTTP transport that connects through a network backend of ours and ignores proxies of the environment."""

    def __init__(self, network: httpcore2.AsyncNetworkBackend) -> None:
        """Connect through `network`."""
        context = httpx2.create_ssl_context(trust_env=False)  # only once, since it loads all certificate authorities
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=context, network_backend=network)
