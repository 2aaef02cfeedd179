"""OpenAI's two formats for the providers' test suite. The official SDK's types write the streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletionChunk
from responses_stream import call, events_of, message, reasoning, refusal
from wire import KEY, Document, Said, Wire, pieces

from perstack.core.base.records import JsonObject
from perstack.ports.provider import Delta
from perstack_openai.chat_completions import ChatDecoder
from perstack_openai.plugin import FACTORIES
from perstack_openai.responses_api import ResponsesDecoder

_FACTORY = {factory.name: factory for factory in FACTORIES}
_STOP = {"stop": "stop", "length": "length", "refusal": "content_filter"}


@dataclass(frozen=True, kw_only=True)
class ResponsesWire(Wire):
    """The Responses format."""

    def documents(self, said: Said) -> list[Document]:
        items = [reasoning("rs_1", said.thinking)] if said.thinking else []
        if said.text:
            items.append(refusal("msg_1", said.text) if said.stop == "refusal" else message("msg_1", said.text))
        items += [call(f"f{id_}", id_, said.tool, json.dumps({said.argument: path})) for id_, path in said.calls]
        end: dict[str, Any] = {}
        if said.stop == "length":
            end = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        return [*events_of(*items, **end)]

    def decoder(self, on_delta: Callable[[Delta], None]) -> ResponsesDecoder:
        return ResponsesDecoder(on_delta, self.factory.name)

    def results(self, body: Any) -> list[Any]:
        return [item for item in body["input"] if item["type"] == "function_call_output"]


def chat_data(said: Said, thinking: str = "reasoning_content") -> list[Document]:
    """Return the chunks of a Chat Completion; `thinking` is the server's field for thoughts."""
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    deltas += [{thinking: one} for one in pieces(said.thinking)]
    deltas += [{"content": one} for one in pieces(said.text)]
    for index, (call_id, path) in enumerate(said.calls):
        start: JsonObject = {"index": index, "id": call_id, "type": "function", "function": {"name": said.tool}}
        deltas.append({"tool_calls": [start]})
        arguments = pieces(json.dumps({said.argument: path}))
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": one}}]} for one in arguments]
    whole: JsonObject = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[JsonObject] = [
        {**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    finish = "tool_calls" if said.calls else _STOP[said.stop]
    chunks.append({**whole, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    details = {"prompt_tokens_details": {"cached_tokens": 64}}
    usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150, **details}
    chunks.append({**whole, "choices": [], "usage": usage})
    return [*(json.loads(ChatCompletionChunk.model_validate(one).to_json()) for one in chunks), "[DONE]"]


@dataclass(frozen=True, kw_only=True)
class ChatWire(Wire):
    """The Chat Completions format."""

    thinking: str = "reasoning_content"
    kept: Mapping[str, str] = field(default_factory=lambda: {"as it came": '"reasoning_content":"Hm, yes."'})

    def documents(self, said: Said) -> list[Document]:
        return chat_data(said, self.thinking)

    def decoder(self, on_delta: Callable[[Delta], None]) -> ChatDecoder:
        return ChatDecoder(on_delta)

    def results(self, body: Any) -> list[Any]:
        return [message for message in body["messages"] if message["role"] == "tool"]


def _with_bearer(variable: str) -> dict[str, Any]:
    return {"credential": {"authorization": f"Bearer {KEY}"}, "env": {variable: KEY}, "missing": variable}


_RESPONSES: dict[str, Any] = {
    "limits": {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 99},
    "schema_at": ("text", "format", "schema"),
    "no_tools": {"tool_choice": "none"},
    "overflow": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "kept": {"encrypted item": '"encrypted_content":"gAAA="'},
}
_CHAT: dict[str, Any] = {
    "limits": {"temperature": 0.5, "top_p": 0.9, "max_tokens": 99},
    "schema_at": ("response_format", "json_schema", "schema"),
    "no_tools": {"tool_choice": "none"},
    "overflow": "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens.",
}
_AZURE: dict[str, Any] = {
    "factory": _FACTORY["azure-openai"],
    "model": "my gpt-5",
    "credential": {"api-key": KEY},
    "env": {"AZURE_OPENAI_API_KEY": KEY, "AZURE_RESOURCE_NAME": "mine"},
    "missing": "AZURE_OPENAI_API_KEY",
}

OPENAI = ResponsesWire(
    title="openai",
    factory=_FACTORY["openai"],
    model="gpt-5-mini",
    path="/v1/responses",
    base="/v1",
    setting={"api": "responses", "documents": True, "structuredOutput": True, "name": "A label"},
    **_with_bearer("OPENAI_API_KEY"),
    **_RESPONSES,
)
COMPATIBLE = ChatWire(
    title="openai, compatible",
    factory=_FACTORY["openai"],
    model="my-model",
    path="/v1/chat/completions",
    base="/v1",
    **_with_bearer("OPENAI_API_KEY"),
    **_CHAT,
)
AZURE = ResponsesWire(title="azure-openai", path="/openai/v1/responses", **_AZURE, **_RESPONSES)
AZURE_DATED = ChatWire(
    title="azure-openai, dated",
    path="/openai/deployments/my%20gpt-5/chat/completions?api-version=2024-10-21",
    base="/openai",
    setting={"apiVersion": "2024-10-21", "useDeploymentBasedUrls": True, "name": "A label"},
    **_AZURE,
    **_CHAT | {"limits": {"temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 99}},
)
DEEPSEEK = ChatWire(
    title="deepseek",
    factory=_FACTORY["deepseek"],
    model="deepseek-flash",
    path="/chat/completions",
    **_with_bearer("DEEPSEEK_API_KEY"),
    **_CHAT,
)
OLLAMA = ChatWire(
    title="ollama",
    factory=_FACTORY["ollama"],
    model="qwen3",
    path="/v1/chat/completions",
    thinking="reasoning",
    kept={"as it came": '"reasoning":"Hm, yes."'},
    **_with_bearer("OLLAMA_API_KEY") | {"missing": None},
    **_CHAT,
)
