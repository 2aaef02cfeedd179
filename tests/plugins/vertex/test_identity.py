"""Tokens of google-vertex: real credentials of Google's library, at a token server on this machine."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from provider_suite import request_of
from wire import Said
from wire_vertex import NOWHERE, PLACE, VERTEX, VERTEX_CLAUDE, account_file

import perstack_vertex.credentials
from perstack.errors import MissingCredential, ProviderError
from perstack.ports.provider import Provider, ProviderConfig
from perstack.testing.fake_endpoint import FakeEndpoint, PreparedReply
from perstack_vertex.credentials import FILE, Identity
from perstack_vertex.plugin import FACTORY

HELLO = VERTEX.reply(Said("Hello"))
REFUSED = VERTEX.error_reply(401, "the token is not valid any more")
_JSON = {"content-type": "application/json"}
_HOUR = 3600
_SOON = 60
"""Seconds within which google-auth takes a token for expired."""


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test that awaits, for half a minute at most."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    return run


def _token(value: str, seconds: int = _HOUR) -> PreparedReply:
    body = {"access_token": value, "expires_in": seconds, "token_type": "Bearer"}
    return PreparedReply((json.dumps(body).encode(),), headers=_JSON)


def _no_token(status: int, **body: str) -> PreparedReply:
    return PreparedReply((json.dumps(body).encode(),), status=status, headers=_JSON)


def _provider(model: FakeEndpoint, file: str | None, **env: str) -> Provider:
    named = {FILE: file} if file else {}
    return FACTORY.create(ProviderConfig({**PLACE, "baseUrl": model.url}, {**NOWHERE, **named, **env}))


def _bearers(model: FakeEndpoint) -> list[str]:
    return [asked.headers["authorization"].removeprefix("Bearer ") for asked in model.asked]


async def _generate(provider: Provider, wire: Any = VERTEX) -> str:
    return (await provider.generate(request_of(wire), lambda delta: None)).reply.text


async def _failed(provider: Provider) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await _generate(provider)
    return caught.value


@in_a_loop
async def test_one_token_serves_many_generations_of_both_vendors(tmp_path: Path) -> None:
    async with FakeEndpoint(_token("t1")) as tokens, FakeEndpoint(HELLO) as model:
        provider = _provider(model, account_file(tmp_path, f"{tokens.url}/token"))
        await asyncio.gather(*(_generate(provider) for _ in range(5)))
        model.replies = [VERTEX_CLAUDE.reply(Said("Hello"))]
        assert await _generate(provider, VERTEX_CLAUDE) == "Hello"
        await provider.close()
    assert _bearers(model) == ["t1"] * 6
    (asked,) = tokens.asked
    form = parse_qs(asked.body.decode())
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]


@in_a_loop
async def test_a_token_about_to_expire_is_replaced_once_for_all_who_ask(tmp_path: Path) -> None:
    replies = (_token("t1", _SOON), _token("t2"))
    async with FakeEndpoint(*replies) as tokens, FakeEndpoint(HELLO) as model:
        provider = _provider(model, account_file(tmp_path, f"{tokens.url}/token"))
        assert await _generate(provider) == "Hello"
        await asyncio.gather(*(_generate(provider) for _ in range(5)))
        await provider.close()
    assert _bearers(model) == ["t1"] + ["t2"] * 5
    assert len(tokens.asked) == 2


@in_a_loop
async def test_a_kept_token_that_is_refused_is_replaced_once(tmp_path: Path) -> None:
    replies = (_token("t1"), _token("t2"))
    async with FakeEndpoint(*replies) as tokens, FakeEndpoint(HELLO, REFUSED, HELLO) as model:
        provider = _provider(model, account_file(tmp_path, f"{tokens.url}/token"))
        assert [await _generate(provider), await _generate(provider)] == ["Hello", "Hello"]
        await provider.close()
    assert _bearers(model) == ["t1", "t1", "t2"]


@in_a_loop
async def test_a_new_token_that_is_refused_is_told_at_once(tmp_path: Path) -> None:
    async with FakeEndpoint(_token("t1")) as tokens, FakeEndpoint(REFUSED) as model:
        provider = _provider(model, account_file(tmp_path, f"{tokens.url}/token"))
        error = await _failed(provider)
        await provider.close()
    words = "provider google-vertex refused the credentials: the token is not valid any more"
    assert (error.name, str(error), error.is_retryable) == ("Authentication", words, False)
    assert (len(tokens.asked), len(model.asked)) == (1, 1)


@in_a_loop
async def test_a_person_who_logged_in_is_known_by_gclouds_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"client_id": "c", "client_secret": "client-secret-1", "refresh_token": "refresh-token-1"}
    user = {"type": "authorized_user", "quota_project_id": "who-pays", **words}
    (tmp_path / "application_default_credentials.json").write_text(json.dumps(user))
    refused = _no_token(400, error="invalid_grant", error_description="refresh-token-1 was revoked")
    async with FakeEndpoint(_token("t1"), refused) as tokens, FakeEndpoint(HELLO) as model:
        # the library takes no other address from the file
        monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{tokens.url}/token")
        for _ in range(2):
            provider = _provider(model, None, CLOUDSDK_CONFIG=str(tmp_path))
            if not model.asked:
                assert await _generate(provider) == "Hello"
            else:
                error = await _failed(provider)
            await provider.close()
    (asked,) = model.asked
    assert (asked.headers["authorization"], asked.headers["x-goog-user-project"]) == ("Bearer t1", "who-pays")
    assert parse_qs(tokens.asked[0].body.decode())["refresh_token"] == ["refresh-token-1"]
    assert (error.name, error.is_retryable) == ("Authentication", False)
    assert "invalid_grant: [redacted] was revoked" in str(error)


@in_a_loop
async def test_a_token_server_that_cannot_be_reached_is_worth_another_try(tmp_path: Path) -> None:
    async with FakeEndpoint() as gone:
        nobody = f"{gone.url}/token"
    async with FakeEndpoint(HELLO) as model:
        provider = _provider(model, account_file(tmp_path, nobody))
        error = await _failed(provider)
        await provider.close()
    assert (error.name, error.is_retryable, model.asked) == ("ConnectError", True, [])


@in_a_loop
async def test_a_token_that_does_not_come_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perstack_vertex.credentials, "_REFRESH_TIMEOUT_S", 0.05)
    may_end = threading.Event()
    monkeypatch.setattr(Identity, "_refresh", lambda self: may_end.wait(30))
    async with FakeEndpoint(HELLO) as model:
        provider = _provider(model, account_file(tmp_path, "https://nowhere.example"))
        error = await _failed(provider)
        may_end.set()
        await provider.close()
    assert (error.name, error.is_retryable) == ("Timeout", True)


@pytest.mark.parametrize("content", ["{", "{}", '{"type": "service_account"}', '{"type": "else"}'])
@in_a_loop
async def test_a_file_that_holds_no_credentials_is_told_on_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    async with FakeEndpoint(HELLO) as model:
        provider = _provider(model, str(tmp_path / "c.json"))
        error = await _failed(provider)
        await provider.close()
    assert isinstance(error, MissingCredential)
    assert f"{tmp_path / 'c.json'} holds no credentials of Google's" in str(error)
    assert "\n" not in str(error)
    assert model.asked == []


async def _asked_of_the_machine(address: str) -> tuple[str, str]:
    """What a process prints that asks for a token where only the machine can give one, and its errors."""
    code = """
