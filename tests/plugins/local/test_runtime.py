"""The runtime, with a model that is none: threads, streaming, cancelling, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest

from perstack.core.base.records import JsonObject
from perstack.core.base.usage import Usage
from perstack.errors import MissingCredential, ProviderError
from perstack_local import llama as module
from perstack_local.llama import LlamaModel, ModelSettings, model_for, require_library

SETTINGS = ModelSettings(Path("/m.gguf"))
T = TypeVar("T")

Answer = Callable[[JsonObject, Callable[[JsonObject], bool]], None]


def delta(text: str | None) -> JsonObject:
    return {"choices": [{"delta": {"content": text}, "finish_reason": None}]}


def end(reason: str = "stop") -> JsonObject:
    return {"choices": [{"delta": {}, "finish_reason": reason}]}


USAGE: JsonObject = {
    "choices": [],
    "usage": {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 20}},
}


class FakeServer:
    """Answers each chat by the next of its answers, and keeps the bodies."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[JsonObject] = []

    def handle_chat_completions(self, body: JsonObject, callback: Callable[[JsonObject], bool], /) -> object:
        self.bodies.append(body)
        self.answers.pop(0)(body, callback)
        return None


def says(*chunks: JsonObject) -> Answer:
    def answer(body: JsonObject, callback: Callable[[JsonObject], bool]) -> None:
        for chunk in chunks:
            if callback(chunk):
                return

    return answer


def run(scenario: Coroutine[None, None, T]) -> T:
    return asyncio.run(asyncio.wait_for(scenario, 20))


def chat(server: FakeServer) -> module.ChatReply:
    return run(LlamaModel(SETTINGS, lambda settings: server).chat({}, lambda text: None))


def test_a_reply_is_its_pieces_with_the_models_own_figures() -> None:
    seen: list[str] = []

    async def scenario() -> module.ChatReply:
        server = FakeServer(says(delta(None), delta("Hel"), delta("lo"), end(), USAGE))
        return await LlamaModel(SETTINGS, lambda settings: server).chat({}, seen.append)

    reply = run(scenario())
    assert (reply.text, reply.finish_reason) == ("Hello", "stop")
    assert reply.usage == Usage.of(30, 7, cached=20)
    assert seen == ["Hel", "lo"]


def test_the_body_is_sent_on_with_streaming_and_usage_asked_for() -> None:
    server = FakeServer(says(end()))
    run(LlamaModel(SETTINGS, lambda settings: server).chat({"max_tokens": 5}, lambda text: None))
    assert server.bodies[0]["max_tokens"] == 5
    assert server.bodies[0]["stream"] is True
    assert server.bodies[0]["stream_options"] == {"include_usage": True}


def test_a_reply_cut_by_the_token_limit_says_so() -> None:
    assert chat(FakeServer(says(delta("x"), end("length")))).finish_reason == "length"


def test_the_model_is_loaded_once_and_only_at_the_first_chat() -> None:
    opened: list[ModelSettings] = []

    def open_server(settings: ModelSettings) -> FakeServer:
        opened.append(settings)
        return FakeServer(says(end()), says(end()))

    async def scenario() -> None:
        runtime = LlamaModel(SETTINGS, open_server)
        assert opened == []
        await runtime.chat({}, lambda text: None)
        await runtime.chat({}, lambda text: None)

    run(scenario())
    assert opened == [SETTINGS]


def test_one_process_has_one_runtime_for_the_same_settings() -> None:
    assert model_for(SETTINGS) is model_for(ModelSettings(Path("/m.gguf")))
    assert model_for(SETTINGS) is not model_for(ModelSettings(Path("/other.gguf")))


def test_chats_wait_for_each_other() -> None:
    inside: list[int] = []

    def answer(body: JsonObject, callback: Callable[[JsonObject], bool]) -> None:
        inside.append(1)
        assert len(inside) == 1
        callback(end())
        inside.pop()

    async def scenario() -> None:
        runtime = LlamaModel(SETTINGS, lambda settings: FakeServer(*[answer] * 5))
        await asyncio.gather(*(runtime.chat({}, lambda text: None) for _ in range(5)))

    run(scenario())


def test_a_cancelled_chat_stops_the_model_at_its_next_piece_and_the_next_chat_goes_on() -> None:
    stopped = threading.Event()

    def endless(body: JsonObject, callback: Callable[[JsonObject], bool]) -> None:
        while not callback(delta("x")):
            pass
        stopped.set()

    async def scenario() -> module.ChatReply:
        runtime = LlamaModel(SETTINGS, lambda settings: FakeServer(endless, says(delta("next"), end())))
        begun = asyncio.Event()
        task = asyncio.create_task(runtime.chat({}, lambda text: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await runtime.chat({}, lambda text: None)

    assert run(scenario()).text == "next"
    assert stopped.is_set()


def test_a_chat_that_is_cancelled_while_it_waits_never_starts() -> None:
    release = threading.Event()

    def generate_when_released(body: JsonObject, callback: Callable[[JsonObject], bool]) -> None:
        callback(delta("x"))
        release.wait(10)
        callback(end())

    server = FakeServer(generate_when_released, says(end()))

    async def scenario() -> None:
        runtime = LlamaModel(SETTINGS, lambda settings: server)
        begun = asyncio.Event()
        first = asyncio.create_task(runtime.chat({"n": 1}, lambda text: begun.set()))
        await begun.wait()
        second = asyncio.create_task(runtime.chat({"n": 2}, lambda text: None))
        await asyncio.wait([second], timeout=0)
        second.cancel()
        await asyncio.wait([second])
        release.set()
        await first
        await runtime.chat({"n": 3}, lambda text: None)

    run(scenario())
    assert [body["n"] for body in server.bodies] == [1, 3]


def test_the_models_error_keeps_its_words_and_its_status() -> None:
    error: JsonObject = {"error": {"code": 400, "message": "failed to parse grammar", "type": "invalid_request_error"}}
    with pytest.raises(ProviderError, match="failed to parse grammar") as caught:
        chat(FakeServer(says(error)))
    assert (caught.value.name, caught.value.status_code, caught.value.is_retryable) == ("BadRequest", 400, False)


def test_a_prompt_that_is_too_long_names_the_setting_to_raise() -> None:
    error: JsonObject = {
        "error": {"code": 400, "message": "the request exceeds the context", "type": "exceed_context_size_error"}
    }
    with pytest.raises(ProviderError, match=r"raise contextLength in \[provider\.setting\]") as caught:
        chat(FakeServer(says(error)))
    assert caught.value.name == "ContextOverflow"


def test_a_stream_that_breaks_off_is_no_reply_and_may_be_tried_again() -> None:
    with pytest.raises(ProviderError, match="reply ended early") as caught:
        chat(FakeServer(says(delta("half"))))
    assert caught.value.is_retryable


def test_a_missing_library_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingCredential, match=r"pip install 'perstack\[local\]'"):
        require_library()
