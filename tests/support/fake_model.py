"""A local model server for agent programs: it calls one tool and repeats words of the tool's result.

It streams Anthropic Messages, OpenAI's Chat Completions and Responses, and Google's generateContent, as far as such
programs read them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Events = list[dict[str, Any]]


@dataclass
class FakeModel:
    """Behaviour of the model, and recorded requests."""

    tool: str
    """The program's name for the tool."""
    awaited: str
    """Words of the tool's result that the answer repeats."""
    namespace: str | None = None
    """Namespace of the tool, in formats that have one."""
    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Paths and bodies of requests."""
    _has_called: bool = False

    def reply(self, path: str, body: dict[str, Any]) -> Events:
        self.asked.append((path, body))
        speak = self._format_at(path)
        if self.awaited in json.dumps(body, ensure_ascii=False):
            return speak(f"The Expert says: {self.awaited}")
        # a request without tools asks for a title or similar
        if self._has_called or not body.get("tools"):
            return speak("Nothing.")
        self._has_called = True
        return speak(None)

    def _format_at(self, path: str) -> Callable[[str | None], Events]:
        if path.endswith(":streamGenerateContent"):
            return self._gemini_events
        return {"/v1/messages": self._messages_events, "/v1/responses": self._responses_events}.get(
            path, self._chat_events
        )

    def _messages_events(self, text: str | None) -> Events:
        call = {"type": "tool_use", "id": "call_1", "name": self.tool, "input": {}}
        block = call if text is None else {"type": "text", "text": ""}
        delta = {"type": "input_json_delta", "partial_json": ARGUMENTS} if text is None else _text_delta(text)
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "m1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
        stop = {"stop_reason": "tool_use" if text is None else "end_turn", "stop_sequence": None}
        return [
            {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]

    def _chat_events(self, text: str | None) -> Events:
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": self.tool, "arguments": ARGUMENTS}}
        delta = {"tool_calls": [call]} if text is None else {"content": text}
        common = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        finish = "tool_calls" if text is None else "stop"
        return [
            {**common, "choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]},
            {**common, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        ]

    def _responses_events(self, text: str | None) -> Events:
        call = {"type": "function_call", "id": "f1", "call_id": "call_1", "name": self.tool, "arguments": ARGUMENTS}
        if self.namespace is not None:
            call["namespace"] = self.namespace
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = call if text is None else {"type": "message", "id": "m1", "role": "assistant", "content": content}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return [
            {"type": "response.created", "response": {"id": "r1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "r1", "output": [item], "usage": usage}},
        ]

    def _gemini_events(self, text: str | None) -> Events:
        call = {"functionCall": {"name": self.tool, "args": json.loads(ARGUMENTS)}}
        content = {"role": "model", "parts": [call if text is None else {"text": text}]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return [{"candidates": [{"index": 0, "content": content, "finishReason": "STOP"}], "usageMetadata": usage}]


ARGUMENTS = json.dumps({"query": "Read the note"})


def _text_delta(text: str) -> dict[str, Any]:
    return {"type": "text_delta", "text": text}


@contextmanager
def serving_model(model: FakeModel) -> Iterator[FakeModel]:
    """Serve the model at its `url` until the block ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(model.reply)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            model.url = f"http://127.0.0.1:{server.server_port}"
            yield model
        finally:
            server.shutdown()
            thread.join()


def _handler(reply: Callable[[str, dict[str, Any]], Events]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in reply(self.path.partition("?")[0], body):
                name = f"event: {event['type']}\n" if "type" in event else ""
                self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())

        def do_GET(self) -> None:
            self.send_error(404)

        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *args: object) -> None:
            """Log nothing: stderr belongs to the test."""

    return Handler