import asyncio
from perstack.errors import MissingCredential
from perstack_vertex.credentials import identity_of
try:
    print(asyncio.run(identity_of({}, is_needed=True).token()).value)
except MissingCredential as error:
    print(error)
"""
    # the library reads the address when it is imported
    place = dict.fromkeys(("GCE_METADATA_HOST", "GCE_METADATA_IP"), address.removeprefix("http://"))
    env = {"PYTHONPATH": ":".join(sys.path), "GCE_METADATA_DETECT_RETRIES": "1", **place}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=env, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return out.decode().strip(), err.decode()


@in_a_loop
async def test_a_machine_of_googles_own_gives_tokens_too() -> None:
    given = {"email": "a@b", "scopes": ["s"], "access_token": "of-the-machine", "expires_in": _HOUR}
    reply = PreparedReply((json.dumps(given).encode(),), headers={**_JSON, "metadata-flavor": "Google"})
    async with FakeEndpoint(reply) as machine:
        assert await _asked_of_the_machine(machine.url) == ("of-the-machine", "")


@in_a_loop
async def test_on_any_other_machine_the_ways_to_log_in_are_named() -> None:
    async with FakeEndpoint() as gone:
        nobody = gone.url
    out, err = await _asked_of_the_machine(nobody)
    assert out.startswith("provider google-vertex has no credentials: run `gcloud auth application-default login`")
    assert err == ""
