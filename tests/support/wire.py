"""A wire format at one endpoint, for the providers' test suite."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import httpx

from perstack.http_providers.client import ReadEvents, receive
from perstack.http_providers.event_streams import server_sent_events
from perstack.http_providers.replies import ReplyProgress
from perstack.ports.provider import Delta, Generation, Provider, ProviderConfig, ProviderFactory
from perstack.testing.fake_endpoint import PreparedReply, events

KEY = "sk-very-secret-0123456789"
READ = "readTextFile"


@dataclass(frozen=True)
class Said:
    """A reply in vendor-neutral terms.

    Every reply reports 100 input tokens, 64 of them cached, and 50 output tokens.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Ids, and the paths that the tool must read."""
    tool: str = READ
    argument: str = "path"
    """Name of the argument with the path."""
    stop: Literal["stop", "length", "refusal"] = "stop"


Document = dict[str, Any] | str
"""The data of one event: a JSON object, or text that is sent as it is."""


def as_data(document: Document) -> str:
    """Return the data of an event as text."""
    return document if isinstance(document, str) else json.dumps(document, ensure_ascii=False, separators=(",", ":"))


class Decoder(Protocol):
    """The decoder of a codec's replies."""

    def feed(self, data: str) -> ReplyProgress: ...
    def finish(self) -> Generation: ...


@dataclass(frozen=True, kw_only=True)
class Wire(ABC):
    """One endpoint in one format. Subclasses render replies; the fields locate data in requests."""

    title: str
    """Column title of the page."""
    factory: ProviderFactory
    model: str
    path: str
    """Expected request path."""
    credential: Mapping[str, str]
    """The expected header with KEY."""
    env: Mapping[str, str]
    missing: str | None
    """The variable named when the key is missing; None if no key is needed."""
    limits: Mapping[str, Any]
    """Expected body for `maxTokens` 99, `temperature` 0.5 and `topP` 0.9."""
    no_tools: Mapping[str, Any]
    """Expected body if no tool may be called; empty if the model must be told instead."""
    overflow: str
    """The vendor's message for a conversation that is too long."""
    schema_at: tuple[str, ...] = ("output_config", "format", "schema")
    """Place of the result's schema in the body."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    """Path that follows the server's address in `baseUrl`."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Parts of thoughts that may be sent back, by their name on the page."""
    names_calls: bool = True
    """Whether results have the ids of their calls; otherwise they are in the calls' order."""

    def __str__(self) -> str:
        return self.title.replace(",", "").replace(" ", "-")

    @abstractmethod
    def documents(self, said: Said) -> list[Document]:
        """Return the events of a reply, in their order."""

    def framed(self, documents: Iterable[Document]) -> PreparedReply:
        """Return events as this endpoint streams them, each in a chunk."""
        return PreparedReply(events(*map(as_data, documents)))

    def reply(self, said: Said) -> PreparedReply:
        """Return the reply as this endpoint streams it, in at least three chunks unless it is empty."""
        return self.framed(self.documents(said))

    @abstractmethod
    def decoder(self, on_delta: Callable[[Delta], None]) -> Decoder:
        """Return the codec's own decoder."""

    @abstractmethod
    def results(self, body: Any) -> list[Any]:
        """Return the tool results in a request's body, as sent."""

    def tools(self, body: Any) -> Any:
        """Return the tools in a request's body, or None."""
        return body.get("tools")

    def schema(self, body: Any) -> Any:
        """Return the result's schema in a request's body, or None."""
        return value_at(body, self.schema_at)

    def forbids_tools(self, body: Any) -> bool:
        """Return whether a request's body forbids tool calls."""
        return contains(body, self.no_tools)

    def refusal_of(self, body: Any) -> str | None:
        """Return the vendor's message for a body that breaks a rule of the format; None if no rule is known."""
        return None

    def unmarked(self, body: bytes) -> bytes:
        """Return a request's body without parts that may change between requests, and without its end."""
        return body.removesuffix(b"]}")

    def config(self, url: str | None, env: Mapping[str, str] | None = None, **more: Any) -> ProviderConfig:
        """Return the settings for a server at `url`; None means the vendor's own."""
        address = {} if url is None else {"baseUrl": url + self.base}
        return ProviderConfig({**address, **self.setting, **more}, self.env if env is None else env)

    def provider(self, url: str | None, env: Mapping[str, str] | None = None, **more: Any) -> Provider:
        return self.factory.create(self.config(url, env, **more))

    def error_reply(self, status: int, words: str, **headers: str) -> PreparedReply:
        """Return an error response with the vendor's message."""
        body = {"type": "error", "error": {"type": "t", "code": None, "message": words}}
        return PreparedReply(
            (json.dumps(body).encode(),), status=status, headers={"content-type": "application/json", **headers}
        )

    def decode(self, chunks: Iterable[bytes]) -> tuple[Generation, list[Delta]]:
        """Decode a stream that arrives in these chunks."""
        deltas: list[Delta] = []
        return decoded(chunks, self.decoder(deltas.append)), deltas


def value_at(body: Any, place: Iterable[str]) -> Any:
    """Return the value at a path of a document, or None."""
    for name in place:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body


class _Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def decoded(chunks: Iterable[bytes], decoder: Decoder, read_events: ReadEvents = server_sent_events) -> Generation:
    """Decode a stream of events that arrives in these chunks."""
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Chunks(chunks))
    asyncio.run(receive(response, decoder.feed, read_events, (30, 30)))
    return decoder.finish()


def contains(body: Any, wanted: Any) -> bool:
    """Return whether a document contains all of another."""
    if isinstance(wanted, Mapping):
        return isinstance(body, Mapping) and all(
            key in body and contains(body[key], one) for key, one in wanted.items()
        )
    return bool(body == wanted)


def pieces(text: str) -> list[str]:
    """Split a text as a model streams it: three characters at a time."""
    return [text[at : at + 3] for at in range(0, len(text), 3)]
