"""Models of different vendors that stand in for each other: what each is sent is what its own types take."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from conversation import plain
from hosts import MovedClock, Seen, expert, project_of
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter
from wire import Said, Wire
from wire_anthropic import ANTHROPIC
from wire_google import GOOGLE
from wire_openai import COMPATIBLE, OPENAI

from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.doors.shared.activity import JobActivity
from perstack.host import Host
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply

FORMS: dict[str, Any] = {
    ANTHROPIC.title: MessageCreateParamsStreaming,
    OPENAI.title: ResponseCreateParamsStreaming,
    COMPATIBLE.title: CompletionCreateParamsStreaming,
}
PAIRS = [(ANTHROPIC, OPENAI), (OPENAI, ANTHROPIC), (ANTHROPIC, COMPATIBLE), (COMPATIBLE, ANTHROPIC), (GOOGLE, OPENAI)]
OPAQUE = ("sig==", "encrypted_content", "thoughtSignature", "c2ln")
"""What only the vendor that wrote it can read."""


def _setting(wire: Wire, endpoint: FakeEndpoint) -> ProviderSetting:
    return ProviderSetting(provider_name=wire.factory.name, setting=wire.config(endpoint.url, stallTimeout=500).setting)


async def _run(
    folder: Path,
    ends: tuple[tuple[Wire, tuple[PreparedReply, ...]], ...],
    on_switch: Callable[[MovedClock], None] = lambda clock: None,
    *,
    max_retries: int = 0,
) -> tuple[Any, Seen, list[FakeEndpoint], Any]:
    """A Job on the first, for which the second stands in."""
    (first, _), (second, _) = ends
    clock, seen = MovedClock(), Seen()
    (folder / "a").write_text("found in a")

    def watched(event: Any, line: bytes) -> None:
        seen(event, line)
        if event.type == "finishGeneration" and seen.of("switchModel"):  # shown with the step, once it is written
            on_switch(clock)

    async with AsyncExitStack() as stack, asyncio.timeout(30):
        there = [await stack.enter_async_context(FakeEndpoint(*replies)) for _, replies in ends]
        own = expert("a", provider=_setting(first, there[0]), reasoning_budget="low")
        models = tuple(f"{wire.factory.name}/{wire.model}" for wire in (first, second))
        project = project_of(own.model_copy(update={"model": models}))
        project = project.model_copy(update={"provider": _setting(second, there[1])})
        env = {**first.env, **second.env}
        host = Host(project, workspace=folder, env=env, overrides=Overrides(max_retries=max_retries), clock=clock)
        await stack.enter_async_context(host)
        job = await host.run("a", "hi", on_event=watched)
        return job, seen, there, await host.audit.replay(job.id)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(map(str, pair)))
def test_a_conversation_of_one_vendor_continues_with_another_and_back(tmp_path: Path, pair: tuple[Wire, Wire]) -> None:
    first, second = pair
    thought = Said(thinking="Hm, yes.", calls=(("c1", "a"),))
    job, seen, (one, other), replayed = asyncio.run(
        _run(
            tmp_path,
            (
                (first, (first.reply(thought), first.error_reply(529, "busy"), first.reply(Said("Back.")))),
                (second, tuple(second.reply(Said(thinking="Mine.", calls=((one, "a"),))) for one in ("c2", "c3"))),
            ),
            lambda clock: clock.move(300_000),
        )
    )
    assert (job.status, job.text) == ("completed", "Back.")
    assert [event.reason for event in seen.of("switchModel")] == ["overloaded", "triedAgain"]
    assert (len(one.asked), len(other.asked)) == (3, 2)
    assert replayed.ok
    sent = json.loads(other.asked[0].body)
    assert not any(word in other.asked[0].body.decode() for word in OPAQUE if word != "encrypted_content")
    assert "found in a" in json.dumps(second.results(sent)), "the call and its result are there"
    for wire, endpoint in ((first, one), (second, other)):
        for asked in endpoint.asked:
            body = json.loads(asked.body)
            if wire.title in FORMS:
                for message in body.get("messages", []):
                    message.pop("reasoning_content", None)  # of compatible servers, no part of the form
                assert plain(TypeAdapter(FORMS[wire.title]).validate_python(body)) == body
    last = one.asked[-1].body.decode()
    assert last.count("found in a") == 3
    for words in first.kept.values():
        assert last.count(words) == 1, "its own is sent back, and nothing that the other has signed"


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        ((ANTHROPIC.error_reply(429, "slow down", **{"retry-after": "0"}),), "rateLimit"),
        ((ANTHROPIC.error_reply(529, "busy"),), "overloaded"),
        ((ANTHROPIC.error_reply(500, "oops"),), "serverError"),
        ((ANTHROPIC.error_reply(400, "Your credit balance is too low to access the Anthropic API."),), "quota"),
        ((ANTHROPIC.reply(Said("I will not.", stop="refusal")),), "refusal"),
        ((PreparedReply(ANTHROPIC.reply(Said("I be")).chunks[:4], ending="cut"),), "unreachable"),
        ((PreparedReply(ANTHROPIC.reply(Said("I be")).chunks[:4], ending="hang"),), "timeout"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_vendor_stands_in_under_every_failure(
    tmp_path: Path, replies: tuple[PreparedReply, ...], reason: str
) -> None:
    ends = ((ANTHROPIC, replies), (OPENAI, (OPENAI.reply(Said("Here.")),)))
    job, seen, _, replayed = asyncio.run(_run(tmp_path, ends))
    assert (job.status, job.text) == ("completed", "Here.")
    assert [event.reason for event in seen.of("switchModel")] == [reason]
    assert replayed.ok


def test_a_reply_that_stalls_is_tried_again_and_what_was_shown_of_it_is_void(tmp_path: Path) -> None:
    stalled = PreparedReply(ANTHROPIC.reply(Said("I begin and")).chunks[:6], ending="hang")
    ends = ((ANTHROPIC, (stalled, ANTHROPIC.reply(Said("Whole.")))), (OPENAI, (OPENAI.reply(Said("Never.")),)))
    job, seen, (one, other), replayed = asyncio.run(_run(tmp_path, ends, max_retries=1))
    assert (job.status, job.text, len(one.asked), len(other.asked)) == ("completed", "Whole.", 2, 0)
    (retry,) = seen.of("retry")
    assert retry.error.name == "Stall"
    assert "nothing came for 0.5 s; allow more with `stallTimeout`" in retry.error.message
    live = JobActivity()
    for event in seen.events:
        live.apply(event)
        if event.type == "streamText" and not live.lanes:
            raise AssertionError("the text is shown while it comes")
        if event.type == "retry":
            assert not next(iter(live.lanes.values())).text, "and void from then on"
    assert replayed.ok


def test_a_server_that_is_not_there_is_stood_in_for(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, Seen]:
        async with FakeEndpoint(OPENAI.reply(Said("Here."))) as there:
            async with FakeEndpoint() as gone:
                closed = _setting(ANTHROPIC, gone)
            models = tuple(f"{wire.factory.name}/{wire.model}" for wire in (ANTHROPIC, OPENAI))
            project = project_of(expert("a", provider=closed, model=models))
            project = project.model_copy(update={"provider": _setting(OPENAI, there)})
            env, seen = {**ANTHROPIC.env, **OPENAI.env}, Seen()
            async with Host(project, workspace=tmp_path, env=env, overrides=Overrides(max_retries=0)) as host:
                return await host.run("a", "hi", on_event=seen), seen

    job, seen = asyncio.run(scenario())
    assert job.text == "Here."
    assert [event.reason for event in seen.of("switchModel")] == ["unreachable"]
