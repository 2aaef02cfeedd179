"""Interrupted streams over HTTP: calls continue, and a client resumes where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import pytest
from http_server import AUTH_HEADERS, serving
from terminal import SECONDS, Terminal, reply

ACCEPT = {"Accept": "application/json, text/event-stream"}
WAITING = ("exec", {"command": "sh", "args": ["-c", "while [ ! -e go ]; do sleep 0.05; done"], "timeout": 60_000})
CALL = {"name": "solo", "arguments": {"query": "go"}, "_meta": {"progressToken": "p"}}
LATE_EXPERT = '\n[experts.late]\ndescription = "came late"\ninstruction = "[[late]] You are new."\n'


class Session:
    """A client that sends bare requests in its own session."""

    def __init__(self, url: str, version: str = "2025-11-25") -> None:
        self.http = httpx.Client(timeout=SECONDS, headers={**AUTH_HEADERS, **ACCEPT})
        self.url = url
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        met = self.post({"id": 1, "method": "initialize", "params": hello})
        self.http.headers["mcp-session-id"] = met.headers["mcp-session-id"]
        if version > "2025-03-26":
            self.http.headers["mcp-protocol-version"] = version
        (self.greeting,) = (message["result"] for _, message in events(met.iter_lines()) if message)
        assert self.greeting["protocolVersion"] == version
        assert self.post({"method": "notifications/initialized"}).status_code == 202

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()

    def post(self, *messages: dict[str, object]) -> httpx.Response:
        envelopes = [{"jsonrpc": "2.0", **message} for message in messages]
        return self.http.post(self.url, json=envelopes[0] if len(envelopes) == 1 else envelopes)

    def stream(self, verb: str, last: str | None = None, **message: object) -> Any:
        headers = {} if last is None else {"Last-Event-ID": last}
        body = {"json": {"jsonrpc": "2.0", **message}} if message else {}
        return self.http.stream(verb, self.url, headers=headers, **body)  # type: ignore[arg-type]


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield each event's id and message as it arrives; None for an event without data."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            assert "retry" not in fields or int(fields["retry"]) > 0
            yield fields.get("id", ""), json.loads(fields["data"]) if fields["data"].strip() else None
            fields = {}


def cut_in_mid_call(session: Session) -> list[str]:
    """Begin a call, and close the connection in its second step; return the ids of the events that arrived."""
    seen: list[str] = []
    with session.stream("POST", id=2, method="tools/call", params=CALL) as response:
        for event_id, message in events(response.iter_lines()):
            seen.append(event_id)
            if message is not None and message["params"]["message"].startswith("step 2: exec"):
                return seen
    raise AssertionError(seen)


@pytest.fixture
def waiting(terminal: Terminal) -> Terminal:
    return terminal.script(
        **{"[[solo]]": [reply("", ("todo", {"newTodos": ["kept"]})), reply("", WAITING), reply("on")]}
    )


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
def test_a_stream_that_is_cut_in_mid_call_is_read_on_to_the_result(waiting: Terminal, version: str) -> None:
    with serving(waiting) as (url, _), Session(url, version) as session:
        seen = cut_in_mid_call(session)
        assert all(seen), "each event has an id"
        assert len(set(seen)) == len(seen)
        (waiting.workspace / "go").touch()
        with session.stream("GET", seen[-1]) as response:
            rest = list(events(response.iter_lines()))  # it ends with the result
        with session.stream("GET", seen[0]) as response:
            again = list(events(response.iter_lines()))
    _, last = rest[-1]
    assert last is not None
    assert (last["id"], last["result"]["content"][0]["text"]) == (2, "on")
    primed = [message is None for _, message in rest]
    assert (primed[0], any(primed[1:])) == (version == "2025-11-25", False)
    after = [one for one in again if one[1]]
    assert [event_id for event_id, _ in after] == [*seen[1:], *(event_id for event_id, message in rest if message)]


def test_who_reads_on_is_answered_while_the_connection_before_is_not_known_to_be_cut(waiting: Terminal) -> None:
    with (
        serving(waiting) as (url, _),
        Session(url) as session,
        session.stream("POST", id=2, method="tools/call", params=CALL) as first,
    ):
        reading = events(first.iter_lines())
        begun, _ = next(reading)
        with session.stream("GET", begun) as second:
            (waiting.workspace / "go").touch()
            answers = [message for _, message in events(second.iter_lines()) if message and "id" in message]
    assert [answer["id"] for answer in answers] == [2]


def test_a_second_listener_replaces_the_first_and_is_told_of_changes(terminal: Terminal) -> None:
    with serving(terminal) as (url, _), Session(url) as session:
        assert session.greeting["capabilities"]["tools"]["listChanged"] is True
        assert session.greeting["capabilities"]["prompts"]["listChanged"] is True
        assert session.greeting["capabilities"]["resources"]["listChanged"] is True
        with session.stream("GET") as first, session.stream("GET") as second:
            assert (first.status_code, second.status_code) == (200, 200)
            assert [message for _, message in events(first.iter_lines())] == [None]  # it ends
            file = terminal.workspace / "perstack.toml"
            file.write_text(file.read_text() + LATE_EXPERT)
            heard = {
                message["method"]: event_id for event_id, message in islice(events(second.iter_lines()), 4) if message
            }
        assert "notifications/tools/list_changed" in heard
        with session.stream("GET", "1-0") as third:
            again = [message["method"] for _, message in islice(events(third.iter_lines()), 4) if message]
        assert set(again) == heard.keys()


@pytest.mark.parametrize("event_id", ["9-1", "x", "1-99999", "-", "²-1", "1-0-0", "1"])
def test_an_event_that_is_not_known_is_refused_in_a_line(terminal: Terminal, event_id: str) -> None:
    with serving(terminal) as (url, _), Session(url) as session:
        answer = session.http.get(url, headers=[(b"Last-Event-ID", event_id.encode())])  # type: ignore[arg-type]
        assert answer.status_code == 400
        assert "is not an event of this session" in answer.json()["error"]["message"]


def test_no_session_reads_the_events_of_another(waiting: Terminal) -> None:
    with serving(waiting) as (url, _), Session(url) as mine, Session(url) as other:
        (waiting.workspace / "go").touch()
        with mine.stream("POST", id=2, method="tools/call", params=CALL) as response:
            seen = [event_id for event_id, _ in events(response.iter_lines())]
        assert other.http.get(url, headers={"Last-Event-ID": seen[0]}).status_code == 400


def test_events_are_kept_up_to_a_limit(waiting: Terminal) -> None:
    (waiting.workspace / "go").touch()
    huge = "x" * 3_500_000
    with serving(waiting) as (url, _), Session(url) as session:
        with session.stream("POST", id=2, method="tools/call", params=CALL) as response:
            seen = [(event_id, message) for event_id, message in events(response.iter_lines()) if message]
        with session.stream("GET", seen[0][0]) as response:
            messages = [message for _, message in events(response.iter_lines()) if message]
        assert messages == [message for _, message in seen[1:]]
        for number in range(20):  # the tool is unknown, which the error repeats
            session.post({"id": 10 + number, "method": "tools/call", "params": {"name": huge}})
        assert session.http.get(url, headers={"Last-Event-ID": seen[0][0]}).status_code == 400
