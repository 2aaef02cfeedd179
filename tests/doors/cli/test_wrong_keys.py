"""Errors of an endpoint name what to change: the key and where it is set, or the address and its port."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from terminal import Result, Terminal
from wire_anthropic import ANTHROPIC

from perstack.http_providers.errors import status_error
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply

EXPERT = 'provider.providerName = "anthropic"\n[experts.a]\ninstruction = "x"\nmaxRetries = 1\n'
KEY = "sk-ant-this-key-is-wrong-0123456789"


def run_refused(terminal: Terminal, reply: PreparedReply, *args: str, env: dict[str, str] | None = None) -> Result:
    """Run an Expert whose endpoint gives this reply."""
    terminal.project(EXPERT)

    async def serve() -> Result:
        async with FakeEndpoint(reply) as endpoint:
            given = {"ANTHROPIC_BASE_URL": endpoint.url, **(env or {})}
            return await asyncio.to_thread(terminal.run, "run", "a", "q", "--output", "text", *args, env=given)

    return asyncio.run(serve())


@pytest.mark.parametrize("way", ["environment", "file", "named file", "both"])
def test_a_refused_key_is_named_with_the_place_where_it_is_set(terminal: Terminal, way: str) -> None:
    file = terminal.workspace / ".env"
    if way != "environment":
        file.write_text(f"ANTHROPIC_API_KEY={KEY}{'-other' if way == 'both' else ''}\n")
    env = {"ANTHROPIC_API_KEY": KEY} if way in ("environment", "both") else {}
    args = ("--env-path", ".env") if way != "environment" else ()
    done = run_refused(terminal, ANTHROPIC.error_reply(401, f"invalid x-api-key {KEY}"), *args, env=env)
    place = {
        "environment": "the environment",
        "both": "the environment, which takes precedence over .env",
    }.get(way, ".env")
    words = f"provider anthropic refused the key in ANTHROPIC_API_KEY, which is set in {place}: invalid x-api-key"
    assert done.code == 1
    assert words in done.err.replace(f"{terminal.workspace}/", "")
    assert "; set a valid one there; then continue with: perstack resume" in done.err
    assert KEY not in done.err


def test_what_a_key_may_not_do_is_no_wrong_key(terminal: Terminal) -> None:
    done = run_refused(terminal, ANTHROPIC.error_reply(403, "no such region"), env={"ANTHROPIC_API_KEY": KEY})
    words = "provider anthropic does not allow this to the key in ANTHROPIC_API_KEY, which is set in the environment"
    assert f"{words}: no such region; allow it in your account" in done.err


def test_a_key_of_the_settings_is_said_to_be_there(terminal: Terminal) -> None:
    reply = ANTHROPIC.error_reply(401, "no")
    header = f'provider.setting.headers = {{ x-api-key = "{KEY}" }}\n'

    async def serve() -> Result:
        async with FakeEndpoint(reply) as endpoint:
            (terminal.workspace / "perstack.toml").write_text(header + EXPERT)
            env = {"ANTHROPIC_BASE_URL": endpoint.url}
            return await asyncio.to_thread(terminal.run, "run", "a", "q", "--output", "text", env=env)

    assert "refused the `headers` of [provider.setting]: no; set a valid one there" in asyncio.run(serve()).err


def test_a_key_that_is_refused_as_an_invalid_argument_is_a_wrong_key() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    body = {"error": {"code": 400, "message": "API key not valid.", "details": details}}
    error = status_error(400, {}, json.dumps(body, indent=2).encode(), "https://x")
    assert (error.name, error.message, error.is_retryable) == ("Authentication", "API key not valid.", False)


def test_an_unreachable_endpoint_is_shown_with_its_port_and_its_tries(terminal: Terminal) -> None:
    terminal.project(EXPERT)
    env = {"ANTHROPIC_API_KEY": KEY}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        result = terminal.run("run", "a", "q", "--output", "human", env={**env, "ANTHROPIC_BASE_URL": address})
    where = f"no connection to {address}/v1/messages: connection refused"
    assert "retries: try 2 of 2 after " in result.out
    assert f"because: ConnectError: {where}" in result.out
    assert f"{where} (gave up after 2 tries in " in result.err
    assert "raise `maxRetries` in perstack.toml to allow more" in result.err
    result = terminal.run("run", "a", "q", env={**env, "ANTHROPIC_BASE_URL": "https://nowhere.invalid"})
    assert "no connection to https://nowhere.invalid/v1/messages (port 443): " in result.err
