"""Interrupted streams over HTTP: calls continue, and a client resumes where it stopped."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import pytest
from editor import Pipe
from http_server import AUTH_HEADERS, TOKEN, serving
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


def test_who_reads_on_replaces_a_reader_whose_connection_is_not_known_to_be_cut(waiting: Terminal) -> None:
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
        assert not [message for _, message in reading if message and "id" in message]
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
        assert "is not one of this session" in answer.json()["error"]["message"]


def test_no_session_reads_the_events_of_another(waiting: Terminal) -> None:
    with serving(waiting) as (url, _), Session(url) as mine, Session(url) as other:
        (waiting.workspace / "go").touch()
        with mine.stream("POST", id=2, method="tools/call", params=CALL) as response:
            seen = [event_id for event_id, _ in events(response.iter_lines())]
        assert other.http.get(url, headers={"Last-Event-ID": seen[0]}).status_code == 400


def rest_of(session: Session, event_id: str) -> list[dict[str, Any]]:
    """Return the messages of the stream that continues after an event, or that answers its call from the log."""
    with session.stream("GET", event_id) as response:
        assert response.status_code == 200, response.read()
        return [message for _, message in events(response.iter_lines()) if message is not None]


def named_in_mid_call(session: Session, **call: object) -> str:
    """Begin a call, and close the connection once an event's id names its Run; return the id."""
    with session.stream("POST", method="tools/call", **call) as response:
        return next(event_id for event_id, _ in events(response.iter_lines()) if "." in event_id)


SILENT = {"name": "solo", "arguments": {"query": "go"}}


@pytest.mark.parametrize("is_killed", [True, False])
def test_after_a_restart_a_call_is_answered_with_how_its_job_stands(waiting: Terminal, *, is_killed: bool) -> None:
    with serving(waiting) as (url, process):
        session = Session(url)
        told = cut_in_mid_call(session)[-1]
        named = named_in_mid_call(session, id="a call", params=SILENT)
        if is_killed:
            process.kill()
            process.communicate()
            process.returncode = 0
    with session, serving(waiting) as (session.url, _):
        for event_id, request_id in ((told, 2), (named, "a call")):
            (answer,) = rest_of(session, event_id)
            assert answer["id"] == request_id
            job = answer["result"]["structuredContent"]
            assert "resume_job" in answer["result"]["content"][0]["text"]
            assert answer["result"].keys() == {"content", "structuredContent", "isError"}
        (waiting.workspace / "go").touch()
        new = Session(session.url)
        resumed = new.post(
            {"id": 3, "method": "tools/call", "params": {"name": "resume_job", "arguments": {"job": job["id"]}}}
        )
        assert "on" in resumed.text
        (answer,) = rest_of(session, named)
        assert answer["result"]["content"][0]["text"] == "on", "the result, as often as it is asked for"
        new.http.close()


def test_a_job_that_is_driven_is_waited_for(waiting: Terminal) -> None:
    """Another server of the same token and storage answers once the first has finished the Job."""
    with serving(waiting) as (url, _), serving(waiting) as (other, _), Session(url) as session:
        named = named_in_mid_call(session, id=2, params=SILENT)
        session.url = other
        with session.stream("GET", named) as response:
            assert response.status_code == 200
            (waiting.workspace / "go").touch()
            (answer,) = [message for _, message in events(response.iter_lines()) if message]
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (2, "on")


def test_a_job_that_went_on_is_said_to_have(waiting: Terminal) -> None:
    (waiting.workspace / "go").touch()
    with serving(waiting) as (url, _), Session(url) as session:
        with session.stream("POST", id=2, method="tools/call", params=CALL) as response:
            seen = [(event_id, message) for event_id, message in events(response.iter_lines()) if message]
        job = seen[-1][1]["result"]["structuredContent"]["id"]
        again = {"name": "continue_job", "arguments": {"job": job, "query": "more"}}
        assert session.post({"id": 3, "method": "tools/call", "params": again}).status_code == 200
        with serving(waiting) as (session.url, _):
            (answer,) = rest_of(session, seen[0][0])
    assert answer["result"]["content"][0]["text"].startswith(f"Since that call: Job {job}")


