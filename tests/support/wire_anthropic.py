"""Anthropic Messages for the providers' test suite. The official SDK's types write the streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anthropic.types as sdk
from pydantic import TypeAdapter
from wire import KEY, Document, Said, Wire, pieces

from perstack.core.base.records import JsonObject
from perstack.ports.provider import Delta
from perstack_anthropic.messages_api import MessagesDecoder
from perstack_anthropic.plugin import FACTORY

EVENT: TypeAdapter[Any] = TypeAdapter(sdk.RawMessageStreamEvent)
_STOP = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal"}


def data_of(said: Said) -> list[Document]:
    """Return the events of a reply."""
    usage = {"input_tokens": 6, "output_tokens": 1, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 30}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
    found: list[JsonObject] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}}
    ]
    for index, (start, deltas) in enumerate(_blocks(said)):
        found.append({"type": "content_block_start", "index": index, "content_block": start})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": "tool_use" if said.calls else _STOP[said.stop], "stop_sequence": None}
    found.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 50}})
    found.append({"type": "message_stop"})
    return [json.loads(EVENT.validate_python(event).to_json()) for event in found]


def _blocks(said: Said) -> list[tuple[JsonObject, list[JsonObject]]]:
    found: list[tuple[JsonObject, list[JsonObject]]] = []
    if said.thinking:
        thoughts: list[JsonObject] = [{"type": "thinking_delta", "thinking": one} for one in pieces(said.thinking)]
        signature: JsonObject = {"type": "signature_delta", "signature": "sig=="}
        found.append(({"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signature]))
    if said.text:
        texts: list[JsonObject] = [{"type": "text_delta", "text": one} for one in pieces(said.text)]
        found.append(({"type": "text", "text": ""}, texts))
    for call_id, path in said.calls:
        parts = pieces(json.dumps({said.argument: path}))
        block: JsonObject = {"type": "tool_use", "id": call_id, "name": said.tool, "input": {}}
        found.append((block, [{"type": "input_json_delta", "partial_json": one} for one in parts]))
    return found


@dataclass(frozen=True, kw_only=True)
class MessagesWire(Wire):
    """Messages at any endpoint. Only the cache mark on the latest turn may move between requests."""

    def results(self, body: Any) -> list[Any]:
        blocks = (block for turn in body["messages"] for block in turn["content"])
        return [block for block in blocks if block["type"] == "tool_result"]

    def unmarked(self, body: bytes) -> bytes:
        assert body.count(b"cache_control") == 2, "on the instruction and on the latest turn"
        return body.replace(b',"cache_control":{"type":"ephemeral"}', b"").removesuffix(b"]}")


@dataclass(frozen=True, kw_only=True)
class AnthropicWire(MessagesWire):
    """Messages at Anthropic."""

    def documents(self, said: Said) -> list[Document]:
        return [{"type": "ping"}, *data_of(said)]

    def decoder(self, on_delta: Callable[[Delta], None]) -> MessagesDecoder:
        return MessagesDecoder(on_delta)


ANTHROPIC = AnthropicWire(
    title="anthropic",
    factory=FACTORY,
    model="claude-sonnet-4-5",
    path="/v1/messages",
    credential={"x-api-key": KEY},
    env={"ANTHROPIC_API_KEY": KEY},
    missing="ANTHROPIC_API_KEY",
    limits={"max_tokens": 99, "temperature": 0.5, "top_p": 0.9},
    no_tools={"tool_choice": {"type": "none"}},
    overflow="prompt is too long: 210000 tokens > 200000 maximum",
    kept={"signature": '"signature":"sig=="'},
)
