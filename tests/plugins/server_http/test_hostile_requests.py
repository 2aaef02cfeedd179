"""Headers and bodies that no client should send to `perstack mcp --http`: each gets one clear answer, and soon."""

from __future__ import annotations

import json
import random
import socket
import string
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from http_server import TOKEN, serving
from terminal import Terminal

PATIENCE_S = 20.0  # seconds for a whole answer; the slowest takes some milliseconds
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}
HEADERS = {
    "Host": "localhost",
    "Authorization": f"Bearer {TOKEN}",
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    terminal = Terminal(tmp_path_factory.mktemp("hostile"))
    terminal.project('[experts.one]\ninstruction = "x"\n')
    with serving(terminal, token=TOKEN) as (url, _):
        yield url


@pytest.fixture
def session(url: str) -> str:
    """Return the id of a session."""
    return session_of(url)


def session_of(url: str) -> str:
    _, head, _ = send(url, "POST", body=json.dumps(HELLO).encode())
    return next(line.split(": ")[1] for line in head.split("\r\n") if line.lower().startswith("mcp-session-id"))


def send(url: str, method: str, *, body: bytes = b"", is_stream: bool = False, **headers: str) -> tuple[int, str, str]:
    """Return status, head and body. A stream that stays open is read as far as its head."""
    place = urlsplit(url)
    lines = {**HEADERS, "Content-Length": str(len(body)), **{k.replace("_", "-"): v for k, v in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    request = f"{method} /mcp HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode("latin-1") + body
    with closing(socket.create_connection((place.hostname or "", place.port or 0), timeout=PATIENCE_S)) as connection:
        connection.sendall(request)
        got = b""
        while not (is_stream and b"\r\n\r\n" in got):
            piece = connection.recv(65536)
            if not piece:
                break
            got += piece
    above, _, below = got.decode("utf-8", "replace").partition("\r\n\r\n")
    return int(above.split(" ")[1]), above, below


LAST_EVENT_IDS = [
    *("1-0", "1-1", "0-0", "-", "1-", "-1", "1--1", "1-0-0", "a", "1-0.x", "1-0..", "1 - 0", "١-٠", "1-00", "01-0"),
    *("1-99999999999999999999", "99999999999999999999-0", "9" * 4000, "1-0." + "A" * 1100, "", "null", '{"a": 1}'),
    f"1-0.W10=.{'0' * 64}",
]


def is_clear(status: int) -> bool:
    return status < 500


@pytest.mark.parametrize("value", LAST_EVENT_IDS)
def test_an_event_id_of_any_form_is_resumed_or_refused(url: str, session: str, value: str) -> None:
    text = value.encode().decode("latin-1")
    status, *_ = send(url, "GET", is_stream=True, mcp_session_id=session, last_event_id=text)
    assert status in (200, 400), value
    for name in ("", "no-session"):
        status, *_ = send(url, "GET", is_stream=True, mcp_session_id=name, last_event_id=text)
        assert status in (400, 404), value
    for method in ("POST", "DELETE", "PUT"):
        status, *_ = send(url, method, is_stream=True, last_event_id=text, body=json.dumps(PING).encode())
        assert 400 <= status < 500, (method, value)


def test_event_ids_at_random_are_resumed_or_refused(url: str, session: str) -> None:
    chance = random.Random(46)
    for _ in range(150):
        value = "".join(chance.choices("01-.9aA= \t_" + string.punctuation, k=chance.randrange(12)))
        status, *_ = send(url, "GET", is_stream=True, mcp_session_id=session, last_event_id=value)
        assert status in (200, 400), value


def test_a_batch_is_refused_in_a_line(url: str, session: str) -> None:
    status, _, text = send(url, "POST", mcp_session_id=session, body=json.dumps([PING, PING]).encode())
    assert (status, "batches are not supported" in text) == (400, True), text
    status, _, text = send(url, "POST", mcp_session_id=session, body=json.dumps(PING).encode())
    assert (status, '"id":7' in text) == (200, True), text


def test_the_name_of_the_standing_stream_is_no_id_of_a_request(url: str) -> None:
    """The server's library keeps both in one table."""
    session = session_of(url)
    assert send(url, "GET", is_stream=True, mcp_session_id=session)[0] == 200
    body = json.dumps({**PING, "id": "_GET_stream"}).encode()
    assert send(url, "POST", mcp_session_id=session, body=body)[0] == 400


CALL = {"jsonrpc": "2.0", "id": 9, "method": "tools/call"}
BODIES: list[object] = [
    *([], [[]], [[PING]], [PING, [PING]], [1], [None], ["x"], [{}], {}, 1, None, "x", True),
    [{"jsonrpc": "2.0", "method": "notifications/initialized"}],
    [{"jsonrpc": "2.0", "method": "notifications/initialized"}] * 3,
    [{"jsonrpc": "2.0", "id": 1, "result": {}}],
    [{"jsonrpc": "2.0", "id": 1, "result": {}}] * 2,
    [PING] * 101,
    [PING, {"jsonrpc": "2.0", "method": "x"}, {"nonsense": 1}],
    *({**PING, "id": one} for one in (None, 1.5, 1e400, 10**400, True, False, [], {}, "", "x" * 100_000, -1, 0)),
    *([{**PING, "id": one}] for one in (None, 1.5, 10**400, True, [], "", -1)),
    *({**PING, "method": one} for one in (None, 1, "", "x" * 100_000, [], "tools/call", "initialize", "rpc.x", "\x00")),
    *({**CALL, "params": one} for one in (None, [], [1], "x", 1, {}, {"name": 1}, {"name": "x"}, {"name": "one"})),
    *({**CALL, "params": {"name": "list_jobs", "arguments": one}} for one in ([], "x", 1, {"limit": 10**400})),
    {**CALL, "params": {"name": "list_jobs", "arguments": {"limit": 1}, "_meta": 1}},
    {**CALL, "params": {"name": "list_jobs", "_meta": {"progressToken": [1]}}},
    *({**PING, "jsonrpc": one} for one in (None, 1, "1.0", "3.0", [])),
    {"id": 7, "method": "ping"},
    {"jsonrpc": "2.0", "id": 7},
    {"jsonrpc": "2.0"},
    {"jsonrpc": "2.0", "id": 7, "result": {}, "error": {}},
    {"jsonrpc": "2.0", "id": 7, "error": {"code": "x", "message": 1}},
    {**PING, "method": "notifications/cancelled", "params": {"requestId": 7}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
    {"jsonrpc": "2.0", "method": "notifications/roots/list_changed", "params": 1},
    {**PING, "method": "logging/setLevel", "params": {"level": "loud"}},
    {**PING, "method": "resources/read", "params": {"uri": "perstack://jobs/../../x"}},
    {**PING, "method": "completion/complete", "params": {"ref": 1}},
    {**PING, "method": "subscriptions/listen", "params": {}},
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: json.dumps(body, default=str)[:60])
def test_a_message_of_any_form_has_one_answer(url: str, body: object) -> None:
    session = session_of(url)
    content = json.dumps(body).replace("Infinity", "1e400").encode()
    for headers in ({"mcp_session_id": session}, {}, {"mcp_protocol_version": "2026-07-28"}):
        status, *_ = send(url, "POST", body=content, **headers)
        assert is_clear(status), headers
    status, _, text = send(url, "POST", mcp_session_id=session, body=json.dumps({**PING, "id": "after"}).encode())
    assert (status, "after" in text) == (200, True), text


ODD = (
    "",
    "x",
    "\x7f",
    "é",
    "0",
    "-1",
    "*/*;q=x",
    "a" * 3000,
    "null",
    "text/html",
    "2025-03-26, 2025-06-18",
    "[::1",
    "%00",
)
NAMES = [
    *("Mcp-Session-Id", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Last-Event-ID", "Accept", "Content-Type"),
    *(
        "Content-Length",
        "Content-Encoding",
        "Transfer-Encoding",
        "Origin",
        "Host",
        "Authorization",
        "Expect",
        "Upgrade",
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_header_of_any_form_has_one_answer(url: str, session: str, name: str) -> None:
    for value in ODD:
        for method in ("POST", "GET", "DELETE", "OPTIONS"):
            if method == "DELETE" and name not in ("Mcp-Session-Id", "Host", "Authorization"):
                continue  # it would end the session
            headers = {"mcp_session_id": session, name: value} if name != "Mcp-Session-Id" else {name: value}
            body = json.dumps(PING).encode() if method == "POST" else b""
            if name == "Content-Length" and value == "0" and method == "POST":
                body = b""
            status, *_ = send(url, method, is_stream=True, body=body, **headers)
            assert is_clear(status), (name, value, method)
