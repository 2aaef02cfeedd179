"""Rows of the conformance suite for replies that deviate from their format.

A situation is a function that returns named replies for a wire; all of them must have one outcome, which is the cell.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provider_suite import capability, request_of
from wire import Document, Said, Wire
from wire_anthropic import MessagesWire
from wire_bedrock import ChunksWire, ConverseWire
from wire_google import GoogleWire
from wire_openai import ChatWire, ResponsesWire

from perstack.core.messages.messages import ExpertMessage, ThinkingPart
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
    finish: str = ""  # finish reason, if it is another than the one that `said` has

    def difference(self, outcome: Outcome) -> str:
        """Return how an outcome differs; empty if it does not."""
        if isinstance(outcome.end, ProviderError):
            return f"failed: {outcome.end}"
        found = _as_said(outcome.end.reply)
        wanted = (self.said.text, self.said.thinking, [(self.said.tool, {"path": path}) for _, path in self.said.calls])
        shown = tuple("".join(one.text for one in outcome.deltas if one.kind == kind) for kind in ("text", "reasoning"))
        finish = self.finish or ("toolCalls" if self.said.calls and self.said.stop == "stop" else self.said.stop)
        if found != wanted:
            return f"{found} in place of {wanted}"
        if shown != wanted[:2]:
            return f"shown {shown} in place of {wanted[:2]}"
        if outcome.end.finish_reason != finish:
            return f"ended with {outcome.end.finish_reason}"
        counts = (outcome.end.usage.input_tokens, outcome.end.usage.output_tokens)
        return "" if counts in ((100, 50), (0, 0)) else f"counted {counts}"


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
_TEXT = Said("Grüß Gott 😀")
_WORDS = "too busy for this"
_JSON, _HTML, _PLAIN = ({"content-type": kind} for kind in ("application/json", "text/html", "text/plain"))


# --- errors in place of a reply, or within it


@situation("An error inside a stream", Fails("ServerError", _WORDS))
def error_inside(wire: Wire) -> Forms:
    half = wire.documents(_SAID)[:4]
    return _framed(wire, {name: [*half, error] for name, error in _errors(wire).items()})


def _errors(wire: Wire) -> dict[str, Document]:
    flat = {"message": _WORDS, "code": 503}
    match wire:
        case ChatWire():
            return {
                "at the top": {"error": flat},
                "as text": {"error": _WORDS},
                "as an object": {"object": "error", "type": "InternalServerError", **flat},
                "in the choice": {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": flat}]},
                "in an extension": {"x_groq": {"id": "r", "error": _WORDS}},
                "in a list": {"errors": [flat]},
                "by words alone": {"message": _WORDS},
            }
        case MessagesWire():
            return {
                "event": {"type": "error", "error": {"type": "api_error", "message": _WORDS}},
                "at the top": {"error": {"type": "internal_server_error", "message": _WORDS}},
                "as text": {"type": "error", "error": _WORDS},
            }
        case ResponsesWire():
            failed = {"status": "failed", "output": [], "error": {"code": "server_error", "message": _WORDS}}
            return {
                "event": {"type": "error", "code": "server_error", "message": _WORDS, "param": None},
                "object in an event": {"type": "error", "error": {"code": "server_error", "message": _WORDS}},
                "failed": {"type": "response.failed", "response": failed},
                "failed as completed": {"type": "response.completed", "response": failed},
                "document": {"object": "response", **failed},
            }
        case GoogleWire():
            status = {"code": 503, "message": _WORDS, "status": "UNAVAILABLE"}
            return {"at the top": {"error": status}, "by name": {"error": {"message": _WORDS, "status": "UNAVAILABLE"}}}
        case ConverseWire():
            return {"exception": {"serviceUnavailableException": {"message": _WORDS}}}
        case _:
            raise AssertionError("name the forms of this wire's errors")


@situation("An error as a document with status 200", Fails("RateLimit", _WORDS))
def error_document(wire: Wire) -> Forms:
    failure = {"error": {"message": _WORDS, "code": 429, "status": "RESOURCE_EXHAUSTED", "type": "rate_limit_error"}}
    body = json.dumps(failure, indent=1).encode()
    forms = {
        "JSON": PreparedReply((body[:9], body[9:]), headers=_JSON),
        "list": PreparedReply((b"[" + body + b"]",), headers=_JSON),
        "text": PreparedReply((body,), headers=_PLAIN),
        "stream": PreparedReply((body,)),
    }
    is_framed = isinstance(wire, ConverseWire | ChunksWire)
    return forms if is_framed else {**forms, "event by name": PreparedReply((b"event: error\ndata: " + _flat(body),))}


def _flat(body: bytes) -> bytes:
    return json.dumps(json.loads(body)["error"]).encode() + b"\n\n"


@situation("A proxy's page or text with status 200", Fails("ServerError", "Bad Gateway"))
def proxy_page(wire: Wire) -> Forms:
    page = b"<html>\n<head><title>502 Bad Gateway</title></head><body><h1>nginx</h1></body></html>"
    return {
        "page": PreparedReply((page[:20], page[20:]), headers=_HTML),
        "page as a stream": PreparedReply((page,)),
        "text": PreparedReply((b"Bad ", b"Gateway\n"), headers=_PLAIN),
        "text with its status": PreparedReply((b"502 Bad Gateway",)),
    }


@situation("A web page with status 200", Fails("BadResponse", "check the base URL", is_retryable=False))
def web_page(wire: Wire) -> Forms:
    return {"page": PreparedReply((b"<!doctype html><title>Sign in</title>",), headers=_HTML)}


@situation("A reply that ends as failed", Fails("BadResponse", "failed"))
def failed_end(wire: Wire) -> Forms:
    match wire:
        case ChatWire():
            end: Document = {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}
            return _framed(wire, {"reason": [*wire.documents(_TEXT)[:3], end, "[DONE]"]})
        case MessagesWire():
            end = {"type": "message_delta", "delta": {"stop_reason": "error"}}
            return _framed(wire, {"reason": [*wire.documents(_TEXT)[:5], end, {"type": "message_stop"}]})
        case ConverseWire():
            return _framed(wire, {"reason": [{"messageStop": {"stopReason": "model_error_failed"}}]})
        case GoogleWire():
            return _framed(wire, {"reason": [{"candidates": [{"finishReason": "REQUEST_FAILED"}]}]})
        case _:
            return {}


@situation("A prompt that the endpoint rejects within the stream", Fails("BadRequest", _WORDS, is_retryable=False))
def rejected_prompt(wire: Wire) -> Forms:
    match wire:
        case ResponsesWire():
            rejected: Document = {"type": "error", "code": "invalid_prompt", "message": _WORDS}
        case MessagesWire():
            rejected = {"type": "error", "error": {"type": "invalid_request_error", "message": _WORDS}}
        case ChatWire():
            rejected = {"error": {"code": "invalid_prompt", "message": _WORDS}}
        case _:
            return {}
    return _framed(wire, {"error": [*wire.documents(_TEXT)[:3], rejected]})


# --- ends


@situation("A text with the end mark and no finish reason", Taken(_TEXT, finish="other"))
def end_mark_alone(wire: Wire) -> Forms:
    if not isinstance(wire, ChatWire):
        return {}
    chunks = [document for document in wire.documents(_TEXT) if '"finish_reason": "stop"' not in json.dumps(document)]
    assert chunks[-1] == "[DONE]"
    return _framed(wire, {"end mark": chunks})


@situation("A finished reply without its end mark", Taken(_SAID), stallTimeout=5_000)
def no_end_mark(wire: Wire) -> Forms:
    whole = wire.framed(_without_mark(wire))
    return {"the body ends": whole, "the connection breaks": replace(whole, ending="cut")}


@situation("A finished reply, and then silence or pings for ever", Taken(_SAID), stallTimeout=700)
def silence_after_end(wire: Wire) -> Forms:
    whole = wire.framed(_without_mark(wire))
    forms = {"silence": replace(whole, ending="hang")}
    ping = _ping(wire)
    return forms if ping is None else {**forms, "pings": replace(whole, chunks=(*whole.chunks, ping), ending="beat")}


@situation("Pings for ever inside a reply", Fails("Stall"), stallTimeout=700)
def pings_for_ever(wire: Wire) -> Forms:
    half, ping = wire.framed(wire.documents(_SAID)[:5]), _ping(wire)
    return {} if ping is None else {"pings": replace(half, chunks=(*half.chunks, ping), ending="beat")}


def _without_mark(wire: Wire) -> list[Document]:
    documents = wire.documents(_SAID)
    match wire:
        case ChatWire() | MessagesWire():
            return documents[:-1]
        case _:  # its last event is its end
            return documents


def _ping(wire: Wire) -> bytes | None:
    match wire:
        case ConverseWire():
            return None
        case MessagesWire():
            return wire.framed([{"type": "ping"}]).chunks[0]
        case _:
            return b": keep-alive\n\n"


@situation("A whole reply in one document", Taken(_SAID))
def one_document(wire: Wire) -> Forms:
    body = json.dumps(_document(wire)).encode()
    forms = {
        "JSON": PreparedReply((body,), headers=_JSON),
        "stream": PreparedReply((body[:50], body[50:])),
        "text": PreparedReply((body,), headers=_PLAIN),
        "silence after it": PreparedReply((body,), headers=_JSON, ending="hang"),
    }
    if isinstance(wire, ConverseWire | ChunksWire):
        return forms
    return {**forms, "event": PreparedReply((b"data: " + body + b"\n\n",))}


def _document(wire: Wire) -> Any:
    calls = [(call_id, {"path": path}) for call_id, path in _SAID.calls]
    match wire:
        case ChatWire():
            functions = [
                {"id": one, "type": "function", "function": {"name": _SAID.tool, "arguments": json.dumps(args)}}
                for one, args in calls
            ]
            message = {"role": "assistant", "content": _SAID.text, "tool_calls": functions}
            return {"choices": [{"message": {**message, wire.thinking: _SAID.thinking}, "finish_reason": "tool_calls"}]}
        case MessagesWire():
            blocks = [{"type": "tool_use", "id": one, "name": _SAID.tool, "input": args} for one, args in calls]
            content = [{"type": "thinking", "thinking": _SAID.thinking, "signature": "s"}]
            content = [*content, {"type": "text", "text": _SAID.text}, *blocks]
            return {"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use"}
        case ResponsesWire():
            return wire.documents(_SAID)[-1]["response"]
        case GoogleWire():
            contents = (one["candidates"][0].get("content", {}) for one in wire.documents(_SAID))
            parts = [part for content in contents for part in content.get("parts", ())]
            return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
        case ConverseWire():
            uses = [{"toolUse": {"toolUseId": one, "name": _SAID.tool, "input": args}} for one, args in calls]
            thought = {"reasoningContent": {"reasoningText": {"text": _SAID.thinking, "signature": "s"}}}
            message = {"role": "assistant", "content": [thought, {"text": _SAID.text}, *uses]}
            return {"output": {"message": message}, "stopReason": "tool_use"}
        case _:
            raise AssertionError("write this wire's document")


# --- forms of texts, calls and counts


@situation("Unknown events and fields in a stream", Taken(_SAID))
def unknown_events(wire: Wire) -> Forms:
    odd: Document = {"fancyEvent": {"a": 1}} if isinstance(wire, ConverseWire) else {"type": "fancy", "x": [1]}
    return _framed(wire, {"between all": [one for document in wire.documents(_SAID) for one in (odd, document)]})


@situation("A character whose halves come in two events", Taken(Said("abcdefghijk😀xyz")))
def halves(wire: Wire) -> Forms:
    # the texts are streamed three or four characters at a time
    def edited(text: str) -> str:
        text = text.replace("k12x", "k😀x")
        return text.replace('k1"', r'k\ud83d"').replace('"2x', r'"\ude00x')

    documents: list[Document] = []
    for one in wire.documents(Said("abcdefghijk12xyz")):
        if isinstance(wire, ConverseWire) and isinstance(one, dict):
            documents += [f"{kind} {edited(json.dumps(content))}" for kind, content in one.items()]
        else:
            documents.append(edited(one if isinstance(one, str) else json.dumps(one)))
    return _framed(wire, {"escapes": documents})


_CALLS = Said(calls=(("c1", "a"), ("c2", "b")))


@situation("Calls without what tells them apart, or with arguments that come twice", Taken(_CALLS))
def odd_calls(wire: Wire) -> Forms:
    first, second = '{"path": "a"}', '{"path": "b"}'
    match wire:
        case ChatWire():
            return _framed(wire, {name: _chat(*groups) for name, groups in _chat_calls(first, second).items()})
        case MessagesWire():
            documents = wire.documents(_CALLS)
            start, end = [one for one in documents if one["type"] == "message_start"], documents[-2:]
            blocks = [
                [
                    {"type": "content_block_start", "index": 0, "content_block": {**_USE, "input": given}},
                    *({"type": "content_block_delta", "index": 0, "delta": {"partial_json": one}} for one in pieces),
                ]
                for given, pieces in (({}, ("{}", first)), ({"path": "b"}, (second,)))
            ]
            return _framed(wire, {"one index, and no ids": [*start, *blocks[0], *blocks[1], *end]})
        case ResponsesWire():
            added, done = "response.output_item.added", "response.output_item.done"
            item = {"type": "function_call", "name": _CALLS.tool}
            arguments = [
                [
                    {"type": added, "item": item},
                    {"type": "response.function_call_arguments.delta", "delta": text[:5]},
                    {"type": "response.function_call_arguments.delta", "delta": text[5:]},
                    *ends,
                ]
                for text, ends in (
                    (first, [{"type": "response.function_call_arguments.done", "arguments": first}]),
                    (second, [{"type": done, "item": {**item, "arguments": second}}]),
                )
            ]
            completed = {"type": "response.completed", "response": {"status": "completed", "output": []}}
            items = [{**item, "call_id": "c", "arguments": one} for one in (first, second)]
            only_done: list[Document] = [{"type": done, "item": one} for one in items]
            return _framed(
                wire, {"no ids": [*arguments[0], *arguments[1], completed], "equal ids": [*only_done, completed]}
            )
        case GoogleWire():
            given = ({"path": "a"}, second)
            parts = [{"functionCall": {"id": "same", "name": _CALLS.tool, "args": one}} for one in given]
            return _framed(
                wire, {"equal ids": [{"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}]}
            )
        case ConverseWire():
            use = {"toolUse": {"toolUseId": "same", "name": _CALLS.tool}}
            documents: list[Document] = []
            for pieces in (("{}", first), (second, second)):
                documents.append({"contentBlockStart": {"contentBlockIndex": 0, "start": use}})
                documents += [
                    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"toolUse": {"input": one}}}}
                    for one in pieces
                ]
            return _framed(wire, {"one index and id": [*documents, {"messageStop": {"stopReason": "tool_use"}}]})
        case _:
            raise AssertionError("name the odd calls of this wire's servers")


_USE = {"type": "tool_use", "name": _CALLS.tool}


def _chat(*groups: list[dict[str, Any]]) -> list[Document]:
    deltas = [{"choices": [{"index": 0, "delta": {"tool_calls": group}}]} for group in groups]
    return [*deltas, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, "[DONE]"]


def _chat_calls(first: str, second: str) -> dict[str, list[list[dict[str, Any]]]]:
    """Return groups of call deltas by what is odd; a group comes in one event."""

    def delta(arguments: Any = None, *, is_named: bool = True, **marks: Any) -> dict[str, Any]:
        name = {"name": _CALLS.tool} if is_named else {}
        return {**marks, "function": name if arguments is None else {**name, "arguments": arguments}}

    def rest(arguments: Any = None, **marks: Any) -> dict[str, Any]:
        return delta(arguments, is_named=False, **marks)

    return {
        "one index": [[delta(first, index=0, id="x")], [delta(second, index=0, id="y")]],
        "one index, empty ids": [[delta(first, index=0, id="")], [delta(second, index=0, id="")]],
        "one index, no ids": [[delta(first, index=0)], [delta(second, index=0)]],
        "one index, in one event": [[delta(first, index=0, id=""), delta(second, index=0, id="")]],
        "no index": [[delta(first, id=""), delta(second, id="")]],
        "equal ids": [[delta(first, index=0, id="x")], [delta(second, index=1, id="x")]],
        "equal ids and indexes": [[delta(first, index=0, id="x")], [delta(second, index=0, id="x")]],
        "equal ids, interleaved": [
            [delta("", index=0, id="x")], [delta("", index=1, id="x")],
            [rest(first[:5], index=0)], [rest(second[:5], index=1)],
            [rest(first[5:], index=0)], [rest(second[5:], index=1)],
        ],
        "indexes as text": [[delta(first[:5], index="0"), delta(second, index="1")], [rest(first[5:], index="0")]],
        "ids in later events": [[delta(first, index=0)], [rest(index=0, id="x")], [delta(second, index=1)]],
        "a placeholder first": [
            [delta("{}", index=0, id="x")], [rest(first, index=0)], [delta(second, index=1, id="y")]
        ],
        "a placeholder, and the name again": [
            [delta("{}", index=0, id="x")], [delta(first, index=0, id="x")], [delta(second, index=1, id="y")]
        ],
        "whole again at the end": [
            [delta(first[:5], index=0, id="x")], [rest(first[5:], index=0)], [delta(second, index=1, id="y")],
            [delta(first, index=0, id="x"), delta(second, index=1, id="y")],
        ],
        "arguments again without a name": [
            [delta(first, index=0, id="x")], [rest(first, index=0)], [delta(second, index=1, id="y")]
        ],
        "arguments that grow": [
            [delta(first[:5], index=0, id="x")], [rest(first[:9], index=0)], [rest(first, index=0)],
            [delta(second, index=1, id="y")],
        ],
        "arguments as objects": [[delta(json.loads(first), index=0)], [delta(json.loads(second), index=1)]],
        "arguments encoded twice": [[delta(json.dumps(first), index=0, id="x")], [delta(second, index=1, id="y")]],
        "names in every event": [
            [delta(first[:5], index=0, id="x")], [delta(first[5:], index=0, id="x")], [delta(second, index=1, id="y")]
        ],
        "names in every event, no marks": [[delta(first[:5])], [delta(first[5:])], [delta(second)]],
        "ids that are numbers": [[delta(first, index=0, id=1)], [delta(second, index=1, id=2)]],
    }  # fmt: skip


@situation("Token counts that end with zeros, or are no numbers", Taken(_TEXT))
def odd_counts(wire: Wire) -> Forms:
    documents = wire.documents(_TEXT)
    match wire:
        case ChatWire():
            odd: list[Document] = [{"choices": [], "usage": one} for one in (_ZEROS, "n/a", {"prompt_tokens": "100.0"})]
        case MessagesWire():
            usages = (_ZEROS, "n/a", {"input_tokens": "6.0"})
            odd = [{"type": "message_delta", "delta": {}, "usage": one} for one in usages]
        case GoogleWire():
            odd = [{"usageMetadata": one} for one in ({"promptTokenCount": 0, "candidatesTokenCount": 0}, "n/a")]
        case _:
            return {}
    return _framed(wire, {"after the others": [*documents[:-1], *odd, documents[-1]]})


_ZEROS = dict.fromkeys(("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"), 0)
