"""The embedded model itself. These need its 1.1 GB of weights: `make test-local-model`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from typing import TypeVar

import jsonschema
import pytest

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.messages import (
    ExpertMessage,
    Message,
    TextPart,
    ToolCallPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.errors import ProviderError
from perstack.ports.provider import Delta, Generation, GenerationRequest, Provider, ProviderConfig
from perstack_local import MODEL
from perstack_local.llama import is_installed
from perstack_local.plugin import LocalProviderFactory
from perstack_local.weights import is_present, weights_path

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="the library of the embedded model is not installed"),
    pytest.mark.skipif(
        not is_present(weights_path(os.environ)),
        reason="the embedded model's weights are not there: python -m perstack_local fetch",
    ),
]

T = TypeVar("T")


def _tool(name: str, description: str, schema: JsonObject, **fields: str) -> ToolSpec:
    return ToolSpec.model_validate({"name": name, "description": description, "inputSchema": schema, **fields})


def _texts(*names: str) -> JsonObject:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": [*names]}


WRITE = _tool("writeTextFile", "Create or replace a text file.", _texts("path", "text"))
READ = _tool("readTextFile", "Read a text file.", _texts("path"))
DELETE = _tool("deleteFile", "Delete a file.", _texts("path"))
DONE = _tool(
    "attemptCompletion", "Finish the task.", {"properties": {"result": {"type": "string"}}}, kind="attemptCompletion"
)
TOOLS = [WRITE, READ, DELETE, DONE]


async def _no_blobs(sha256: str) -> bytes:
    raise AssertionError("this model reads no blobs")


def _request(
    messages: Sequence[Message] | str, tools: Sequence[ToolSpec], *, allow_tools: bool = True
) -> GenerationRequest:
    history = [UserMessage(contents=(TextPart(text=messages),))] if isinstance(messages, str) else messages
    instruction = "You do what the user asks, one step at a time."
    return GenerationRequest(
        model=MODEL, instruction=instruction, messages=history, tools=tools, blobs=_no_blobs, allow_tools=allow_tools
    )


@pytest.fixture(scope="module")
def provider() -> Provider:
    return LocalProviderFactory().create(ProviderConfig({"maxTokens": 200}, dict(os.environ)))


def _run(scenario: Coroutine[None, None, T]) -> T:
    return asyncio.run(asyncio.wait_for(scenario, 500))


def _generate(provider: Provider, request: GenerationRequest) -> Generation:
    return _run(provider.generate(request, lambda delta: None))


@pytest.mark.parametrize(
    ("query", "name", "args"),
    [
        ("Read the file notes/today.md.", "readTextFile", {"path": "notes/today.md"}),
        ("Delete the file old.txt.", "deleteFile", {"path": "old.txt"}),
        ('Write the text "hello" to the file hi.txt.', "writeTextFile", {"path": "hi.txt", "text": "hello"}),
    ],
)
def test_one_instruction_becomes_the_one_right_call(
    provider: Provider, query: str, name: str, args: dict[str, str]
) -> None:
    (call,) = _generate(provider, _request(query, TOOLS)).reply.tool_calls
    assert (call.tool_name, call.args) == (name, args)


def test_after_the_work_it_finishes(provider: Provider) -> None:
    call = ToolCallPart(tool_call_id="c", tool_name="writeTextFile", args={"path": "hi.txt", "text": "hello"})
    done = ToolResultPart(tool_call_id="c", tool_name="writeTextFile", contents=(TextPart(text="written"),))
    messages: list[Message] = [
        UserMessage(contents=(TextPart(text='Write the text "hello" to the file hi.txt, then finish.'),)),
        ExpertMessage(contents=(call,)),
        ToolMessage(contents=(done,)),
    ]
    (reply,) = _generate(provider, _request(messages, TOOLS)).reply.tool_calls
    assert reply.tool_name == "attemptCompletion"


def test_llama_cpp_reads_the_grammar_of_a_rich_schema_and_keeps_to_it(provider: Provider) -> None:
    item: JsonObject = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 1},
            "kind": {"enum": ["book", 'a "film"', 3]},
            "year": {"type": ["integer", "null"]},
            "price": {"type": "number"},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 1},
        },
        "required": ["title", "kind"],
    }
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 2},
            "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "more": {},
        },
        "required": ["items"],
        "$defs": {"item": item},
    }
    tool = _tool("addToShelf", "Put items on the shelf.", schema)
    (call,) = _generate(provider, _request("Put the book Dune on the shelf.", [tool])).reply.tool_calls
    assert call.tool_name == "addToShelf"
    assert call.raw_args is None
    jsonschema.validate(call.args, schema)
    assert "Dune" in json.dumps(call.args)


def test_usage_is_counted_by_the_model_and_a_longer_history_is_read_from_the_cache(provider: Provider) -> None:
    query = UserMessage(contents=(TextPart(text="Read the file a.md, then b.md."),))
    first = _generate(provider, _request([query], TOOLS))
    assert first.usage.input_tokens > 100
    assert 0 < first.usage.output_tokens <= 200
    (call,) = first.reply.tool_calls
    result = ToolResultPart(tool_call_id=call.tool_call_id, tool_name=call.tool_name, contents=(TextPart(text="A"),))
    second = _generate(provider, _request([query, first.reply, ToolMessage(contents=(result,))], TOOLS))
    assert second.usage.cached_input_tokens >= first.usage.input_tokens - 5


def test_free_text_comes_in_pieces_and_is_no_call(provider: Provider) -> None:
    seen: list[Delta] = []
    request = _request("Name the four seasons of the year.", TOOLS, allow_tools=False)
    generation = _run(provider.generate(request, seen.append))
    assert "winter" in generation.reply.text.lower()
    assert generation.reply.tool_calls == ()
    assert "".join(delta.text for delta in seen).strip() == generation.reply.text
    assert len(seen) > 1


def test_cancelling_frees_the_model_for_the_next_generation(provider: Provider) -> None:
    async def scenario() -> Generation:
        begun = asyncio.Event()
        endless = _request("Count from one to one thousand, in words.", [])
        task = asyncio.create_task(provider.generate(endless, lambda delta: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await provider.generate(_request("Read the file a.md.", TOOLS), lambda delta: None)

    assert _run(scenario()).reply.tool_calls[0].tool_name == "readTextFile"


def test_a_prompt_beyond_the_context_is_refused_with_what_to_raise(provider: Provider) -> None:
    with pytest.raises(ProviderError, match="raise contextLength") as caught:
        _generate(provider, _request("word " * 9000, TOOLS))
    assert not caught.value.is_retryable


def test_a_file_that_is_no_model_is_an_error_that_names_it_and_stdout_stays_clean() -> None:
    script = f"""
