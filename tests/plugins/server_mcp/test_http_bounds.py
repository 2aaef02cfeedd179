"""Limits of `perstack mcp --http` on connections and requests; its tokens, and its Unix socket."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from http_server import AUTH_HEADERS, TOKEN, serving
from terminal import SECONDS, Terminal

from perstack.doors.shared.http_connections import (
    MAX_CONNECTIONS,
    MAX_UNAUTHENTICATED,
    REQUEST_TIME_S,
    ConnectionLimits,
)
from perstack_server.http.access import MIN_TOKEN_CHARS, problem_of

HEAD = f"POST /v1/execution HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
HOOK = b"POST /v1/hooks/x HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    terminal = Terminal(tmp_path_factory.mktemp("bounds"))
    terminal.project('[experts.one]\ninstruction = "x"\n')
    with serving(terminal, token=TOKEN) as (url, _):
        yield url.removesuffix("/mcp")


def connected(url: str) -> socket.socket:
    place = urlsplit(url)
    return socket.create_connection((place.hostname or "", place.port or 0), timeout=SECONDS)


def closed_after(connection: socket.socket) -> float:
    """Return the seconds until the other end closes the connection, ignoring what it sends."""
    began = time.monotonic()
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - began


def test_a_request_that_is_half_sent_is_closed_in_ten_seconds(url: str) -> None:
    halves = {
        "nothing": b"",
        "half a line": b"GET /docs",
        "half its headers": HEAD,
        "no body": HEAD + b"Content-Length: 9\r\n\r\n",
        "half a body": HEAD + b"Content-Length: 9\r\n\r\n{",
        "half a body of a stranger": HOOK + b"Content-Length: 9\r\n\r\n{",
        "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        "a second one": HEAD + b"Content-Length: 2\r\n\r\n{}" + HEAD,
    }
    with ExitStack() as stack:
        began = time.monotonic()
        open_ones = {name: stack.enter_context(closing(connected(url))) for name in halves}
        for name, connection in open_ones.items():
            connection.sendall(halves[name])
        for name, connection in open_ones.items():
            closed_after(connection)
            assert time.monotonic() - began < REQUEST_TIME_S + 5, name


def test_a_request_that_trickles_in_has_no_more_time(url: str) -> None:
    with closing(connected(url)) as connection:
        connection.settimeout(0.5)
        connection.sendall(b"GET /docs HTTP/1.1\r\nHost: localhost\r\nX: ")
        began, is_open = time.monotonic(), True
        while is_open:
            assert time.monotonic() - began < REQUEST_TIME_S + 5
            try:
                connection.sendall(b"x")
                is_open = connection.recv(1) != b""
            except TimeoutError:
                continue
            except ConnectionError:
                is_open = False


BAD_BODIES = {
    "no size": b"zz\r\n",
    "a size below zero": b"-1\r\n",
    "a size of 5,000 digits": b"9" * 5000 + b"\r\n{}",
    "a chunk with no end": b"2\r\n{}zz",
    "an end with more behind it": b"2\r\n{}\r\n0\r\nzz zz\r\n\r\n",
}
HEADS = {
    "known": HEAD,
    "a stranger": HOOK,
    "a stranger to MCP": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n",
    "a stranger who waits": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n",
    "nowhere": b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n",
    "a method that is none": b"BREW / HTTP/1.1\r\nHost: localhost\r\n",
}


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_malformed_body_is_refused_and_leaves_no_traceback(tmp_path: Path, in_pieces: bool) -> None:
    terminal = Terminal(tmp_path)
    terminal.project('[experts.one]\ninstruction = "x"\n')
    with serving(terminal, token=TOKEN) as (url, _):  # it fails for any line that is not expected of it
        for head in HEADS.values():
            for body in BAD_BODIES.values():
                with closing(connected(url)) as connection, suppress(ConnectionError):
                    request = head + b"Transfer-Encoding: chunked\r\n\r\n"
                    for piece in (request, body) if in_pieces else (request + body,):
                        connection.sendall(piece)
                    closed_after(connection)
        for line in (b"Content-Length: 9" * 2, b"Content-Length: -1", b"Content-Length: " + b"9" * 5000, b"Host: \xff"):
            with closing(connected(url)) as connection, suppress(ConnectionError):
                connection.sendall(HEAD + line + b"\r\n\r\n")
                closed_after(connection)
        assert httpx.get(f"{url.removesuffix('/mcp')}/docs").status_code == 200


def test_connections_of_one_address_are_bounded_until_their_client_is_known(url: str) -> None:
    with ExitStack() as stack, httpx.Client(headers=AUTH_HEADERS) as known:
        assert known.get(f"{url}/v1/execution").status_code == 200
        strangers = [stack.enter_context(closing(connected(url))) for _ in range(MAX_UNAUTHENTICATED + 8)]
        for refused in strangers[MAX_UNAUTHENTICATED:]:
            assert refused.recv(100).startswith(b"HTTP/1.1 503 ")
            assert closed_after(refused) < 5
        assert known.get(f"{url}/v1/execution").status_code == 200, "who is known already is served meanwhile"
        for stranger in strangers:
            stranger.close()
    until = time.monotonic() + SECONDS
    while httpx.get(f"{url}/docs").status_code != 200:
        assert time.monotonic() < until


def test_all_connections_together_are_bounded() -> None:
    limits = ConnectionLimits()
    addresses = [f"10.0.0.{number}" for number in range(9)]
    taken = [address for address in addresses for _ in range(MAX_UNAUTHENTICATED) if limits.admit(address)]
    assert len(taken) == MAX_CONNECTIONS
    for address in taken:
        limits.release(address)
    assert not limits.admit("10.0.0.99"), "known ones count as well"
    assert not limits.unauthenticated


@pytest.mark.parametrize(
    "body",
    [
        b'{"taskId": "\\ud800"}', b'"\xed\xa0\x80"', b"[" * 100_000, b'{"a":' * 5000, b'{"state": {"a": NaN}}',
        b'{"state": {"a": 1e999}}', b'{"state": {"a": -1e999}}', b'{"state": {"a": Infinity}}', b"1" * 400 + b".0",
        b"\xff", b"{", b'{"a": 1}}',
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/execution", "/v1/hooks/token", "/mcp"])
def test_what_is_no_json_that_can_be_kept_is_a_bad_request(url: str, path: str, body: bytes) -> None:
    accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    answer = httpx.post(f"{url}{path}", content=body, headers={**AUTH_HEADERS, **accept})
    assert answer.status_code == 400
    assert "not JSON" in answer.text


def test_a_number_that_only_looks_huge_is_taken() -> None:
    for body in (b'"1e999"', b"1e308", b"[0e999]", b"1e-999", b'{"a": "[[[["}', b"9" * 250):
        assert problem_of(body) is None, body


def test_a_body_that_is_too_large_is_refused_unread(url: str) -> None:
    for path, size in (("/v1/hooks/token", 5 << 20), ("/v1/execution", 17 << 20)):
        try:
            answer = httpx.post(f"{url}{path}", content=b" " * size, headers=AUTH_HEADERS)
        except httpx.TransportError:
            continue  # the server closes, whatever is still under way
        assert answer.status_code in (400, 413)


def test_no_stranger_puts_a_traceback_into_the_log(terminal: Terminal) -> None:
    terminal.project('[experts.one]\ninstruction = "x"\n')
    with serving(terminal, token=TOKEN) as (url, process):
        for request in (
            b"\x16\x03\x01\x02\x00\x01",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x00" * 200_000,
            HEAD + b"Content-Length: 9\r\n\r\n{",
            b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            b"GET /mcp HTTP/1.1\r\nHost: evil\r\n\r\n",
            HOOK + b"Content-Length: 9\r\n\r\n{",
        ):
            with closing(connected(url)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                connection.sendall(request)
        assert httpx.get(f"{url.removesuffix('/mcp')}/docs").status_code == 200
        assert process.poll() is None
    # `serving` has looked: nothing but where it serves is on stderr


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0"])
def test_a_token_that_can_be_guessed_is_refused(terminal: Terminal, address: str) -> None:
    terminal.project('[experts.one]\ninstruction = "x"\n')
    terminal.env["PERSTACK_MCP_TOKEN"] = "x" * (MIN_TOKEN_CHARS - 1)
    result = terminal.call("mcp", "--http", address, "--allow-host", "build.example")
    assert result.code == 2
    assert f"PERSTACK_MCP_TOKEN has {MIN_TOKEN_CHARS - 1} characters" in result.err


def test_a_workspaces_env_file_does_not_say_who_is_let_in_unless_a_person_names_it(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.as_stranger().project('[experts.one]\ninstruction = "x"\n')
    terminal.env["XDG_STATE_HOME"] = str(tmp_path / "state")
    planted, own = "planted" * 6, "own-secret" * 4
    (terminal.workspace / ".env").write_text(f"PERSTACK_MCP_TOKEN={planted}\n")
    command = ("mcp", "--print-config", "zed", "--http", "8765")
    result = terminal.call(*command)
    assert (result.code, planted in result.out) == (0, False)
    assert f"{terminal.workspace / '.env'} is not read: nobody has agreed to it" in result.err
    everywhere = terminal.call("mcp", "--http", "0.0.0.0:0", "--allow-host", "build.example")
    assert (everywhere.code, "set PERSTACK_MCP_TOKEN to a secret" in everywhere.err) == (2, True)
    named = terminal.call(*command, "--env-path", ".env")
    assert (named.code, f"Bearer {planted}" in named.out, named.err.count("not read")) == (0, True, 0)
    terminal.env["PERSTACK_MCP_TOKEN"] = own
    assert f"Bearer {own}" in terminal.call(*command).out
    assert terminal.call("trust", "--yes").code == 0
    mine = terminal.call(*command)
    assert (f"Bearer {own}" in mine.out, mine.err.count("not read")) == (True, 0)


def test_without_a_token_one_is_made_for_this_machine_and_is_in_the_settings_of_a_client(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.project('[experts.one]\ninstruction = "x"\n')
    state = tmp_path / "state"
    terminal.env["XDG_STATE_HOME"] = str(state)
    with serving(terminal, token="") as (url, _):
        assert httpx.post(url, json={}).status_code == 401, "loopback is open to every user of the machine"
        (kept,) = state.rglob("*.token")
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        token = kept.read_text()
        assert len(token) >= MIN_TOKEN_CHARS
        knowing = httpx.get(f"{url.removesuffix('/mcp')}/v1/execution", headers={"Authorization": f"Bearer {token}"})
        assert knowing.status_code == 200
    for client in ("claude-code", "codex", "cursor", "vscode", "zed", "gemini", "opencode"):
        settings = terminal.call("mcp", "--print-config", client, "--http", "8765")
        assert f"Bearer {token}" in settings.out
        assert "http://127.0.0.1:8765/mcp" in settings.out
        assert "secret" in settings.err
    kept.chmod(0o644)
    refused = terminal.call("mcp", "--http", "127.0.0.1:0")
    assert (refused.code, "read by others" in refused.err) == (2, True)


def test_settings_need_an_address_that_stays(terminal: Terminal) -> None:
    terminal.project('[experts.one]\ninstruction = "x"\n')
    terminal.env["PERSTACK_MCP_TOKEN"] = TOKEN
    for address in ("127.0.0.1:0", "unix:s"):
        refused = terminal.call("mcp", "--print-config", "zed", "--http", address)
        assert (refused.code, refused.out, "write HOST:PORT" in refused.err) == (2, "", True)


ASK = """
import os, socket, sys
os.setgid(65534), os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    s.sendall(b"GET /docs HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
    print(s.recv(100))
except OSError as error:
    print("refused", error.errno)
"""


@pytest.mark.linux
def test_a_unix_socket_needs_no_token_and_lets_only_its_own_user_in(terminal: Terminal) -> None:
    terminal.project('[experts.one]\ninstruction = "x"\n')
    place = Path("/tmp") / f"perstack-test-{os.getpid()}.sock"
    with serving(terminal, "--http", f"unix:{place}") as (address, _):
        assert address == f"unix:{place}"
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(place)), base_url="http://localhost") as client:
            assert client.get("/v1/execution").json()["tasks"] == []
        result = terminal.call("mcp", "--http", f"unix:{place}")
        assert (result.code, "another server listens there: name another path" in result.err) == (2, True)
        if os.geteuid() == 0:
            place.chmod(0o666)  # so that only the check of the uid is in the way
            ended = subprocess.run([sys.executable, "-c", ASK, str(place)], capture_output=True, text=True, check=True)
            assert ended.stdout.startswith(("b''", "refused"))
    assert not place.exists()


def test_what_is_left_of_a_server_is_replaced_and_anything_else_is_not(terminal: Terminal) -> None:
    terminal.project('[experts.one]\ninstruction = "x"\n')
    place = Path("/tmp") / f"perstack-left-{os.getpid()}.sock"
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(place))
        with serving(terminal, "--http", f"unix:{place}") as (address, _):
            assert address == f"unix:{place}"
        place.write_text("mine")
        refused = terminal.call("mcp", "--http", f"unix:{place}")
        assert (refused.code, place.read_text()) == (2, "mine")
    finally:
        place.unlink(missing_ok=True)
