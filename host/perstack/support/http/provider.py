"""The connection of a provider that has not generated yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perstack.support.http.endpoint import Endpoint

if TYPE_CHECKING:
    from perstack.support.http.client import OnData, ReadEvents, StreamClient


class LazyClient:
    """A `StreamClient` that is created at the first request: importing httpx takes 100 ms."""

    def __init__(self, endpoint: Endpoint, read_events: ReadEvents | None = None) -> None:
        """Import and connect nothing yet."""
        self._endpoint = endpoint
        self._read_events = read_events
        self._client: StreamClient | None = None

    async def post(self, path: str, body: bytes, on_data: OnData, headers: Mapping[str, str] | None = None) -> None:
        """Send a request as `StreamClient.post` does."""
        await self._opened().post(path, body, on_data, headers)

    async def close(self) -> None:
        """Close all connections, if there are any."""
        if self._client is not None:
            await self._client.close()

    def _opened(self) -> StreamClient:
        if self._client is None:
            from perstack.support.http.client import StreamClient, server_sent_events

            self._client = StreamClient(self._endpoint, self._read_events or server_sent_events)
        return self._client
