"""The scripted provider: what it says, when it fails, and that it remembers nothing that a resumed Run would miss."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perstack.core.messages.messages import (
    ExpertMessage,
    History,
    Message,
    TextPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from perstack.errors import MissingCredential, ProviderError, UsageError
from perstack.ports.provider import Delta, Generation, GenerationRequest, ProviderConfig
from perstack.testing.plugin import ScriptedProviderFactory
from perstack.testing.scripted import (
    Cost,
    Script,
    ScriptedProvider,
    ScriptLike,
    fail,
    text,
    tool,
    turn,
)


async def _no_blobs(sha256: str) -> bytes:
    raise AssertionError(f"nobody should read blob {sha256}")


def _history(replies: int) -> History:
    messages: list[Message] = [UserMessage(contents=(TextPart(text="go"),))]
    for number in range(replies):
        messages.append(ExpertMessage(contents=(TextPart(text=f"reply {number}"),)))
        result = ToolResultPart(tool_call_id="c", tool_name="t", contents=(TextPart(text="ok"),))
        messages.append(ToolMessage(contents=(result,)))
    return History(messages)


def _request(
    replies: int = 0,
    *,
    run: str = "run1",
    expert: str = "writer",
    instruction: str = "",
    messages: History | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        model="scripted",
        instruction=instruction,
        messages=_history(replies) if messages is None else messages,
        tools=(),
        blobs=_no_blobs,
        expert_key=expert,
        run_id=run,
        step=replies + 1,
    )


def _generate(provider: ScriptedProvider, request: GenerationRequest) -> Generation:
    return asyncio.run(provider.generate(request, lambda delta: None))


def _says(script: ScriptLike, *requests: GenerationRequest) -> list[str]:
    provider = ScriptedProvider(script)
    return [_generate(provider, request).reply.text for request in requests]


def test_turns_are_played_in_order_of_the_replies_in_the_request() -> None:
    assert _says(["one", "two", "three"], _request(0), _request(1), _request(2)) == ["one", "two", "three"]


def test_a_new_process_goes_on_where_the_request_says() -> None:
    assert _says(["one", "two", "three"], _request(2)) == ["three"]


def test_a_history_that_grows_and_then_branches_is_counted_right() -> None:
    grown = _history(1).append(ExpertMessage())
    assert _says(["one", "two", "three"], _request(messages=grown), _request(1)) == ["three", "two"]


def test_only_new_messages_are_looked_at() -> None:
    class Counting(History):
        looked_at = 0

        def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
            found = super().__getitem__(index)
            Counting.looked_at += len(found) if isinstance(index, slice) else 1
            return found

    provider = ScriptedProvider([turn(text="x", repeat=True)])
    for replies in (100, 101, 102):
        _generate(provider, _request(messages=Counting(_history(replies))))
    assert Counting.looked_at == len(_history(102))


def test_an_expert_is_found_by_its_key_before_a_marker_in_its_instruction() -> None:
    script = {"[[mark]]": ["by marker"], "alpha": ["by key"], "*": ["anybody"]}
    asked = (
        _request(run="a", expert="alpha", instruction="[[mark]]"),
        _request(run="b", expert="boss", instruction="you are [[mark]]"),
        _request(run="c", expert="boss", instruction="you"),
    )
    assert _says(script, *asked) == ["by key", "by marker", "anybody"]


def test_a_reply_holds_thinking_text_calls_usage_and_finish_reason() -> None:
    provider = ScriptedProvider(
        [turn(tool("read", {"path": "a"}), tool("read", "no json", id="x"), text="Hm.", thinking="I see", usage=(7, 3))]
    )
    generation = _generate(provider, _request())
    assert generation.finish_reason == "toolCalls"
    assert (generation.usage.input_tokens, generation.usage.output_tokens, generation.usage.total_tokens) == (7, 3, 10)
    assert [part.type for part in generation.reply.contents] == [
        "thinkingPart", "textPart", "toolCallPart", "toolCallPart",
    ]  # fmt: skip
    first, second = generation.reply.tool_calls
    assert (first.args, first.raw_args) == ({"path": "a"}, None)
    assert (second.args, second.raw_args, second.tool_call_id) == ({}, "no json", "x")


def test_the_ids_of_calls_differ_within_a_run() -> None:
    provider = ScriptedProvider([turn(tool("a"), tool("b")), turn(tool("c"))])
    calls = [*_generate(provider, _request(0)).reply.tool_calls, *_generate(provider, _request(1)).reply.tool_calls]
    assert len({call.tool_call_id for call in calls}) == 3


def test_deltas_add_up_to_the_reply() -> None:
    seen: list[Delta] = []
    provider = ScriptedProvider([turn(text="Two  words\n", thinking="Well, well")])
    asyncio.run(provider.generate(_request(), seen.append))
    assert "".join(delta.text for delta in seen if delta.kind == "text") == "Two  words\n"
    assert "".join(delta.text for delta in seen if delta.kind == "reasoning") == "Well, well"
    assert len(seen) > 2


def test_a_failure_is_played_once_and_then_the_reply_is_due() -> None:
    provider = ScriptedProvider([text("one"), fail(429, "slow down", retry_after=2.5), text("two")])
    assert _generate(provider, _request(0)).reply.text == "one"
    with pytest.raises(ProviderError, match="slow down") as caught:
        _generate(provider, _request(1))
    assert (caught.value.status_code, caught.value.is_retryable, caught.value.retry_after) == (429, True, 2.5)
    assert _generate(provider, _request(1)).reply.text == "two"


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (408, True), (529, True), (None, True)])
def test_the_status_says_whether_another_try_is_worth_it(status: int | None, retryable: bool) -> None:
    with pytest.raises(ProviderError) as caught:
        _generate(ScriptedProvider([fail(status)]), _request())
    assert caught.value.is_retryable is retryable


def test_each_run_meets_the_failures_itself() -> None:
    provider = ScriptedProvider([fail(500), text("done")])
    for run in ("run1", "run2"):
        with pytest.raises(ProviderError):
            _generate(provider, _request(run=run))
        assert _generate(provider, _request(run=run)).reply.text == "done"


def test_a_failure_may_last_for_ever() -> None:
    provider = ScriptedProvider([fail(500, repeat=True)])
    for _ in range(5):
        with pytest.raises(ProviderError):
            _generate(provider, _request())


def test_a_failure_with_text_breaks_off_after_it() -> None:
    seen: list[Delta] = []
    script = Script.model_validate(
        {"experts": {"*": {"turns": [{"text": "Half a", "error": {"message": "the stream was cut"}}]}}}
    )
    with pytest.raises(ProviderError, match="cut"):
        asyncio.run(ScriptedProvider(script).generate(_request(), seen.append))
    assert "".join(delta.text for delta in seen) == "Half a"


def test_a_turn_may_be_repeated_before_the_next() -> None:
    script = [turn(text="again", repeat=5000), text("done")]
    assert _says(script, _request(4999), _request(5000, run="b")) == ["again", "done"]


def test_a_whole_part_may_be_repeated() -> None:
    turns = [{"text": "a"}, {"text": "b"}]
    script = Script.model_validate({"experts": {"*": {"turns": turns, "repeat": True}}})
    assert _says(script, *(_request(number) for number in range(5))) == ["a", "b", "a", "b", "a"]


def test_the_end_of_the_script_is_an_error_that_says_where() -> None:
    with pytest.raises(ProviderError, match=r"no turn 2 .*writer") as caught:
        _generate(ScriptedProvider(["only one"]), _request(1))
    assert not caught.value.is_retryable


def test_a_function_may_decide() -> None:
    provider = ScriptedProvider(lambda request: f"step {request.step} of {request.expert_key}")
    assert _generate(provider, _request(2)).reply.text == "step 3 of writer"
    assert provider.requests[0].step == 3


def test_a_delay_can_be_cancelled_after_the_first_delta() -> None:
    async def scenario() -> str:
        started = asyncio.Event()
        provider = ScriptedProvider([text("one two", delay_ms=3_600_000)])
        task = asyncio.create_task(provider.generate(_request(), lambda delta: started.set()))
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "cancelled"
        return "not cancelled"

    assert asyncio.run(scenario()) == "cancelled"


def test_usage_may_hold_cached_and_reasoning_tokens() -> None:
    cost = Cost(input_tokens=10, output_tokens=5, cached_input_tokens=4, reasoning_tokens=2)
    usage = _generate(ScriptedProvider([text("x", usage=cost)]), _request()).usage
    assert (usage.cached_input_tokens, usage.reasoning_tokens, usage.total_tokens) == (4, 2, 15)


def test_a_script_file_is_played_and_requests_are_logged(tmp_path: Path) -> None:
    script, log = tmp_path / "script.json", tmp_path / "requests.jsonl"
    script.write_text(json.dumps({"experts": {"[[w]]": {"turns": [{"text": "hello", "usage": {"input_tokens": 3}}]}}}))
    setting = {"script": str(script), "requestLog": str(log)}
    provider = ScriptedProviderFactory().create(ProviderConfig(dict(setting), {}))
    generation = asyncio.run(provider.generate(_request(instruction="[[w]]"), lambda delta: None))
    assert generation.reply.text == "hello"
    line = json.loads(log.read_text())
    assert line["expertKey"] == "writer"
    assert line["messages"] == [{"type": "userMessage", "contents": [{"type": "textPart", "text": "go"}]}]


def test_the_script_may_be_named_in_the_environment(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"experts": {}}')
    env = {"PERSTACK_SCRIPT": str(script)}
    assert ScriptedProviderFactory().is_configured(env)
    assert ScriptedProviderFactory().create(ProviderConfig({}, env))


def test_without_a_script_the_error_says_how_to_name_one() -> None:
    with pytest.raises(MissingCredential, match="PERSTACK_SCRIPT"):
        ScriptedProviderFactory().create(ProviderConfig({}, {}))


def test_a_misspelt_key_in_a_script_is_an_error_that_names_it(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"experts": {"a": {"turns": [{"txt": "hello"}]}}}')
    with pytest.raises(UsageError, match=r"experts\.a\.turns\.0\.txt"):
        ScriptedProviderFactory().create(ProviderConfig({"script": str(script)}, {}))
