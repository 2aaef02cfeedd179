"""The HTTP client of providers, for replies that are event streams; importing it imports httpx."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import cast

import httpx

from perstack.errors import ProviderError
from perstack.http_providers.endpoint import Endpoint
from perstack.http_providers.errors import bad_response, status_error, stream_interrupted, with_message
from perstack.http_providers.event_streams import server_sent_events
from perstack.http_providers.replies import OnData, ReplyProgress

_CONNECT_TIMEOUT_S = 15.0
_DRAIN_TIMEOUT_S = 1.0
_END_GRACE_S = 2.0  # seconds to wait for token counts and an end mark after the end of a reply
_KEEP_ALIVE_S = 60.0  # idle time of a connection: tools often take longer than httpx's default of 5 s
_MAX_ERROR_BYTES = 1 << 20  # some servers echo the request in an error
_MAX_REPLY_BYTES = 64 * 1024 * 1024

ReadEvents = Callable[[AsyncIterable[bytes]], AsyncGenerator[str]]
"""Function that splits a body into the data of its events; the empty string means that an event is still arriving."""


class StreamClient:
    """Connections to one endpoint. Several Runs may generate at once."""

    def __init__(self, endpoint: Endpoint, read_events: ReadEvents = server_sent_events) -> None:
        """Connect to nothing yet."""
        self._endpoint = endpoint
        self._read_events = read_events
        self._client: httpx.AsyncClient | None = None

    async def post(self, path: str, body: bytes, on_data: OnData, headers: Mapping[str, str] | None = None) -> None:
        """Send `body`, and call `on_data` with each event's data until it returns LAST or the stream ends.

        `headers` apply to this request only; the endpoint's own take precedence. Raises ProviderError; cancellation
        closes the connection.
        """
        endpoint = self._endpoint.with_headers(headers or {})
        url = endpoint.url(path)
        try:
            async with self._post(url, body, _lower_names(endpoint.headers)) as response:
                if response.status_code != 200:
                    raise await _refusal_error(response, url)
                silences = (endpoint.read_seconds, endpoint.stall_seconds)
                await receive(response, on_data, self._read_events, silences)
        except httpx.HTTPError as error:
            raise _without_secrets(_transport_error(error, url), endpoint) from None
        except ProviderError as error:
            raise _without_secrets(error, endpoint) from error.__cause__

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @asynccontextmanager
    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[httpx.Response]:
        async with self._ensure_client().stream("POST", url, content=body, headers=headers) as response:
            try:
                yield response
            finally:
                await response.aclose()
                # break the reference cycle of the response, its stream and the request's body: otherwise the bodies of
                # hundreds of requests would stay in memory until the garbage collector runs
                response.stream = httpx.ByteStream(b"")

    def _ensure_client(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"user-agent": "perstack", "accept": "text/event-stream", "content-type": "application/json"}
            self._client = httpx.AsyncClient(
                headers=headers,
                timeout=httpx.Timeout(self._endpoint.read_seconds, connect=_CONNECT_TIMEOUT_S, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=_KEEP_ALIVE_S),
                # a proxy would see the key of a request that must not leave this machine
                trust_env=not self._endpoint.is_plain,
                # loading the certificate authorities takes 20 ms; without TLS none is needed, and this one trusts none
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if self._endpoint.is_plain else True,
            )
        return self._client


def _without_secrets(error: ProviderError, endpoint: Endpoint) -> ProviderError:
    """Return the error without the endpoint's secrets, which a server may have echoed."""
    message = str(error)
    for secret in endpoint.secrets:
        message = message.replace(secret, "[redacted]")
    return with_message(error, message)


