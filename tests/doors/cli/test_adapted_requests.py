"""A person sees what a request was sent without, in every form of the output, and a resumed Job keeps to it."""

from __future__ import annotations

import asyncio
import json

import pytest
from terminal import Result, Terminal
from wire import Said
from wire_anthropic import ANTHROPIC

from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply, ReceivedRequest

TOML = """
model = "claude-sonnet-4-5"
[provider]
providerName = "anthropic"
[provider.setting]
topP = 0.5
[experts.a]
instruction = "You are terse."
maxRetries = 0
"""
LINE = "requests are sent without the field top_p (anthropic/claude-sonnet-4-5 refused it)"


def choose(request: ReceivedRequest) -> PreparedReply:
    if "top_p" in json.loads(request.body):
        return ANTHROPIC.error_reply(400, "`temperature` and `top_p` cannot both be specified for this model.")
    return ANTHROPIC.reply(Said("Done."))


def ran(terminal: Terminal, *commands: tuple[str, ...]) -> tuple[list[Result], list[bool]]:
    """Return the results of commands, and for each request whether it had the field."""
    terminal.project(TOML)

    async def serve() -> tuple[list[Result], list[bool]]:
        async with FakeEndpoint(choose=choose) as endpoint:
            env = {"ANTHROPIC_BASE_URL": endpoint.url, "ANTHROPIC_API_KEY": "sk"}
            done = [await asyncio.to_thread(terminal.run, *command, env=env) for command in commands]
            return done, ["top_p" in json.loads(asked.body) for asked in endpoint.asked]

    return asyncio.run(serve())


def test_text_has_the_result_alone_and_stderr_the_line(terminal: Terminal) -> None:
    ((done,), asked) = ran(terminal, ("run", "a", "q", "--output", "text"))
    assert (done.code, done.out, asked) == (0, "Done.\n", [True, False])
    assert f"warning: a: {LINE}\n" in done.err


@pytest.mark.parametrize("form", ["jsonl", "human"])
def test_events_and_lines_for_people_have_it(terminal: Terminal, form: str) -> None:
    ((done, log, more), asked) = ran(
        terminal,
        ("run", "a", "q", "--output", form),
        ("log", "@last", "--errors"),
        ("run", "a", "more", "--continue-job", "@last", "--output", "text"),
    )
    assert done.code == 0
    assert "adaptRequest" in done.out if form == "jsonl" else "adapts: sends requests without" in done.out
    assert "sends requests without the field top_p" in log.out
    assert (more.out, asked) == ("Done.\n", [True, False, False]), "a continued Job needs no refusal of its own"
