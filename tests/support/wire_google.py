"""Google's generateContent for the providers' test suite. The official SDK's types write the streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from google.genai import types as sdk
from wire import KEY, Document, Said, Wire, as_data, pieces

from perstack.ports.provider import Delta
from perstack.testing.fake_endpoint import PreparedReply
from perstack_google.plugin import FACTORY
from perstack_google.reply import GeminiDecoder

_STOP = {"stop": "STOP", "length": "MAX_TOKENS", "refusal": "SAFETY"}
_USAGE = {"prompt_token_count": 100, "candidates_token_count": 50, "cached_content_token_count": 64}


def chunk(*parts: sdk.Part, finish: str | None = None, usage: dict[str, int] | None = None) -> str:
    """Return one event, written by the SDK."""
    candidate = sdk.Candidate(
        index=0,
        content=sdk.Content(role="model", parts=list(parts)),
        finish_reason=None if finish is None else sdk.FinishReason(finish),
    )
    response = sdk.GenerateContentResponse(
        candidates=[candidate],
        usage_metadata=None if usage is None else sdk.GenerateContentResponseUsageMetadata(**usage),
    )
    return response.model_dump_json(by_alias=True, exclude_none=True)


def data_of(said: Said) -> list[str]:
    """Return the events of a reply; parts after a thought are signed, as Gemini does."""
    parts = [sdk.Part(text=one, thought=True) for one in pieces(said.thinking)]
    parts += [sdk.Part(text=one) for one in pieces(said.text)]
    for number, (call_id, path) in enumerate(said.calls):
        call = sdk.FunctionCall(id=call_id, name=said.tool, args={said.argument: path})
        parts.append(sdk.Part(function_call=call, thought_signature=b"sig" if number == 0 else None))
    if not said.calls and said.thinking:
        parts.append(sdk.Part(text="", thought_signature=b"sig"))
    return [*(chunk(part) for part in parts), chunk(finish=_STOP[said.stop], usage=_USAGE)]


@dataclass(frozen=True, kw_only=True)
class GoogleWire(Wire):
    """The format generateContent."""

    def documents(self, said: Said) -> list[Document]:
        return [json.loads(data) for data in data_of(said)]

    def framed(self, documents: Iterable[Document]) -> PreparedReply:
        return PreparedReply(tuple(f"data: {as_data(document)}\r\n\r\n".encode() for document in documents))

    def decoder(self, on_delta: Callable[[Delta], None]) -> GeminiDecoder:
        return GeminiDecoder(on_delta)

    def results(self, body: Any) -> list[Any]:
        parts = (part for content in body["contents"] for part in content["parts"])
        return [part["functionResponse"] for part in parts if "functionResponse" in part]

    def error_reply(self, status: int, words: str, **headers: str) -> PreparedReply:
        body = json.dumps({"error": {"code": status, "message": words, "status": "S"}}, indent=2).encode()
        return PreparedReply(
            (body,), status=status, headers={"content-type": "application/json; charset=UTF-8", **headers}
        )


def google_wire(title: str, model: str) -> GoogleWire:
    """Return the wire of one Gemini generation."""
    return GoogleWire(
        title=title,
        factory=FACTORY,
        model=model,
        path=f"/v1beta/models/{model}:streamGenerateContent?alt=sse",
        credential={"x-goog-api-key": KEY},
        env={"GEMINI_API_KEY": KEY},
        missing="GEMINI_API_KEY",
        limits={"generationConfig": {"maxOutputTokens": 99, "temperature": 0.5, "topP": 0.9}},
        schema_at=("generationConfig", "responseJsonSchema"),
        no_tools={"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
        overflow="The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        kept={"signature": '"thoughtSignature":"c2ln"'},
    )


GOOGLE = google_wire("google", "gemini-3.8-flash")
GOOGLE_OLDER = google_wire("google, Gemini 2.5", "gemini-2.5-flash")
