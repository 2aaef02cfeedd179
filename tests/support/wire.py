"""A wire format at one endpoint, as the providers' behaviour suite sees it."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import httpx

from perstack.ports.provider import Delta, Generation, Provider, ProviderConfig, ProviderFactory
from perstack.testing.endpoint import Reply
from perstack_http.client import ReadEvents, receive, server_sent_events

KEY = "sk-very-secret-0123456789"
READ = "readTextFile"


@dataclass(frozen=True)
class Said:
    """What a model says, in no vendor's words. Every reply reports 100 tokens sent, 64 of them cached, and 50 made."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Ids, and the paths that the tool is to read."""
    tool: str = READ
    stop: Literal["stop", "length", "refusal"] = "stop"


class Decoder(Protocol):
    """The reply side of a codec."""

    def feed(self, data: str) -> bool: ...
    def finish(self) -> Generation: ...


@dataclass(frozen=True, kw_only=True)
class Wire(ABC):
    """One endpoint in one format. A subclass renders replies; the fields say where things stand in a request."""

    title: str
    """The column of the page."""
    factory: ProviderFactory
    model: str
    path: str
    """Where a request has to arrive."""
    credential: Mapping[str, str]
    """The header that has to hold KEY, given as it has to be."""
    env: Mapping[str, str]
    missing: str | None
    """The variable that is named when the key is not there; None if there is no need of one."""
    limits: Mapping[str, Any]
    """What the body has to hold for `maxTokens` 99, `temperature` 0.5 and `topP` 0.9."""
    no_tools: Mapping[str, Any]
    """What the body has to hold if no tool may be called; empty if it has to be said to the model."""
    overflow: str
    """The vendor's own words for a conversation that is too long."""
    schema_at: tuple[str, ...] = ("output_config", "format", "schema")
    """Where the body has the schema of the result."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    """What follows the server's address in `baseUrl`."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """What of a thought may go back, by what the page calls it."""
    names_calls: bool = True
    """Whether results have the ids of their calls; if not, they stand in the calls' order."""

    def __str__(self) -> str:
        return self.title.replace(",", "").replace(" ", "-")

    @abstractmethod
    def reply(self, said: Said) -> Reply:
        """The reply as this endpoint streams it, at least three chunks if it says anything."""

    @abstractmethod
    def decoder(self, on_delta: Callable[[Delta], None]) -> Decoder:
        """The codec's own decoder."""

    @abstractmethod
    def results(self, body: Any) -> list[Any]:
        """The results of tools in a request's body, each as it is sent."""

    def tools(self, body: Any) -> Any:
        """What a request's body shows of tools; None for nothing."""
        return body.get("tools")

    def schema(self, body: Any) -> Any:
        """The schema of the result in a request's body, where the format has its place; None for none."""
        return at(body, self.schema_at)

    def forbids_tools(self, body: Any) -> bool:
        """Whether a request's body says that no tool may be called."""
        return holds(body, self.no_tools)

    def unmarked(self, body: bytes) -> bytes:
        """A request's body without what may change from one request to the next, and without its end."""
        return body.removesuffix(b"]}")

    def config(self, url: str | None, env: Mapping[str, str] | None = None, **more: Any) -> ProviderConfig:
        """Settings for a server at `url`; None: the vendor's own."""
        address = {} if url is None else {"baseUrl": url + self.base}
        return ProviderConfig({**address, **self.setting, **more}, self.env if env is None else env)

    def provider(self, url: str | None, env: Mapping[str, str] | None = None, **more: Any) -> Provider:
        return self.factory.create(self.config(url, env, **more))

    def refused(self, status: int, words: str, **headers: str) -> Reply:
        """An error with the vendor's words."""
        body = {"type": "error", "error": {"type": "t", "code": None, "message": words}}
        return Reply(
            (json.dumps(body).encode(),), status=status, headers={"content-type": "application/json", **headers}
        )

    def decode(self, chunks: Iterable[bytes]) -> tuple[Generation, list[Delta]]:
        """What the codec makes of a stream that comes in these chunks."""
        deltas: list[Delta] = []
        return decoded(chunks, self.decoder(deltas.append)), deltas


def at(body: Any, place: Iterable[str]) -> Any:
    """What a document has at a place; None for nothing."""
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
    """What a decoder makes of a stream of events that comes in these chunks."""
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Chunks(chunks))
    asyncio.run(receive(response, "https://a.example", decoder.feed, read_events))
    return decoder.finish()


def holds(body: Any, wanted: Any) -> bool:
    """Whether a document holds all of another."""
    if isinstance(wanted, Mapping):
        return isinstance(body, Mapping) and all(key in body and holds(body[key], one) for key, one in wanted.items())
    return bool(body == wanted)


def pieces(text: str) -> list[str]:
    """A text as a model gives it: three characters at a time."""
    return [text[at : at + 3] for at in range(0, len(text), 3)]