import asyncio, os, sys
from perstack_local.llama import LlamaModel, ModelSettings
from pathlib import Path
try:
    asyncio.run(LlamaModel(ModelSettings(Path({__file__!r}))).chat({{}}, lambda text: None))
except Exception as error:
    sys.stderr.write(f"\\n{{type(error).__name__}}: {{error}}\\n")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200)
    assert f"ProviderError: cannot load {__file__}" in done.stderr
    assert done.stdout == ""


def test_loading_and_generating_write_nothing_to_stdout_and_the_process_ends_well() -> None:
    script = """
import asyncio, os, sys
from perstack_local.llama import LlamaModel, ModelSettings
from perstack_local.weights import weights_path
runtime = LlamaModel(ModelSettings(weights_path(os.environ), context_length=512))
body = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 3}
for grammar in ('root ::= "yes"', 'root ::= nothing'):
    try:
        reply = asyncio.run(runtime.chat({**body, "grammar": grammar}, lambda text: None))
        sys.stderr.write(f"\\nreply: {reply.text}\\n")
    except Exception as error:
        sys.stderr.write(f"\\n{type(error).__name__}: {error}\\n")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert "reply: yes" in done.stderr
    assert "ProviderError: " in done.stderr
    assert (done.stdout, done.returncode) == ("", 0)
