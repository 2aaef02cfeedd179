"""uvicorn's HTTP protocol for public servers: a malformed request gets a response instead of a traceback."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class StrictProtocol(H11Protocol):
    """H11Protocol that can also refuse a request whose body turns out to be malformed."""

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request and close the connection.

        If its header was valid, the application already has the request and must learn that the client is gone: h11
        raises for a second response, and uvicorn would log a traceback for each such request.
        """
        cycle = self.cycle
        # None before the first request, although uvicorn does not declare that
        if cycle is not None and not cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:  # a response has begun, so no other can be sent
            self.transport.close()
