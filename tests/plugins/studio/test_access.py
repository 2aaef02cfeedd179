"""Who is let in by `perstack studio`, and what its pages may load."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from starlette.responses import PlainTextResponse
from studio_server import StudioServer, serving_studio
from terminal import TEAM, Terminal

from perstack.doors.shared.http_connections import LimitedConnection
from perstack.system.clock import SYSTEM
from perstack_studio.access import StudioAccess, StudioAccessMiddleware


@pytest.fixture
def server(terminal: Terminal) -> Iterator[StudioServer]:
    with serving_studio(terminal.project(TEAM)) as running:
        yield running


def test_a_link_lets_one_browser_in_and_no_second(server: StudioServer) -> None:
    assert "Nothing waits for a person" in server.visitor().get("/")

    second = httpx.get(server.link)

    assert second.status_code == 403
    assert "set-cookie" not in second.headers
    assert "--link" in second.text


def test_without_the_cookie_no_page_is_shown(server: StudioServer) -> None:
    for path in ("/", "/jobs", "/jobs/x", "/nothing"):
        assert httpx.get(server.url + path).status_code == 401


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key[:-1] + ("1" if key.endswith("0") else "0"),
        lambda key: "9" + key,
        lambda _: "",
        lambda _: "ü.ü.ü",
    ],
)
def test_a_forged_link_lets_nobody_in(server: StudioServer, change) -> None:
    url, _, key = server.link.partition("?key=")

    response = httpx.get(url, params={"key": change(key)})

    assert response.status_code == 403


def test_another_link_is_printed_on_request(terminal: Terminal, server: StudioServer) -> None:
    port = server.url.rpartition(":")[2]

    printed = terminal.run("studio", "--link", "--http", f"127.0.0.1:{port}").lines[0]

    assert httpx.get(printed).status_code == 303


def test_a_provider_that_is_not_installed_is_reported_at_the_start(terminal: Terminal) -> None:
    terminal.project(TEAM)

    result = terminal.run("studio", "--provider", "nope", "--http", "127.0.0.1:0")

    assert result.code == 2
    assert "no provider 'nope'" in result.err
    assert "http://" not in result.err


def test_a_browser_stays_known_when_the_server_is_restarted(terminal: Terminal) -> None:
    terminal.project(TEAM)
    with serving_studio(terminal) as first:
        cookies = first.visitor().client.cookies
    with serving_studio(terminal, address=first.url.removeprefix("http://")):
        assert "Nothing waits" in httpx.get(first.url, cookies=dict(cookies)).text


def test_a_name_that_is_not_the_servers_is_refused(server: StudioServer) -> None:
    client = server.visitor().client

    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421


def test_a_page_of_another_site_can_send_no_form(server: StudioServer) -> None:
    client = server.visitor().client
    data = {"expert": "lead", "query": "hello"}

    assert client.post("/jobs", data=data, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post("/jobs", data=data).status_code == 403
    assert client.post("/jobs", data=data, headers={"Origin": server.url}).status_code == 400  # without the token


def test_every_response_forbids_what_no_page_needs(server: StudioServer) -> None:
    client = server.visitor().client

    for path in ("/", "/nothing", "/static/studio.css"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_an_address_that_others_reach_needs_a_proxy(terminal: Terminal) -> None:
    result = terminal.project(TEAM).run("studio", "--http", "0.0.0.0:0")

    assert result.code == 2
    assert "--behind-proxy" in result.err


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (("--http", "127.0.0.1:{port}"), "another program listens there: name another port, or, if it is this studio,"),
        (("--http", "nowhere"), "--http nowhere: write HOST:PORT, such as 127.0.0.1:8765\n"),
        (("--http", "127.0.0.1:1", "--link"), "no studio runs at 127.0.0.1:1: start it with `perstack studio`"),
        (("--http", "192.0.2.1:0", "--behind-proxy", "a.example.org"), "name one of its own, such as 127.0.0.1"),
        (("--behind-proxy", "https://a.example.org/"), "write its host name alone, such as studio.example.org"),
    ],
)
def test_a_wrong_address_is_one_line_with_a_remedy(
    server: StudioServer, terminal: Terminal, args: tuple[str, ...], remedy: str
) -> None:
    port = server.url.rpartition(":")[2]

    result = terminal.run("studio", *(text.format(port=port) for text in args))

    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert remedy in result.err


def test_a_studio_is_served_although_its_standard_streams_are_closed(terminal: Terminal) -> None:
    terminal.project(TEAM)
    line = [sys.executable, "-m", "perstack", "studio", "--provider", "scripted", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&-', "sh", *line], cwd=terminal.workspace, env=terminal.env, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    with process:
        assert b"open in a browser" in process.stderr.readline()
        link = process.stderr.readline().decode().removesuffix("\n")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/enter\?key=\S+", link), "it is alone on its line"
        assert len(link) <= 80
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_proxy_may_have_a_port_and_capitals(terminal: Terminal) -> None:
    with serving_studio(terminal.project(TEAM), "--behind-proxy", "Studio.example.org:8443") as server:
        assert server.link.startswith("https://Studio.example.org:8443/enter?key=")


class _Connection(LimitedConnection):
    """A connection that records what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def set_authenticated(self) -> None:
        self.told.append("known")

    def stop_deadline(self) -> None:
        self.told.append("stop")

    def restart_deadline(self) -> None:
        self.told.append("restart")


@pytest.mark.parametrize(("is_known", "told"), [(True, ["known", "stop", "restart"]), (False, [])])
def test_only_a_known_browser_may_take_longer_than_a_request(is_known: bool, told: list[str]) -> None:
    access, connection = StudioAccess("secret", SYSTEM), _Connection()
    cookie = f"{access.cookie_name}={access.enter(access.new_key())}" if is_known else ""
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/jobs",
        "headers": [(b"host", b"localhost"), (b"cookie", cookie.encode())],
        "state": {"perstack.connection": connection},
    }

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None: ...

    asyncio.run(StudioAccessMiddleware(PlainTextResponse("a page"), access)(scope, receive, send))

    assert connection.told == told
