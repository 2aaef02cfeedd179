"""Provider amazon-bedrock for the providers' test suite: Converse, and Anthropic's format in chunks.

Uses a bearer token; AWS signatures are tested in tests/plugins/bedrock.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from event_stream import event, frame
from wire import KEY, Decoder, Document, Said, Wire, as_data, decoded, pieces, value_at
from wire_anthropic import MessagesWire, data_of

from perstack.core.base.records import JsonObject
from perstack.ports.provider import Delta, Generation
from perstack.testing.fake_endpoint import PreparedReply
from perstack_bedrock.plugin import FACTORY
from perstack_bedrock.reply import MEDIA_TYPE, ChunkDecoder, ConverseDecoder, aws_events
from perstack_bedrock.request import NO_MORE_CALLS

NOWHERE = {
    "AWS_CONFIG_FILE": "/nowhere",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Variables that exclude all other sources of credentials."""
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
STREAM = {"content-type": MEDIA_TYPE}

_STOP = {"stop": "end_turn", "length": "max_tokens", "refusal": "guardrail_intervened"}
_USAGE = {
    "inputTokens": 6,
    "outputTokens": 50,
    "totalTokens": 150,
    "cacheReadInputTokens": 64,
    "cacheWriteInputTokens": 30,
}


def converse_events(said: Said) -> Iterator[tuple[str, JsonObject]]:
    """Yield the events of a reply over ConverseStream."""
    yield "messageStart", {"role": "assistant"}
    for index, (start, deltas) in enumerate(_blocks(said)):
        if start is not None:
            yield "contentBlockStart", {"contentBlockIndex": index, "start": start}
        for delta in deltas:
            yield "contentBlockDelta", {"contentBlockIndex": index, "delta": delta}
        yield "contentBlockStop", {"contentBlockIndex": index}
    yield "messageStop", {"stopReason": "tool_use" if said.calls else _STOP[said.stop]}
    yield "metadata", {"usage": _USAGE, "metrics": {"latencyMs": 7}}


def _blocks(said: Said) -> Iterator[tuple[JsonObject | None, list[JsonObject]]]:
    if said.thinking:
        thoughts: list[JsonObject] = [{"reasoningContent": {"text": one}} for one in pieces(said.thinking)]
        yield None, [*thoughts, {"reasoningContent": {"signature": "sig=="}}]
    if said.text:
        yield None, [{"text": one} for one in pieces(said.text)]
    for call_id, path in said.calls:
        parts = pieces(json.dumps({said.argument: path}))
        yield {"toolUse": {"toolUseId": call_id, "name": said.tool}}, [{"toolUse": {"input": one}} for one in parts]


def converse_frame(document: Document) -> bytes:
    """Return one event of ConverseStream: its kind is the only key; text is a payload that is sent as it is."""
    if isinstance(document, dict):
        return event(*next(iter(document.items())))
    kind, _, payload = document.partition(" ")
    return frame({":event-type": kind, ":content-type": "application/json", ":message-type": "event"}, payload.encode())


@dataclass(frozen=True, kw_only=True)
class _AtBedrock(Wire):
    def decode(self, chunks: Iterable[bytes]) -> tuple[Generation, list[Delta]]:
        deltas: list[Delta] = []
        return decoded(chunks, self.decoder(deltas.append), aws_events), deltas

    def error_reply(self, status: int, words: str, **headers: str) -> PreparedReply:
        kind = {"content-type": "application/json", "x-amzn-errortype": "AnException:http://internal.amazon.com/"}
        return PreparedReply((json.dumps({"message": words}).encode(),), status=status, headers={**kind, **headers})


@dataclass(frozen=True, kw_only=True)
class ConverseWire(_AtBedrock):
    """ConverseStream. Only the cache mark on the latest turn may move between requests."""

    def documents(self, said: Said) -> list[Document]:
        return [{kind: content} for kind, content in converse_events(said)]

    def framed(self, documents: Iterable[Document]) -> PreparedReply:
        return PreparedReply(tuple(map(converse_frame, documents)), headers=STREAM)

    def decoder(self, on_delta: Callable[[Delta], None]) -> Decoder:
        return ConverseDecoder(on_delta)

    def results(self, body: Any) -> list[Any]:
        blocks = (block for turn in body["messages"] for block in turn["content"])
        return [block["toolResult"] for block in blocks if "toolResult" in block]

    def tools(self, body: Any) -> Any:
        return body.get("toolConfig")

    def schema(self, body: Any) -> Any:
        written = value_at(body, ("outputConfig", "textFormat", "structure", "jsonSchema", "schema"))
        return None if written is None else json.loads(written)

    def forbids_tools(self, body: Any) -> bool:
        return {"text": NO_MORE_CALLS} in body["messages"][-1]["content"]

    def refusal_of(self, body: Any) -> str | None:
        """Return the API's words for calls in a request without tools."""
        blocks = (block for turn in body["messages"] for block in turn["content"])
        if "toolConfig" not in body and any(block.keys() & {"toolUse", "toolResult"} for block in blocks):
            return "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        return None

    def unmarked(self, body: bytes) -> bytes:
        assert body.count(b"cachePoint") == 2, "on the instruction and on the latest turn"
        return body.replace(b',{"cachePoint":{"type":"default"}}', b"").removesuffix(b"]}]}")


@dataclass(frozen=True, kw_only=True)
class ChunksWire(_AtBedrock, MessagesWire):
    """InvokeModelWithResponseStream, with Anthropic's own events in its chunks."""

    def documents(self, said: Said) -> list[Document]:
        return data_of(said)

    def framed(self, documents: Iterable[Document]) -> PreparedReply:
        chunks = (b64encode(as_data(document).encode()).decode() for document in documents)
        return PreparedReply(tuple(event("chunk", {"bytes": chunk, "p": "abcdef"}) for chunk in chunks), headers=STREAM)

    def decoder(self, on_delta: Callable[[Delta], None]) -> Decoder:
        return ChunkDecoder(on_delta)


_PATH = f"/model/{MODEL.replace(':', '%3A')}"
_COMMON: Mapping[str, Any] = {
    "factory": FACTORY,
    "model": MODEL,
    "credential": {"authorization": f"Bearer {KEY}"},
    "env": {"AWS_BEARER_TOKEN_BEDROCK": KEY, "AWS_REGION": "eu-west-1", **NOWHERE},
    "missing": "AWS_BEARER_TOKEN_BEDROCK",
    "overflow": "Input is too long for requested model.",
    "kept": {"signature": '"signature":"sig=="'},
}

BEDROCK = ConverseWire(
    **_COMMON,
    title="amazon-bedrock",
    path=f"{_PATH}/converse-stream",
    limits={"inferenceConfig": {"maxTokens": 99, "temperature": 0.5, "topP": 0.9}},
    no_tools={},
)
BEDROCK_ANTHROPIC = ChunksWire(
    **_COMMON,
    title="amazon-bedrock, Anthropic",
    path=f"{_PATH}/invoke-with-response-stream",
    setting={"api": "anthropic"},
    limits={"max_tokens": 99, "temperature": 0.5, "top_p": 0.9},
    no_tools={"tool_choice": {"type": "none"}},
)
