"""Signatures of thinking hold for one key and one model, and a format with thinking wants it before calls."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hosts import Seen, expert, project_of
from wire import Said
from wire_anthropic import ANTHROPIC

from perstack.core.definitions.settings import Overrides, ProviderSetting
from perstack.host import Host
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest

FIRST, SECOND = "claude-opus-4-1", "claude-sonnet-4-1"


def _problem(body: Any, owner: str) -> str | None:
    """Return Anthropic's words for a body that breaks a rule about thinking."""
    replies = [(index, one["content"]) for index, one in enumerate(body["messages"]) if one["role"] == "assistant"]
    for index, blocks in replies:
        for place, block in enumerate(blocks):
            if block["type"] == "thinking" and block["signature"] != owner:
                return f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block"
    last = replies[-1][1] if replies else []
    if body.get("thinking", {}).get("type") != "enabled" or not any(block["type"] == "tool_use" for block in last):
        return None
    found = last[0]["type"]
    words = (
        f"messages.{replies[-1][0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`."
    )
    return None if found == "thinking" else words


def choose(request: ReceivedRequest) -> PreparedReply:
    body = json.loads(request.body)
    owner = f"{request.headers['x-api-key']}/{body['model']}"
    if words := _problem(body, owner):
        return ANTHROPIC.error_reply(400, words)
    count = sum(message["role"] == "assistant" for message in body["messages"])
    if body["model"] == FIRST and count >= 1:
        return ANTHROPIC.error_reply(529, "busy")
    reply = ANTHROPIC.reply(Said("" if count < 3 else "done", "hm", ((f"c{count}", "a"),) if count < 3 else ()))
    chunks = tuple(re.sub(rb'"signature":"[^"]+"', b'"signature":"%s"' % owner.encode(), one) for one in reply.chunks)
    return PreparedReply(chunks, headers=reply.headers)


@pytest.mark.parametrize("budget", [None, "low"])
def test_a_change_of_model_or_key_costs_one_refusal_at_most(tmp_path: Path, budget: Any) -> None:
    (tmp_path / "a").write_text("found")

    async def scenario() -> list[list[tuple[str, ...]]]:
        async with asyncio.timeout(60), FakeEndpoint(choose=choose) as endpoint:
            provider = ProviderSetting(provider_name="anthropic", setting={"baseUrl": endpoint.url})
            models = (f"anthropic/{FIRST}", f"anthropic/{SECOND}")
            project = project_of(expert("x", model=models)).model_copy(update={"provider": provider})
            overrides = Overrides(max_retries=0, reasoning_budget=budget)
            first, second = Seen(), Seen()
            async with Host(project, workspace=tmp_path, env={"ANTHROPIC_API_KEY": "k1"}, overrides=overrides) as host:
                job = await host.run("x", "go", job_id="j", on_event=first)
                assert job.text == "done"
                assert (await host.audit.replay("j")).findings == ()
            async with Host(project, workspace=tmp_path, env={"ANTHROPIC_API_KEY": "k2"}, overrides=overrides) as host:
                job = await host.continue_job("x", "more", job_id="j", on_event=second)
                assert job.text == "done"
                assert (await host.audit.replay("j")).findings == ()
            return [_words(seen) for seen in (first, second)]

    switched, other_key = asyncio.run(scenario())
    # thinking of the other model is not sent; where thinking is asked for, the format then expects some before calls
    assert switched == (
        [] if budget is None else [("without the thinking of earlier replies", "without the field thinking")]
    )
    assert other_key == [("without the thinking of earlier replies",)] * 2, "once for each model"


def _words(seen: Seen) -> list[tuple[str, ...]]:
    return [tuple(item.words for item in event.adaptations) for event in seen.of("adaptRequest")]
