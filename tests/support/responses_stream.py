"""A stream of the Responses API, each event validated and serialized by the official SDK's types."""

from __future__ import annotations

import json
from typing import Any

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 150,
}


def reasoning(item_id: str, *summary: str, encrypted: str | None = "gAAA=") -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": item_id, "summary": parts, "encrypted_content": encrypted}


def message(item_id: str, text: str, **rest: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message", "id": item_id, "role": "assistant", "status": "completed", "content": content, **rest
    }  # fmt: skip


def refusal(item_id: str, text: str) -> dict[str, Any]:
    return {**message(item_id, ""), "content": [{"type": "refusal", "refusal": text}]}


def call(item_id: str, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": arguments,
        "status": "completed",
    }  # fmt: skip


def response(output: list[dict[str, Any]], status: str = "completed", **rest: Any) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5-mini", "status": status,
        "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": USAGE, **rest,
    }  # fmt: skip


def events_of(*output: dict[str, Any], **end: Any) -> list[dict[str, Any]]:
    """Return the events of a response with these items, with texts and arguments in pieces of four characters."""
    found = [{"type": "response.created", "response": response([], "in_progress", usage=None)}]
    for index, item in enumerate(output):
        begun = {**item, **{key: [] for key in ("summary", "content") if key in item}}
        if "arguments" in item:
            begun["arguments"] = ""
        found.append({"type": "response.output_item.added", "output_index": index, "item": begun})
        found += _delta_events(item, {"item_id": item["id"], "output_index": index})
        found.append({"type": "response.output_item.done", "output_index": index, "item": item})
    whole = response([*output], **end)
    found.append({"type": f"response.{whole['status']}", "response": whole})
    return [checked({**event, "sequence_number": number}) for number, event in enumerate(found)]


def checked(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event as parsed and serialized by the SDK's types."""
    written: dict[str, Any] = json.loads(EVENT.dump_json(EVENT.validate_python(event), exclude_none=True))
    return written


def stream_of(events: list[dict[str, Any]]) -> bytes:
    """Return the events as sent: with names, without a final marker."""
    texts = (f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events)
    return "".join(texts).encode()


def _delta_events(item: dict[str, Any], where: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for at, part in enumerate(item.get("summary", ())):
        place = {**where, "summary_index": at}
        empty = {"type": "summary_text", "text": ""}
        found.append({"type": "response.reasoning_summary_part.added", **place, "part": empty})
        found += _piece_events("response.reasoning_summary_text.delta", part["text"], place)
    for at, part in enumerate(item.get("content", ())):
        place, is_text = {**where, "content_index": at}, part["type"] == "output_text"
        empty = {**part, "text" if is_text else "refusal": ""}
        found.append({"type": "response.content_part.added", **place, "part": empty})
        if is_text:
            found += _piece_events("response.output_text.delta", part["text"], {**place, "logprobs": []})
        else:
            found += _piece_events("response.refusal.delta", part["refusal"], place)
    return found + _piece_events("response.function_call_arguments.delta", item.get("arguments", ""), where)


def _piece_events(kind: str, text: str, where: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": kind, **where, "delta": text[at : at + 4]} for at in range(0, len(text), 4)]
