"""Replies that cannot be logged, digested or sent: the Job continues, or stops so that it can be resumed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hosts import Bench, Seen, expert, results, wait_for

from perstack.core.base.usage import Usage
from perstack.core.messages.messages import ExpertMessage, TextPart, ThinkingPart, ToolCallPart
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.testing.scripted import ScriptedProvider
from perstack.testing.scripted import text as text_turn


class Replying(ScriptedProvider):
    """A provider that returns these generations in turn, and encodes requests as a real one does."""

    def __init__(self, *generations: Generation) -> None:
        super().__init__([text_turn("unused")])
        self._generations = list(generations)

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        self.requests.append(request)
        messages = [message.model_dump(mode="json", by_alias=True) for message in request.messages]
        json.dumps(messages, ensure_ascii=False, allow_nan=False).encode()
        on_delta(Delta("text", "half \ud83d"))
        return self._generations.pop(0)


def calling(args: dict, **usage: int) -> Generation:
    part = ToolCallPart.model_construct(tool_call_id="c", tool_name="think", args=args, raw_args=None, opaque=None)
    counts = Usage.model_construct(**{**Usage.of(1, 1).model_dump(), **usage})
    return Generation(ExpertMessage(contents=(part,)), counts, "toolCalls")


def saying(text: str, **usage: int) -> Generation:
    counts = Usage.model_construct(**{**Usage.of(1, 1).model_dump(), **usage})
    return Generation(ExpertMessage(contents=(TextPart(text=text),)), counts, "stop")


def nested(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


async def driven(bench: Bench, provider: Replying, seen: Seen) -> tuple[str, str, int]:
    host = bench.host(provider, expert("a"))
    job = await host.run("a", "q \ud800", on_event=seen)
    report = await host.audit.verify(job.id)
    assert (await host.audit.replay(job.id)).findings == () == report.findings
    return job.status, (await host.job(job.id)).text or "", job.usage.total_tokens


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"thought": "a \ud800 b", "\udfff": 1}, ""),
        ({"thought": "x", "more": nested(99)}, ""),
        ({"thought": "x", "more": nested(300)}, "they have more than 100 levels"),
        ({"thought": "x", "more": nested(50_000)}, "they have more than 100 levels"),
        ({"thought": "x", "more": [float("inf")]}, "they have a number that is not finite"),
        ({"thought": float("nan")}, "they have a number that is not finite"),
    ],
    ids=["surrogate", "deep enough", "deep", "very deep", "infinite", "nan"],
)
def test_arguments_that_nothing_can_hold_are_refused_or_made_whole(bench: Bench, args: dict, said: str) -> None:
    seen = Seen()
    provider = Replying(calling(args), saying("done \udc00"))
    assert wait_for(driven(bench, provider, seen)) == ("completed", "done \ufffd", 4)
    assert said in results(seen)[0]


def test_usage_that_nobody_can_mean_is_not_counted(bench: Bench) -> None:
    seen = Seen()
    provider = Replying(
        calling({"thought": "x"}, input_tokens=-5, output_tokens=-(10**30), total_tokens=-7, cached_input_tokens=-1),
        saying("done", input_tokens=3, output_tokens=4, total_tokens=10**400),
    )
    status, _, total = wait_for(driven(bench, provider, seen))
    assert (status, total) == ("completed", 10**12)
    first, second = seen.of("finishGeneration")
    assert (first.usage.input_tokens, first.usage.output_tokens, first.usage.cached_input_tokens) == (0, 0, 0)
    assert (second.usage.input_tokens, second.usage.output_tokens) == (3, 4)


def test_a_total_that_is_less_than_its_parts_is_their_sum(bench: Bench) -> None:
    seen = Seen()
    provider = Replying(saying("done", input_tokens=3, output_tokens=4, total_tokens=0))
    status, _, total = wait_for(driven(bench, provider, seen))
    assert (status, total) == ("completed", 7)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_goes_back_to_its_vendor_as_null(bench: Bench, number: float) -> None:
    thought = ThinkingPart.model_construct(thinking="x", opaque={"v": {"items": [{"score": number, "id": 7}]}})
    call = ToolCallPart(tool_call_id="c", tool_name="think", args={"thought": "y"})
    provider = Replying(
        Generation(ExpertMessage(contents=(thought, call)), Usage.of(1, 1), "toolCalls"), saying("done")
    )
    seen = Seen()
    assert wait_for(driven(bench, provider, seen))[:2] == ("completed", "done")
    (event, _) = seen.of("finishGeneration")
    assert event.reply[0].opaque == {"v": {"items": [{"score": None, "id": 7}]}}


def test_a_reply_that_cannot_be_kept_fails_the_run_which_can_be_resumed(bench: Bench) -> None:
    async def run() -> tuple[str, str, str]:
        deep = ThinkingPart.model_construct(thinking="x", opaque=nested(1_000))
        broken = Generation(ExpertMessage(contents=(deep,)), Usage.of(1, 1), "stop")
        host = bench.host(Replying(broken, saying("done")), expert("a"))
        failed = await host.run("a", "q")
        error = failed.error or ""
        return failed.status, error, (await host.resume(failed.id)).status

    assert wait_for(run()) == ("stoppedByError", "ValueError: the reply is nested too deeply to be stored", "completed")
