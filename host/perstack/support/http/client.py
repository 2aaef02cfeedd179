"""The HTTP client of providers, for replies that are event streams; importing it imports httpx."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import cast

import httpx
from httpx_sse import EventSource

from perstack.errors import ProviderError
from perstack.support.http.endpoint import Endpoint
from perstack.support.http.errors import bad_response, status_error, stream_interrupted, with_message

# Repair of servers' JSON before parsing.

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_MAY_BE_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def replace_lone_surrogates(text: str) -> str:
    """Replace each escape that is half of a surrogate pair by U+FFFD, since JSON parsers refuse it."""
    return _ESCAPE.sub(_whole_escape, text) if _MAY_BE_HALF.search(text) else text


def _whole_escape(match: re.Match[str]) -> str:
    return match.group() if match[1] is None else "\\ufffd"


_CONNECT_TIMEOUT_S = 15.0
_DRAIN_TIMEOUT_S = 1.0
_KEEP_ALIVE_S = 60.0  # of an idle connection: tools often take longer than httpx's default of 5 s
_MAX_ERROR_BYTES = 65_536
_MAX_REPLY_BYTES = 64 * 1024 * 1024

OnData = Callable[[str], bool]  # receives the data of one event; returns whether it was the last

ReadEvents = Callable[[httpx.Response], AsyncGenerator[str]]  # splits a response's body into the data of its events


async def server_sent_events(response: httpx.Response) -> AsyncGenerator[str]:
    """Yield the data of server-sent events, the format of nearly every endpoint."""
    # some servers send another content type; and events are always UTF-8
    response.headers["content-type"] = "text/event-stream"
    async with aclosing(EventSource(response).aiter_sse()) as events:
        async for event in events:
            yield event.data


class StreamClient:
    """Keeps connections to one endpoint. Several Runs may generate at once."""

    def __init__(self, endpoint: Endpoint, read_events: ReadEvents = server_sent_events) -> None:
        """Connect to nothing yet."""
        self._endpoint = endpoint
        self._read_events = read_events
        self._client: httpx.AsyncClient | None = None

    async def post(self, path: str, body: bytes, on_data: OnData, headers: Mapping[str, str] | None = None) -> None:
        """Send `body`, and call `on_data` with each event's data until it returns True or the stream ends.

        `headers` apply to this request only; the endpoint's own take precedence. A reply that is one JSON document is
        passed on whole. Raises ProviderError; cancellation closes the connection.
        """
        endpoint = self._endpoint.with_headers(headers or {})
        url = endpoint.url(path)
        try:
            async with self._post(url, body, _lower_names(endpoint.headers)) as response:
                if response.status_code != 200:
                    raise await _refusal_error(response, url)
                await receive(response, url, on_data, self._read_events, endpoint.stall_seconds)
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
    """Return the error without our secrets, in case the endpoint has echoed them."""
    message = str(error)
    for secret in endpoint.secrets:
        message = message.replace(secret, "[redacted]")
    return with_message(error, message)


async def receive(
    response: httpx.Response,
    url: str,
    on_data: OnData,
    read_events: ReadEvents = server_sent_events,
    stall_seconds: float | None = None,
) -> None:
    """Pass on a response's events until `on_data` returns True. Raises ProviderError if too large or too silent."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        document = b"".join([part async for part in _limited_body(response, stall_seconds)])
        on_data(replace_lone_surrogates(document.decode("utf-8", "replace")))
    elif kind in ("text/html", "application/xhtml+xml"):
        raise bad_response(f"{url} answered with a web page, not with a reply: check the base URL", retryable=False)
    else:
        async with aclosing(_limited_body(response, stall_seconds)) as body:
            await _receive_events(read_events(httpx.Response(200, content=body)), on_data)


async def _limited_body(response: httpx.Response, stall_seconds: float | None) -> AsyncGenerator[bytes]:
    """Yield the body up to its maximum size. The limits also hold for an endless line and a stalled body."""
    size = 0
    parts = response.aiter_bytes()
    while (part := await _next_part(parts, stall_seconds if size else None)) is not None:
        size += len(part)
        if size > _MAX_REPLY_BYTES:
            raise bad_response(f"the reply is longer than {_MAX_REPLY_BYTES >> 20} MiB", retryable=False)
        yield part


async def _next_part(parts: AsyncIterator[bytes], seconds: float | None) -> bytes | None:
    """Return the next part of a body; None at its end. Raises ProviderError after `seconds` of silence."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(parts, None)
    except TimeoutError as error:
        message = f"the reply stalled: nothing came for {seconds:g} s; allow more with `stallTimeout`"
        raise ProviderError(message, name="Stall", is_retryable=True) from error


async def _receive_events(source: AsyncGenerator[str], on_data: OnData) -> None:
    async with aclosing(source) as events:
        async for data in events:
            if data and on_data(replace_lone_surrogates(data)):
                await _drain(events)
                return


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
            message = f"no connection to {url}{_usual_port(url)}: {_cause_of(error) or detail}"
            return ProviderError(message, name="ConnectError", is_retryable=True)
        case httpx.TimeoutException():
            return ProviderError(f"{url} fell silent: {detail}", name="Timeout", is_retryable=True)
        case httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
            return ProviderError(f"the request to {url} cannot be sent: {detail}", name="BadRequest")
        case httpx.ProxyError():
            return ProviderError(f"the proxy on the way to {url}: {detail}", name="ProxyError", is_retryable=True)
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
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else ""  # of a host's name


def _usual_port(url: str) -> str:
    """Return a remark with the port of an address that names none; empty for others."""
    address = httpx.URL(url)
    return "" if address.port else f" (port {443 if address.scheme == 'https' else 80})"


def _lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