async def receive(
    response: httpx.Response, on_data: OnData, read_events: ReadEvents, silences: tuple[float, float]
) -> None:
    """Pass on a response's events until `on_data` returns LAST, or the stream ends.

    `silences`: the maximum seconds before the reply begins, and within it. Raises ProviderError if it is too large or
    too silent. Only what `on_data` calls progress ends a silence, since pings and comments may continue for ever. After
    a reply has FINISHED, silence, a broken connection and unreadable data end it without an error.
    """
    before, within = silences
    has_begun = is_finished = False
    silence = _Silence(before)
    async with aclosing(_limited_body(response, silence)) as body, aclosing(read_events(body)) as events:
        progress = ReplyProgress.IDLE
        while progress is not ReplyProgress.LAST:
            try:
                data = await anext(events, None)
                if data is None:
                    return
                progress = on_data(data) if data else ReplyProgress.MORE
            except (TimeoutError, httpx.HTTPError, ProviderError) as error:
                if is_finished and _is_end(error):
                    return
                if isinstance(error, TimeoutError):
                    raise _too_silent(silence.seconds, has_begun=has_begun) from error
                raise
            if progress is ReplyProgress.IDLE:
                continue
            has_begun = True
            is_finished = is_finished or progress is ReplyProgress.FINISHED
            silence.restart(min(_END_GRACE_S, within) if is_finished else within)
        await _drain(events)


class _Silence:
    """Limit of the time without progress, checked for each piece of the body: most pieces have several events."""

    def __init__(self, seconds: float) -> None:
        self._now = asyncio.get_running_loop().time
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        """Start again, with a limit of `seconds`."""
        self.seconds, self.end = seconds, self._now() + seconds


def _is_end(error: Exception) -> bool:
    return not isinstance(error, ProviderError) or error.name in ("BadResponse", "CutStream")


def _too_silent(seconds: float, *, has_begun: bool) -> ProviderError:
    if not has_begun:
        message = f"no reply began within {seconds:g} s; allow more with `readTimeout`"
        return ProviderError(message, name="Timeout", is_retryable=True)
    message = f"the reply stalled: nothing came for {seconds:g} s; allow more with `stallTimeout`"
    return ProviderError(message, name="Stall", is_retryable=True)


async def _limited_body(response: httpx.Response, silence: _Silence) -> AsyncGenerator[bytes]:
    """Yield the body up to its maximum size, which also holds for an endless line. Raises TimeoutError for silence."""
    size = 0
    parts = response.aiter_bytes()
    while True:
        async with asyncio.timeout_at(silence.end):
            part = await anext(parts, None)
        if part is None:
            return
        size += len(part)
        if size > _MAX_REPLY_BYTES:
            raise bad_response(f"the reply is longer than {_MAX_REPLY_BYTES >> 20} MiB", retryable=False)
        yield part


async def _drain(events: AsyncIterator[object]) -> None:
    """Read to the end so that the connection can be reused; give up if the server takes too long."""
    try:
        async with asyncio.timeout(_DRAIN_TIMEOUT_S):
            async for _ in events:
                pass
    except (TimeoutError, httpx.HTTPError, ProviderError):
        return


async def _refusal_error(response: httpx.Response, url: str) -> ProviderError:
    body = await _read(response, _MAX_ERROR_BYTES)
    return status_error(response.status_code, _lower_names(response.headers), body, url)


async def _read(response: httpx.Response, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(parts)[:limit]


def _transport_error(error: httpx.HTTPError, url: str) -> ProviderError:
    detail = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        message = f"the certificate of {url} is not trusted ({detail}): set SSL_CERT_FILE if the authority is your own"
        return ProviderError(message, name="Certificate")
    match error:
        case httpx.ConnectTimeout() | httpx.ConnectError():
            message = f"no connection to {url}{_default_port_note(url)}: {_cause_of(error) or detail}"
            return ProviderError(message, name="ConnectError", is_retryable=True)
        case httpx.TimeoutException():
            return ProviderError(f"no answer from {url} in time: {detail}", name="Timeout", is_retryable=True)
        case httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
            return ProviderError(f"the request to {url} cannot be sent: {detail}", name="BadRequest")
        case httpx.ProxyError():
            return ProviderError(f"the proxy for {url} failed: {detail}", name="ProxyError", is_retryable=True)
        case _:
            return stream_interrupted(detail)


def _cause_of(error: BaseException) -> str:
    """Return the system's reason for a failed connection, such as `connection refused`; empty if it gives none."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, BaseExceptionGroup):
        cause = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if cause is not None:
        return _cause_of(cause)
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:
        return os.strerror(number).lower()
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else ""  # a name lookup failed


def _default_port_note(url: str) -> str:
    """Return a note with the default port for an address without a port; empty for others."""
    address = httpx.URL(url)
    return "" if address.port else f" (port {443 if address.scheme == 'https' else 80})"


def _lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
