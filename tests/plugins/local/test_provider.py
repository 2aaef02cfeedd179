"""Provider `local` behind its port: settings, the request it makes, the reply it gives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import TextPart, UserMessage
from perstack.errors import DefinitionError, MissingCredential, ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack_local import MODEL
from perstack_local.llama import LlamaModel, LlamaServer, ModelSettings
from perstack_local.plugin import LocalProviderFactory, perstack_providers
from perstack_local.provider import LocalProvider, LocalSettings
from perstack_local.weights import EMBEDDED

DONE = ToolSpec(name="attemptCompletion", kind="attemptCompletion")


class OneReply:
    """A model that says one thing, in pieces."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces
        self.bodies: list[dict[str, object]] = []

    def handle_chat_completions(self, body: object, callback: object, /) -> object:
        assert isinstance(body, dict)
        assert callable(callback)
        self.bodies.append(body)
        for piece in self.pieces:
            callback({"choices": [{"delta": {"content": piece}}]})
        callback({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        return None


async def _no_blobs(sha256: str) -> bytes:
    raise AssertionError("this model reads no blobs")


def _request(model: str = MODEL, *, allow_tools: bool = True) -> GenerationRequest:
    return GenerationRequest(
        model=model,
        instruction="You finish.",
        messages=[UserMessage(contents=(TextPart(text="Go."),))],
        tools=[DONE],
        blobs=_no_blobs,
        allow_tools=allow_tools,
        step=3,
    )


def _generate(server: OneReply, request: GenerationRequest, seen: list[Delta], **settings: object) -> Generation:
    def open_server(_: ModelSettings) -> LlamaServer:
        return server

    provider = LocalProvider(
        LocalSettings.model_validate(settings), LlamaModel(ModelSettings(Path("/m")), open_server), is_embedded=True
    )
    return asyncio.run(asyncio.wait_for(provider.generate(request, seen.append), 20))


def test_a_call_comes_whole_and_is_not_streamed() -> None:
    seen: list[Delta] = []
    server = OneReply('{"tool": "attempt', 'Completion", "args": {}}')
    generation = _generate(server, _request(), seen)
    assert [(c.tool_call_id, c.tool_name) for c in generation.reply.tool_calls] == [("call_3", "attemptCompletion")]
    assert generation.finish_reason == "toolCalls"
    assert seen == []
    assert "attemptCompletion" in str(server.bodies[0]["grammar"])


def test_free_text_is_streamed_and_has_no_grammar() -> None:
    seen: list[Delta] = []
    server = OneReply("All ", "done.")
    generation = _generate(server, _request(allow_tools=False), seen)
    assert generation.reply.text == "All done."
    assert seen == [Delta("text", "All "), Delta("text", "done.")]
    assert "grammar" not in server.bodies[0]


def test_settings_reach_the_model_under_its_own_names() -> None:
    server = OneReply("{}")
    _generate(server, _request(), [], maxTokens=99, temperature=0.5, repeatPenalty=1.2)
    body = server.bodies[0]
    assert (body["max_tokens"], body["temperature"], body["repeat_penalty"]) == (99, 0.5, 1.2)


def test_what_a_request_asks_for_comes_before_the_settings_but_no_more_tokens_than_they_allow() -> None:
    request = replace(_request(), max_tokens=50, temperature=0.2)
    for set_by_user, most in ((99, 50), (20, 20)):
        server = OneReply("{}")
        _generate(server, request, [], maxTokens=set_by_user, temperature=0.5)
        assert (server.bodies[0]["max_tokens"], server.bodies[0]["temperature"]) == (most, 0.2)


def test_a_model_that_is_not_embedded_is_refused_with_what_to_say_instead() -> None:
    with pytest.raises(ProviderError, match=f"has no model 'gpt-9': set model = '{MODEL}'"):
        _generate(OneReply(), _request("gpt-9"), [])


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.touch()
    return str(path)


def test_a_wrong_setting_is_named_by_its_key(file: str) -> None:
    pytest.importorskip("xllamacpp", reason="the library of the embedded model is not installed")
    with pytest.raises(DefinitionError) as caught:
        LocalProviderFactory().create(ProviderConfig({"modelPath": file, "contextLength": 1, "nCtx": 9}, {}))
    assert [problem.key for problem in caught.value.problems] == [
        "provider.setting.contextLength",
        "provider.setting.nCtx",
    ]


def test_without_the_library_the_provider_is_not_configured_and_says_how_to_be(
    monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr("perstack_local.llama.importlib.util.find_spec", lambda name: None)
    factory = LocalProviderFactory()
    assert not factory.is_configured({"PERSTACK_LOCAL_MODEL": file})
    assert "pip install 'perstack[local]'" in factory.how_to_configure
    with pytest.raises(MissingCredential, match="xllamacpp"):
        factory.create(ProviderConfig({}, {"PERSTACK_LOCAL_MODEL": file}))


def test_it_is_configured_by_the_weights_or_by_a_file_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    monkeypatch.setattr("perstack_local.llama.is_installed", lambda: True)
    factory = LocalProviderFactory()
    env = {"PERSTACK_CACHE_HOME": str(tmp_path)}
    assert not factory.is_configured(env)
    assert factory.is_configured({**env, "PERSTACK_LOCAL_MODEL": file})
    weights = tmp_path / "models" / EMBEDDED.file_name
    weights.parent.mkdir()
    with weights.open("wb") as sparse:
        sparse.truncate(EMBEDDED.size)
    assert factory.is_configured(env)


def test_the_plugin_brings_the_provider_after_all_that_have_a_key() -> None:
    (factory,) = perstack_providers()
    assert (factory.name, factory.default_model, factory.priority) == ("local", MODEL, 1000)


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    heavy = "{'xllamacpp', 'httpx', 'rich', 'jsonschema'}"
    script = f"import sys, perstack_local.plugin; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
