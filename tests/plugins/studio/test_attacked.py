"""What a hostile reviewer sent to the studio: no request, form or foreign byte makes a 500, a traceback or a change."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from studio_server import StudioServer, Visitor, serving_studio
from terminal import Terminal, reply, trusting

from perstack.doors.shared.edited_arguments import read_arguments
from perstack.doors.shared.http_connections import MAX_UNAUTHENTICATED
from perstack.errors import UsageError
from perstack_studio.words import markdown

PROJECT = """
[permissions]
ask = ["writeTextFile"]
[experts.says]
instruction = "x"
[experts.writes]
instruction = "x"
"""
LONG_NUMBER = "9" * 5_000  # Python reads no integer of more than 4,300 digits


def _ran(terminal: Terminal) -> Terminal:
    call = ("writeTextFile", {"path": "x.txt", "text": "y"})
    terminal.project(PROJECT, says=[reply("hello pond")], writes=[reply("", call), reply("Done.")])
    for key in ("says", "writes"):
        result = terminal.run("run", key, "go", "--provider", "scripted", "--no-input", "--job-id", f"of-{key}")
        assert result.code in (0, 3), result.err
    return terminal


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudioServer]:
    """Serve a project. The server must end without a word on stderr: a traceback in any test fails here."""
    terminal = Terminal(tmp_path_factory.mktemp("attacked"))
    with trusting(terminal.workspace), serving_studio(_ran(terminal)) as running:
        yield running


@pytest.fixture(scope="module")
def visitor(server: StudioServer) -> Visitor:
    return server.visitor()


def _token(visitor: Visitor) -> str:
    found = re.search(r'name="token" value="([^"]*)"', visitor.get("/experts/says/start"))
    assert found is not None
    return found[1]


def _sent(server: StudioServer, head: str) -> bytes:
    """Return the first line of the answer to a request that no HTTP client would send."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.format(host=f"{host}:{port}").encode("latin-1") + b"Connection: close\r\n\r\n")
        return connection.makefile("rb").readline()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: {host}\r\nOrigin: http://[\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: {host}\r\nOrigin: null\r\n", 403),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n", 400),
        ("GET / HTTP/1.0\r\n", 421),
        ("GET http://{host}/jobs HTTP/1.1\r\nHost: {host}\r\n", 401),
        ("GET //enter HTTP/1.1\r\nHost: {host}\r\n", 401),
        ("GET /static/../jobs HTTP/1.1\r\nHost: {host}\r\n", 404),
        ("GET /static/%00 HTTP/1.1\r\nHost: {host}\r\n", 404),
        ("GET /static/..%2f..%2fapp.py HTTP/1.1\r\nHost: {host}\r\n", 404),
        ("OPTIONS * HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n", 401),
    ],
)
def test_an_odd_request_without_a_cookie_gets_nothing(server: StudioServer, head: str, status: int) -> None:
    assert f" {status} ".encode() in _sent(server, head)


@pytest.mark.parametrize("path", ["/jobs/of-says/events", "/jobs/of-says/runs/of-says-1/events"])
def test_the_head_of_a_stream_ends_at_once(server: StudioServer, visitor: Visitor, path: str) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.client.cookies.items())
    head = f"HEAD {path} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read()  # ends when the server closes the connection

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"text/event-stream" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "addresses",
    [1, pytest.param(4, marks=pytest.mark.skipif(sys.platform != "linux", reason="one loopback address"))],
)
def test_held_connections_do_not_keep_a_browser_out(server: StudioServer, visitor: Visitor, addresses: int) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection((host, int(port)), 10, (f"127.0.0.{number + 1}", 0)))
            for number in range(addresses)
            for _ in range(MAX_UNAUTHENTICATED)
        ]
        for connection in held[::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        for _ in range(3):
            with httpx.Client(base_url=server.url, cookies=visitor.client.cookies, timeout=10) as browser:
                assert browser.get("/jobs").status_code == 200
        with suppress(ConnectionError):
            assert held[0].recv(1) == b"", "the oldest made room"
        assert b" 401 " in _sent(server, "GET / HTTP/1.1\r\nHost: {host}\r\n"), "others are not refused either"


@pytest.mark.parametrize(
    "path",
    [
        f"/jobs/of-says/runs/of-says-1/steps/{LONG_NUMBER}",
        f"/jobs/of-says/runs/of-says-1/steps/{10**30}",
        f"/jobs/of-says/runs/of-says-1/events/{LONG_NUMBER}",
        f"/jobs/of-says/runs/of-says-1/events/{10**19}/line",
        "/compare?a=of-says/%C2%B2",
        f"/compare?a=of-says/{LONG_NUMBER}&b=of-says",
        "/search?q=a%00b",
        "/search?q=pond%00",
    ],
)
def test_an_odd_address_is_a_page(visitor: Visitor, path: str) -> None:
    response = visitor.client.get(path)

    assert response.status_code in (200, 400, 404), response.text


POSTS = (
    "/jobs",
    *(f"/jobs/of-says/{action}" for action in ("cancel", "tell", "resume", "continue", "nothing", "files/rewind")),
    *(f"/jobs/of-says/runs/of-says-1/steps/1/{action}" for action in ("branch", "rerun")),
    "/questions/of-writes-1-1",
)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("token", ["", "x", "ü", "\x00", "a" * 100_000])
def test_no_form_is_accepted_without_the_token(server: StudioServer, visitor: Visitor, path: str, token: str) -> None:
    response = visitor.client.post(path, data={"token": token}, headers={"Origin": server.url})

    assert response.status_code == 400
    assert "another session" in response.text


@pytest.mark.parametrize("charset", ["undefined", "unicode_escape", "idna", "utf-7"])
def test_a_form_of_another_kind_is_no_form(server: StudioServer, visitor: Visitor, charset: str) -> None:
    """With `unicode_escape` a query had lone surrogates, which no log can have."""
    fields = {"token": _token(visitor), "expert": "says", "query": r"\ud800"}
    body = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    content_type = f"multipart/form-data; boundary=x; charset={charset}"

    response = visitor.client.post(
        "/jobs", content=f"{body}--x--\r\n", headers={"Origin": server.url, "Content-Type": content_type}
    )

    assert response.status_code == 400


def test_a_form_is_bounded(server: StudioServer, visitor: Visitor) -> None:
    headers = {"Origin": server.url, "Content-Type": "application/x-www-form-urlencoded"}

    assert "at most 4 MiB" in visitor.client.post("/jobs", content=b"&" * (5 << 20), headers=headers).text
    assert "at most 100 fields" in visitor.client.post("/jobs", content=b"a=b&" * 200, headers=headers).text


def test_a_number_that_is_too_long_is_a_mistake_in_arguments() -> None:
    with pytest.raises(UsageError, match="too long"):
        read_arguments(f'{{"path": {LONG_NUMBER}}}')


def test_a_stream_of_a_damaged_log_ends_without_a_traceback(terminal: Terminal) -> None:
    _ran(terminal)
    log = next((terminal.jobs() / "of-says").glob("runs/*/events.jsonl"))
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b"\xff\x00 garbage\n" + b"".join(lines[1:]))

    with serving_studio(terminal) as server:
        visitor = server.visitor()
        response = visitor.client.get("/jobs/of-says/runs/of-says-1/events")
        assert "Restore the file from a copy" in visitor.get("/jobs/of-says/conversation", 503)
        assert "completed" in visitor.get("/jobs/of-says")

    assert response.text.startswith("retry: 1000\n\n")
    assert response.text.endswith("retry: 15000\n\n")