def test_a_call_that_no_memory_keeps_is_answered_from_the_log(waiting: Terminal) -> None:
    (waiting.workspace / "go").touch()
    huge = "x" * 3_500_000
    with serving(waiting) as (url, _), Session(url) as session:
        with session.stream("POST", id=2, method="tools/call", params=CALL) as response:
            seen = [(event_id, message) for event_id, message in events(response.iter_lines()) if message]
        messages = rest_of(session, seen[0][0])
        assert messages == [message for _, message in seen[1:]]
        for number in range(20):  # the tool is unknown, which the error repeats
            session.post({"id": 10 + number, "method": "tools/call", "params": {"name": huge}})
        assert rest_of(session, seen[0][0]) == [{"jsonrpc": "2.0", "id": 2, "result": messages[-1]["result"]}]


def test_an_id_that_names_a_call_is_of_its_session_and_cannot_be_made_up(waiting: Terminal) -> None:
    (waiting.workspace / "go").touch()
    with serving(waiting) as (url, _):
        session = Session(url)
        named = named_in_mid_call(session, id=2, params=CALL)
    place, name, signature = named.split(".")
    other = base64.urlsafe_b64encode(json.dumps(["other-1", 2]).encode()).decode()
    wrong = signature[:-1] + ("1" if signature.endswith("0") else "0")
    forged = (f"{place}.{other}.{signature}", f"{place}.{name}.{wrong}", f"{place}.{name}.", f"x.{name}.{signature}")
    with session, serving(waiting) as (session.url, _), Session(session.url) as stranger:
        assert rest_of(session, named)
        for event_id in (*forged, f"{named}0", place, f"{place}.{name * 50}.{signature}"):
            assert session.http.get(session.url, headers={"Last-Event-ID": event_id}).status_code == 404, event_id
        assert stranger.http.get(session.url, headers={"Last-Event-ID": named}).status_code == 400
        with serving(waiting, token=f"another-{TOKEN}") as (url, _):
            known = {"Last-Event-ID": named, "Authorization": f"Bearer another-{TOKEN}"}
            assert session.http.get(url, headers=known).status_code == 404
        with serving(waiting, "--experts", "researcher") as (url, _):
            session.url = url
            (refused,) = rest_of(session, named)
            assert "of an Expert that this server offers" in refused["error"]["message"]


LIST = {"method": "tools/list", "params": {}}
CANCEL = {"method": "notifications/cancelled", "params": {"requestId": 99}}


def test_a_batch_is_answered_in_the_revision_that_has_them(terminal: Terminal) -> None:
    with serving(terminal) as (url, _), Session(url, "2025-03-26") as session:
        answer = session.post({"id": 7, **LIST}, CANCEL, {"id": "b", "method": "ping"}, {"id": 8, "method": "none"})
        found = {message.get("id"): message for _, message in events(answer.iter_lines()) if message}
        assert found.keys() == {7, "b", 8}
        assert found[7]["result"]["tools"]
        assert found[8]["error"]["code"] == -32601
        assert session.post(CANCEL, CANCEL).status_code == 202
        assert session.http.post(url, json=[]).status_code == 400
        assert session.post({"id": 1, "method": "initialize"}, CANCEL).status_code == 400
        wrong = session.post({"id": 9, "method": "ping"}, {"id": {}})
        assert [message.get("id") for _, message in events(wrong.iter_lines()) if message] in ([9, None], [None, 9])
        session.http.headers["mcp-session-id"] = "unknown"
        assert session.post({"id": 7, **LIST}).status_code == 404
        with Session(url) as newer:
            assert newer.post({"id": 7, **LIST}, CANCEL).status_code == 400


def test_a_batch_on_a_pipe_is_answered(terminal: Terminal) -> None:
    pipe = Pipe(terminal)
    with pipe.process as process:
        assert pipe.greet("2025-03-26")["result"]["protocolVersion"] == "2025-03-26"
        batch = [{"jsonrpc": "2.0", **message} for message in ({"id": 7, **LIST}, CANCEL, {"id": 8, "method": "ping"})]
        assert process.stdin is not None
        process.stdin.write(json.dumps(batch).encode() + b"\n")
        process.stdin.flush()
        assert {pipe.read()["id"], pipe.read()["id"]} == {7, 8}
        process.stdin.close()
        assert process.wait(SECONDS) == 0
