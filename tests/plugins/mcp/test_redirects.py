"""Where a server on the web can lead the client: by a redirect, by the DNS, and by naming an authorization server."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hosts import wait_for
from internet import PUBLIC, Internet, Reply, Request, internet
from mcp_bed import Bed

from perstack.core.definitions.skills import McpSseSkill, OAuth
from perstack.errors import SkillError
from perstack_mcp.plugin import McpSkillFactory

HERE = "https://mcp.test"
TOKEN = "s3cret-token"

Open = Callable[[Callable[[Request], Reply]], Internet]


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """`net(answer)`: mcp.test and other.test are public, inner.test is not."""
    opened: list[AbstractContextManager[Internet]] = []

    def start(answer: Callable[[Request], Reply]) -> Internet:
        names = {"mcp.test": [PUBLIC], "other.test": [PUBLIC], "inner.test": ["10.0.0.1"]}
        opened.append(internet(tmp_path, monkeypatch, Internet(answer, names)))
        return opened[-1].__enter__()

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def _skill(path: str = "/mcp", **fields) -> McpSseSkill:
    return McpSseSkill(name="web", endpoint=HERE + path, timeout=20_000, **fields)


def _refusal(bed: Bed, skill: McpSseSkill) -> str:
    async def work() -> str:
        async with bed.session(skill) as session:
            with pytest.raises(SkillError) as caught:
                await session.tools()
            return str(caught.value)

    return wait_for(work())


def _refused_login(bed: Bed, skill: McpSseSkill) -> str:
    shown: list[str] = []

    async def present(url: str) -> None:
        shown.append(url)

    async def work() -> str:
        with pytest.raises(SkillError) as caught:
            await McpSkillFactory().login(skill, bed.context(), present)
        return str(caught.value)

    words = wait_for(work())
    assert shown == [], "nobody is sent anywhere"
    return words


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
@pytest.mark.parametrize(
    "there",
    ["https://10.0.0.1/mcp", "https://inner.test/mcp", "https://127.0.0.1/mcp", "http://mcp.test/mcp", "http://[::1]/"],
)
def test_a_redirect_to_a_private_address_or_to_plain_http_is_not_followed(
    bed: Bed, net: Open, there: str, path: str
) -> None:
    seen = net(lambda request: Reply(307, {"Location": there}))
    assert _refusal(bed, _skill(path)).startswith("skill 'web' could not be connected to: ")
    assert {host for host, _ in seen.connected} == {PUBLIC}
    assert {port for _, port in seen.connected} == {443}


def test_a_name_that_comes_to_stand_for_a_private_address_is_refused_at_the_next_connection(
    bed: Bed, net: Open
) -> None:
    seen = net(lambda request: Reply(307, {"Location": "/elsewhere"}))
    seen.names["mcp.test"] = [PUBLIC, "127.0.0.1"]
    assert "mcp.test (127.0.0.1) is a private or local address" in _refusal(bed, _skill())
    assert seen.connected == [(PUBLIC, 443)]


def test_a_name_with_one_public_and_one_private_address_is_refused(
    bed: Bed, net: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = net(lambda request: Reply(200))
    entries = [(2, 1, 6, "", (address, 0)) for address in (PUBLIC, "192.168.1.1")]
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **options: entries)
    assert "mcp.test (192.168.1.1) is a private or local address" in _refusal(bed, _skill())
    assert seen.connected == []


def test_headers_are_not_sent_to_another_host(bed: Bed, net: Open) -> None:
    seen = net(lambda request: Reply(307, {"Location": f"https://other.test{request.path}"}))
    _refusal(bed, _skill(headers={"Authorization": f"Bearer {TOKEN}", "X-Key": TOKEN}))
    assert seen.requests
    assert {request.host for request in seen.requests} == {"mcp.test"}


def test_headers_go_along_on_the_same_host(bed: Bed, net: Open) -> None:
    def answer(request: Request) -> Reply:
        return Reply(404) if request.path == "/there" else Reply(307, {"Location": "/there"})

    seen = net(answer)
    _refusal(bed, _skill(headers={"X-Key": TOKEN}))
    assert {request.headers["x-key"] for request in seen.requests if request.path == "/there"} == {TOKEN}


def test_the_token_of_a_login_is_not_sent_to_another_host(bed: Bed, net: Open) -> None:
    seen = net(_guarded)
    _refusal(bed, _client_credentials())
    with_token = [request for request in seen.requests if TOKEN in request.headers.get("authorization", "")]
    assert with_token, "the token was had, and used"
    assert {request.host for request in seen.requests} == {"mcp.test"}


def _client_credentials() -> McpSseSkill:
    return _skill(oauth=OAuth(flow="clientCredentials", client_id="c", client_secret="x"))


def _guarded(request: Request) -> Reply:
    """A server that gives tokens, and then sends everybody who has one elsewhere."""
    if request.path.startswith("/.well-known/oauth-protected-resource"):
        return _json({"resource": f"{HERE}/mcp", "authorization_servers": [HERE]})
    if request.path.startswith("/.well-known"):
        return _json(_metadata())
    if request.path == "/token":
        return _json({"access_token": TOKEN, "token_type": "Bearer"})
    if TOKEN in request.headers.get("authorization", ""):
        return Reply(307, {"Location": "https://other.test/mcp"})
    return Reply(401)


def _metadata(**fields: str) -> dict[str, object]:
    places = {name: f"{HERE}/{name.partition('_')[0]}" for name in ("authorization_endpoint", "token_endpoint")}
    return {"issuer": HERE, **places, "registration_endpoint": f"{HERE}/register", **fields}


def _json(value: object) -> Reply:
    return Reply(200, {"Content-Type": "application/json"}, json.dumps(value))


def test_the_secret_goes_to_the_named_issuer_among_several_by_the_method_that_it_supports(bed: Bed, net: Open) -> None:
    def answer(request: Request) -> Reply:
        if request.path.startswith("/.well-known/oauth-protected-resource"):
            return _json({"resource": f"{HERE}/mcp", "authorization_servers": ["https://other.test/a", HERE]})
        if request.path.startswith("/.well-known"):
            return _json(_metadata() | {"token_endpoint_auth_methods_supported": ["client_secret_post"]})
        return _guarded(request)

    seen = net(answer)
    oauth = OAuth(flow="clientCredentials", client_id="c", client_secret="x", issuer=HERE)
    _refusal(bed, _skill(oauth=oauth))
    (token, *_) = [request for request in seen.requests if request.path == "/token"]
    assert "authorization" not in token.headers
    assert {request.host for request in seen.requests} == {"mcp.test"}


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ("https://10.0.0.1/m", "10.0.0.1 is a private or local address"),
        ("https://inner.test/m", "inner.test (10.0.0.1) is a private or local address"),
        ("http://other.test/m", "http://other.test is not an https:// address"),
    ],
)
def test_metadata_at_a_private_address_or_by_plain_http_is_refused(bed: Bed, net: Open, there: str, why: str) -> None:
    seen = net(lambda request: Reply(401, {"WWW-Authenticate": f'Bearer resource_metadata="{there}"'}))
    assert why in _refused_login(bed, _skill())
    assert {host for host, _ in seen.connected} == {PUBLIC}


def test_an_authorization_server_at_a_private_address_is_refused(bed: Bed, net: Open) -> None:
    def answer(request: Request) -> Reply:
        if request.path.startswith("/.well-known/oauth-protected-resource"):
            return _json({"resource": f"{HERE}/mcp", "authorization_servers": ["https://inner.test"]})
        return Reply(401)

    seen = net(answer)
    assert "inner.test (10.0.0.1) is a private or local address" in _refused_login(bed, _skill())
    assert {host for host, _ in seen.connected} == {PUBLIC}


@pytest.mark.parametrize("endpoint", ["registration_endpoint", "token_endpoint"])
def test_an_endpoint_of_an_authorization_server_at_a_private_address_is_refused(
    bed: Bed, net: Open, endpoint: str
) -> None:
    def answer(request: Request) -> Reply:
        is_metadata = request.path.startswith("/.well-known/oauth-authorization-server")
        return _json(_metadata(**{endpoint: "https://10.0.0.1/x"})) if is_metadata else _guarded(request)

    seen = net(answer)
    skill = _skill() if endpoint == "registration_endpoint" else _client_credentials()
    refuse = _refused_login if endpoint == "registration_endpoint" else _refusal
    assert "10.0.0.1 is a private or local address" in refuse(bed, skill)
    assert {host for host, _ in seen.connected} == {PUBLIC}


def test_a_person_is_not_sent_to_a_login_by_plain_http(bed: Bed, net: Open) -> None:
    def answer(request: Request) -> Reply:
        if request.path.startswith("/.well-known/oauth-authorization-server"):
            return _json(_metadata(authorization_endpoint="http://other.test/authorize"))
        return _json({"client_id": "c"}) if request.path == "/register" else _guarded(request)

    net(answer)
    words = _refused_login(bed, _skill())
    assert "the server requests a login at an address that is not https://: http://other.test/authorize" in words


@pytest.mark.parametrize("path", ["/register", "/token"])
def test_an_answer_of_an_authorization_server_that_is_none_is_not_shown(
    bed: Bed, net: Open, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def answer(request: Request) -> Reply:
        malformed = {"access_token": TOKEN, "client_secret": TOKEN, "token_type": "mac", "redirect_uris": 1}
        return _json(malformed) if request.path == path else _guarded(request)

    net(answer)
    words = _refused_login(bed, _skill()) if path == "/register" else _refusal(bed, _client_credentials())
    assert words.endswith("the authorization server's answer is invalid")
    assert TOKEN not in caplog.text


def test_an_authorization_server_that_is_silent_is_not_waited_for_for_ever(
    bed: Bed, net: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perstack_mcp.oauth.AUTHORIZATION_TIMEOUT_S", 0.2)
    gave_up = threading.Event()

    def answer(request: Request) -> Reply:
        if request.path == "/token":
            gave_up.wait(30)
        return _guarded(request)

    net(answer)
    try:
        words = _refusal(bed, _client_credentials())
    finally:
        gave_up.set()
    assert words.endswith("the authorization server at mcp.test does not answer: ReadTimeout")


@pytest.mark.parametrize("path", ["/mcp", "/.well-known/oauth-protected-resource/mcp", "/token", "/moved"])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_an_answer_that_does_not_end_is_not_read_to_its_end(bed: Bed, net: Open, path: str, encoding: str) -> None:
    large = "x" * (64 << 20)

    def answer(request: Request) -> Reply:
        reply = _guarded(request)
        if path == "/moved" and request.path == "/token":
            return Reply(307, {"Location": "/moved"}, large)
        if request.path == path:
            return Reply(reply.status, reply.headers | {"Content-Encoding": encoding}, large)
        return reply

    net(answer)
    host = HERE.removeprefix("https://")
    assert f"the answer of {host} to a login is larger than 1048576 bytes" in _refusal(bed, _client_credentials())


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("https://inner.test/identity", "inner.test (10.0.0.1) is a private or local address"),
        ("https://mcp.test/moved", "the identity provider gave no assertion: it answered 307"),
        ("https://mcp.test/large", "the answer of mcp.test to a login is larger than 1048576 bytes"),
        ("https://mcp.test/hangs", "the authorization server at mcp.test does not answer: ReadTimeout"),
    ],
)
def test_an_identity_provider_that_leads_elsewhere_or_does_not_end_gets_no_further(
    bed: Bed, net: Open, monkeypatch: pytest.MonkeyPatch, endpoint: str, why: str
) -> None:
    monkeypatch.setattr("perstack_mcp.oauth.AUTHORIZATION_TIMEOUT_S", 0.5)
    gave_up = threading.Event()

    def answer(request: Request) -> Reply:
        match request.path:
            case "/moved":
                return Reply(307, {"Location": "https://other.test/identity"})
            case "/large":
                return Reply(200, {}, "x" * (64 << 20))
            case "/hangs":
                gave_up.wait(30)
        return _guarded(request)

    seen = net(answer)
    file = bed.workspace / "identity"
    file.write_text(TOKEN)
    fields = {"identity_endpoint": endpoint, "identity_client_id": "c", "identity_file": str(file)}
    oauth = OAuth(flow="identityAssertion", client_id="c", client_secret="x", issuer=HERE, **fields)
    try:
        words = _refusal(bed, _skill(oauth=oauth))
    finally:
        gave_up.set()
    assert why in words
    assert {host for host, _ in seen.connected} == {PUBLIC}
    assert {request.host for request in seen.requests} == {"mcp.test"}
    assert "/token" not in [request.path for request in seen.requests]


def test_a_token_that_is_bound_to_a_key_is_refused(bed: Bed, net: Open) -> None:
    def answer(request: Request) -> Reply:
        is_token = request.path == "/token"
        return _json({"access_token": TOKEN, "token_type": "DPoP"}) if is_token else _guarded(request)

    net(answer)
    assert "the authorization server's answer is invalid" in _refusal(bed, _client_credentials())