@pytest.mark.parametrize("state", ["running", "completed"])
def test_damage_in_one_run_leaves_the_other_pages_of_the_job(terminal: Terminal, state: str) -> None:
    _ran(terminal)
    terminal.script(says=[reply("hello pond"), reply("hello again")])
    assert not terminal.run("run", "says", "more", "--provider", "scripted", "--continue-job", "of-says").code
    log = terminal.log_of("of-says-1")
    lines = log.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1].replace(b'"type"', b'"tipe"')
    log.write_bytes(b"".join(lines))
    summary = log.parents[2] / "job.json"
    summary.write_bytes(summary.read_bytes().replace(b'"status":"completed"', f'"status":"{state}"'.encode()))

    with serving_studio(terminal) as server:
        visitor = server.visitor()
        damaged = visitor.get("/jobs/of-says/runs/of-says-1", 503)
        assert 'id="e1"' in damaged, "the query, before the damage"
        assert "Restore the file from a copy" in damaged
        assert "live-entries" not in damaged
        assert "hello again" in visitor.get("/jobs/of-says/runs/of-says-2")
        assert "hello again" in visitor.get("/jobs/of-says/conversation")
        job = visitor.get("/jobs/of-says")
        assert "/jobs/of-says/runs/of-says-2" in job
        assert ("Restore the file from a copy" in job) == (state == "running"), "at rest no log is read"
        for path in ("/", "/jobs", "/jobs/of-says/log", "/jobs/of-says/check", "/jobs/of-says/files", "/search?q=pond"):
            visitor.get(path)
        stream = visitor.client.get("/jobs/of-says/runs/of-says-1/events")

    assert stream.text.endswith("retry: 15000\n\n")


def test_long_texts_make_more_pages_and_no_longer_one(terminal: Terminal) -> None:
    steps = 24
    turns = [reply("<&>" * 30_000, ("think", {"thought": f"{number}"})) for number in range(steps)]
    terminal.project("maxRepeats = 0\n[experts.long]\ninstruction = 'x'\n", long=[*turns, reply("Done.")])
    assert not terminal.run("run", "long", "go", "--provider", "scripted", "--no-input", "--job-id", "long").code

    with serving_studio(terminal) as server:
        visitor, path, seen, pages = server.visitor(), "/jobs/long/runs/long-1", [], 0
        while path:
            page = visitor.get(path)
            assert len(page) < 5_000_000
            pages += 1
            seen += re.findall(r'<article class="entry text[^"]*" id="([^"]*)"', page)
            older = re.search(r'<a href="([^"]*)">Older</a>', page)
            path = older[1] if older else ""
        place = visitor.client.get("/jobs/long/runs/long-1?step=3").headers["Location"]
        assert f'id="{place.partition("#")[2]}"' in visitor.get(place.partition("#")[0])

    assert pages == 3
    assert len(seen) == len({*seen}) == steps + 1


@pytest.mark.parametrize("bomb", ["[", "![", "[]("])
def test_brackets_that_would_take_a_second_are_shown_as_written(bomb: str) -> None:
    text = bomb * 10_000

    assert markdown(text) == f"<pre class=text>{text}</pre>"
