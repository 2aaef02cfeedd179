"""Rows of the conformance suite for replies that deviate from their format.

A situation is a function that returns named replies for a wire; all of them must have one outcome, which is the cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from provider_suite import capability, request_of
from wire import Document, Said, Wire
from wire_anthropic import MessagesWire
from wire_bedrock import ConverseWire
from wire_google import GoogleWire
from wire_openai import ChatWire, ResponsesWire

from perstack.core.runs.messages import ExpertMessage, ThinkingPart
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply

Forms = Mapping[str, PreparedReply]
"""The forms in which a wire's servers show a situation, by name. Empty: they cannot."""


@dataclass(frozen=True)
class Taken:
    """The reply is taken: it is what `said` says, and was shown like that."""

    said: Said
    cell: str = "taken"

    def difference(self, outcome: Outcome) -> str:
        """Return how an outcome differs; empty if it does not."""
        if isinstance(outcome.end, ProviderError):
            return f"failed: {outcome.end}"
        found = _as_said(outcome.end.reply)
        wanted = (self.said.text, self.said.thinking, [(self.said.tool, {"path": path}) for _, path in self.said.calls])
        shown = tuple("".join(one.text for one in outcome.deltas if one.kind == kind) for kind in ("text", "reasoning"))
        finish = "toolCalls" if self.said.calls and self.said.stop == "stop" else self.said.stop
        if found != wanted:
            return f"{found} in place of {wanted}"
        if shown != wanted[:2]:
            return f"shown {shown} in place of {wanted[:2]}"
        return "" if outcome.end.finish_reason == finish else f"ended with {outcome.end.finish_reason}"


@dataclass(frozen=True)
class Fails:
    """The try fails, with the vendor's words."""

    name: str
    words: str = ""
    is_retryable: bool = True

    @property
    def cell(self) -> str:
        """The text of the cell."""
        return f"`{self.name}`, {'tries again' if self.is_retryable else 'ends the Run'}"

    def difference(self, outcome: Outcome) -> str:
        """Return how an outcome differs; empty if it does not."""
        error = outcome.end
        if isinstance(error, Generation):
            return f"taken: {error}"
        found = (error.name, error.is_retryable, self.words in str(error))
        return "" if found == (self.name, self.is_retryable, True) else f"{found}: {error}"


@dataclass(frozen=True)
class Outcome:
    """The end of a try, and what was shown of it."""

    end: Generation | ProviderError
    deltas: tuple[Delta, ...]


def situation(
    title: str, expected: Taken | Fails, **setting: Any
) -> Callable[[Callable[[Wire], Forms]], Callable[[Wire], str]]:
    """Register a situation as a row. `setting` has the provider's settings for it."""

    def register(forms_of: Callable[[Wire], Forms]) -> Callable[[Wire], str]:
        def check(wire: Wire) -> str:
            forms = forms_of(wire)
            outcomes = asyncio.run(_outcomes(wire, forms, setting))
            differences = {name: expected.difference(outcome) for name, outcome in outcomes.items()}
            assert not any(differences.values()), differences
            return expected.cell if forms else "—"

        return capability(title)(check)

    return register


async def _outcomes(wire: Wire, forms: Forms, setting: Mapping[str, Any]) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for name, reply in forms.items():
        async with asyncio.timeout(30), FakeEndpoint(reply) as endpoint:
            provider, deltas = wire.provider(endpoint.url, **setting), list[Delta]()
            try:
                end: Generation | ProviderError = await provider.generate(request_of(wire), deltas.append)
            except ProviderError as error:
                end = error
            await provider.close()
            outcomes[name] = Outcome(end, tuple(deltas))
    return outcomes


def _as_said(reply: ExpertMessage) -> tuple[str, str, list[tuple[str, Any]]]:
    thinking = "".join(part.thinking for part in reply.contents if isinstance(part, ThinkingPart))
    calls = [(call.tool_name, call.args if call.raw_args is None else call.raw_args) for call in reply.tool_calls]
    return reply.text, thinking, calls


def _framed(wire: Wire, forms: Mapping[str, list[Document]]) -> Forms:
    return {name: wire.framed(documents) for name, documents in forms.items()}


_SAID = Said("Grüß Gott 😀", thinking="Hm, yes.", calls=(("c1", "ä.txt"), ("c2", "b")))
_WORDS = "too busy for this"


@situation("Unknown events and fields in a stream", Taken(_SAID))
def unknown_events(wire: Wire) -> Forms:
    odd: Document = {"fancyEvent": {"a": 1}} if isinstance(wire, ConverseWire) else {"type": "fancy", "x": [1]}
    return _framed(wire, {"between all": [one for document in wire.documents(_SAID) for one in (odd, document)]})


@situation("An error inside a stream", Fails("ServerError", _WORDS))
def error_inside(wire: Wire) -> Forms:
    half = wire.documents(_SAID)[:4]
    return _framed(wire, {name: [*half, error] for name, error in _errors(wire).items()})


def _errors(wire: Wire) -> dict[str, Document]:
    match wire:
        case ChatWire():
            return {"at the top": {"error": {"message": _WORDS, "code": 503}}}
        case MessagesWire():
            return {"event": {"type": "error", "error": {"type": "api_error", "message": _WORDS}}}
        case ResponsesWire():
            return {"event": {"type": "error", "code": "server_error", "message": _WORDS, "param": None}}
        case GoogleWire():
            return {"at the top": {"error": {"code": 503, "message": _WORDS, "status": "UNAVAILABLE"}}}
        case ConverseWire():
            return {"exception": {"serviceUnavailableException": {"message": _WORDS}}}
        case _:
            raise AssertionError("name the forms of this wire's errors")
