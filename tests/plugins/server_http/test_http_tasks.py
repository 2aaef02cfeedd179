"""Tasks over HTTP, beside the MCP server: every operation, webhooks, and the description of it all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from http_server import DECIDING_HEADERS, serving
from terminal import Terminal, reply


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Yield a client of a server that requires a token."""
    terminal = Terminal(tmp_path_factory.mktemp("tasks"))
    terminal.project('[experts.one]\ninstruction = "x"\n')
    with serving(terminal) as (url, _):
        headers = DECIDING_HEADERS
        with httpx.Client(base_url=url.removesuffix("/mcp"), headers=headers) as client:
            yield client


def test_a_task_lives_through_every_operation(server: httpx.Client) -> None:
    created = server.post("/v1/execution", json={"taskId": "report", "state": {"read": 0}, "agentId": "writer"})
    assert (created.status_code, created.json()["status"], created.json()["version"]) == (201, "running", 2)
    again = server.post("/v1/execution", json={"taskId": "report"})
    assert again.status_code == 409
    assert "continue it" in again.json()["detail"]
    kept = server.put("/v1/execution/report/checkpoint", json={"state": {"read": 1}, "name": "one"})
    assert kept.json()["state"] == {"read": 1}
    late = server.put("/v1/execution/report/checkpoint", json={"state": {"read": 9}, "expectedVersion": 2})
    assert late.status_code == 409
    server.put("/v1/execution/report/checkpoint", json={"state": {"read": 2}})
    paused = server.post("/v1/execution/report/pause", json={"reason": "human_approval", "message": "Go on?"})
    assert (paused.json()["status"], paused.json()["pauseReason"]) == ("paused", "human_approval")
    assert server.post("/v1/execution/report/answer", json={"value": True}).json()["answered"] is True
    back = server.post("/v1/execution/report/resume", json={"checkpoint": "one"})
    assert (back.json()["state"], back.json()["status"]) == ({"read": 1}, "running")
    assert len(server.get("/v1/execution/report/checkpoints").json()["checkpoints"]) == 2
    failed = server.post("/v1/execution/report/fail", json={"error": "the disk is full"})
    assert failed.json()["status"] == "failed"
    assert server.post("/v1/execution/report/retry").json()["retryCount"] == 1
    done = server.post("/v1/execution/report/complete", json={"result": {"pages": 3}})
    assert (done.json()["status"], done.json()["result"]) == ("completed", {"pages": 3})
    refused = server.post("/v1/execution/report/pause", json={"reason": "checkpoint"})
    assert refused.status_code == 409
    assert refused.json()["allowed"] == ["archive", "delete"]
    assert refused.headers["content-type"] == "application/problem+json"
    assert server.post("/v1/execution/report/archive").status_code == 200
    assert server.request("DELETE", "/v1/execution/report").json() == {"deleted": "report"}
    assert server.get("/v1/execution/report").status_code == 404


def test_tasks_are_listed_by_what_they_are(server: httpx.Client) -> None:
    for number in range(3):
        server.post("/v1/execution", json={"taskId": f"listed-{number}", "agentId": "lister"})
    server.post("/v1/execution/listed-1/pause", json={"reason": "rate_limit"})

    def ids(**query: object) -> list[str]:
        found = server.get("/v1/execution", params={"agentId": "lister", **query})
        assert found.status_code == 200, found.text
        return sorted(task["taskId"] for task in found.json()["tasks"])

    assert ids() == ["listed-0", "listed-1", "listed-2"]
    assert ids(status="paused") == ids(reason="rate_limit") == ["listed-1"]
    assert ids(archived=True) == []
    server.post("/v1/execution", json={"taskId": "numbered", "agentId": "42"})
    assert ids(agentId="42", olderThan=0) == ["numbered"]
    page = server.get("/v1/execution", params={"agentId": "lister", "limit": 2}).json()
    assert len(page["tasks"]) == 2
    assert ids(limit=2, after=page["next"]) == ["listed-0"]


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/v1/execution", b"{", "not JSON"),
        ("POST", "/v1/execution", b"[]", "must be a JSON object"),
        ("POST", "/v1/execution", b"{}", "`taskId` is missing"),
        ("POST", "/v1/execution", b'{"taskId": "../x"}', "not a valid task id"),
        ("POST", "/v1/execution", b'{"taskId": "x", "stat": {}}', "there is no argument `stat`; did you mean `state`?"),
        (
            "POST",
            "/v1/execution",
            b'{"taskId": 5, "start": "x"}',
            "`taskId` must be text; `start` must be true or false",
        ),
        ("POST", "/v1/execution", b'{"taskId": "x", "state": [1]}', "`state` must be an object"),
        ("POST", "/v1/execution/x/fail", b'{"error": [1]}', "`error` must be text or an object"),
        ("GET", "/v1/execution?limit=0", b"", "`limit` must be at least 1"),
        ("GET", "/v1/execution?status=lost", b"", "`status` must be one of created, running, "),
        ("GET", "/v1/execution?limit=many", b"", "`limit` must be a whole number"),
        ("DELETE", "/v1/execution/x?version=1", b"", "there is no argument `version`"),
        pytest.param("POST", "/v1/execution", b" " * ((4 << 20) + 1), "more than 4 MB", id="long"),
    ],
)
def test_wrong_arguments_are_told(server: httpx.Client, method: str, path: str, body: bytes, words: str) -> None:
    refused = server.request(method, path, content=body)
    assert refused.status_code == 400
    detail = refused.json()["detail"]
    assert words in detail
    assert "Input should" not in detail
    assert "\n" not in detail


def test_an_approval_over_http_is_a_yes_or_a_no_and_says_who_gave_it(server: httpx.Client) -> None:
    server.post("/v1/execution", json={"taskId": "ship"})
    server.post("/v1/execution/ship/pause", json={"reason": "human_approval"})
    refused = server.post("/v1/execution/ship/answer", json={"value": "maybe"})
    assert (refused.status_code, "answer yes or no" in refused.json()["detail"]) == (400, True)
    given = server.post(
        "/v1/execution/ship/answer", json={"value": "no: not today"}, headers={"User-Agent": "bot\t1 " + "x" * 300}
    ).json()
    assert (given["input"], given["inputText"]) == (False, "not today")
    assert given["inputBy"] == {"door": "http", "client": ("bot 1 " + "x" * 300)[:200]}


def test_a_webhook_needs_its_own_token_and_takes_an_event_once(server: httpx.Client) -> None:
    server.post("/v1/execution", json={"taskId": "deploy"})
    paused = server.post("/v1/execution/deploy/pause", json={"reason": "external_dependency"}).json()
    url = f"/v1/hooks/{paused['token']}"
    event = {"specversion": "1.0", "id": "1", "source": "/ci", "type": "done", "data": {"ok": True}}
    outside = httpx.Client(base_url=server.base_url)
    assert outside.get("/v1/execution/deploy").status_code == 401
    assert outside.post("/v1/hooks/deploy.wrong", json=event).status_code == 404
    assert outside.post(url, json={"specversion": "1.0"}).status_code == 400
    for _ in range(2):
        taken = outside.post(url, json=event)
        assert (taken.status_code, taken.json()["answered"]) == (202, True)
    other = outside.post(url, json={**event, "id": "2"})
    assert other.status_code == 409
    found = server.get("/v1/execution/deploy").json()
    assert found["input"] == {"ok": True}
    assert (found["inputBy"]["door"], found["inputBy"]["source"]) == ("http", "/ci")
    assert "user" not in found["inputBy"], "whoever it is, it is not the one who serves"
    assert "token" not in found
    outside.close()


@pytest.mark.parametrize("door", ["webhook", "signal"])
def test_what_comes_while_nothing_runs_resumes_a_task_at_the_next_start(tmp_path: Path, door: str) -> None:
    terminal = Terminal(tmp_path)
    terminal.project('[experts.fixer]\ninstruction = "[[fixer]] Fix."\n', fixer=[reply("Live.")])
    event = {"specversion": "1.0", "id": "1", "source": "/ci", "type": "built", "data": {"build": 7}}

    def task(*words: str) -> dict[str, Any]:
        done = terminal.run("task", *words, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    task("create", "deploy", "--agent", "fixer", "--state", '{"at": "b.py"}', "--start")
    token = task("pause", "deploy", "--reason", "external_dependency", "--message", "the build")["token"]
    if door == "webhook":
        with serving(terminal) as (url, _):
            delivery = httpx.post(f"{url.removesuffix('/mcp')}/v1/hooks/{token}", json=event)
        assert delivery.status_code == 202
    else:
        result = terminal.run("signal", "deploy", "--provider", "scripted", stdin=json.dumps(event))
        assert result.code == 0, result.err
    assert task("get", "deploy")["status"] == "paused", "nothing runs that could wake it"
    woken = terminal.run("task", "run-due", "--provider", "scripted")
    assert (woken.code, woken.out) == (0, "deploy: worked, now completed\n")
    done = task("get", "deploy")
    assert (done["status"], done["result"]) == ("completed", "Live.")
    (job,) = terminal.run("jobs", "--json").events
    assert job["id"] == done["jobId"]
    assert '"at": "b.py"' in job["query"]
    assert '"build": 7' in job["query"]


def test_an_event_in_headers_is_one_too(server: httpx.Client) -> None:
    server.post("/v1/execution", json={"taskId": "binary"})
    paused = server.post("/v1/execution/binary/pause", json={"reason": "external_dependency"}).json()
    headers = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/ci", "ce-type": "done"}
    assert server.post(f"/v1/hooks/{paused['token']}", json=[1, 2], headers=headers).status_code == 202
    assert server.get("/v1/execution/binary").json()["input"] == [1, 2]


def test_the_description_is_whole(server: httpx.Client) -> None:
    found = server.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert {
        ("POST", "/v1/execution"),
        ("GET", "/v1/execution/{taskId}"),
        ("PUT", "/v1/execution/{taskId}/checkpoint"),
        ("POST", "/v1/execution/{taskId}/pause"),
        ("POST", "/v1/execution/{taskId}/resume"),
        ("DELETE", "/v1/execution/{taskId}"),
        ("GET", "/v1/execution"),
        ("POST", "/v1/execution/{taskId}/complete"),
        ("POST", "/v1/execution/{taskId}/fail"),
        ("POST", "/v1/hooks/{token}"),
    } <= described
    for reference in _references(found):
        assert reference.removeprefix("#/components/schemas/") in found["components"]["schemas"]
    # a browser has no token
    assert httpx.get(f"{server.base_url}/openapi.json").json() == found
    assert "/v1/execution/{taskId}/pause" in httpx.get(f"{server.base_url}/docs").text
    for path in ("docs/x", "openapi.jsonx", "docs/../v1/execution"):
        assert httpx.get(f"{server.base_url}/{path}").status_code == 401


def test_the_description_is_valid_and_every_answer_is_as_it_says(server: httpx.Client) -> None:
    found = server.get("/openapi.json").json()
    validator = pytest.importorskip("openapi_spec_validator", reason="pip install openapi-spec-validator")
    validator.validate(found, cls=validator.OpenAPIV31SpecValidator)

    def check(method: str, path: str, body: object = None, task: str = "said") -> None:
        url = f"/v1/execution{path}"
        answer = server.request(method, url.format(taskId=task), json=body)
        assert answer.is_success or task == "nosuch", answer.text
        content = found["paths"][url][method.lower()]["responses"][str(answer.status_code)]["content"]
        schema = content[answer.headers["content-type"]]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": found["components"]})

    check("POST", "", {"taskId": "said", "config": {"timeout": 60000, "onFailure": "retry"}})
    check("PUT", "/{taskId}/checkpoint", {"state": {"n": 1}, "name": "one", "data": {"of": 3}})
    check("POST", "/{taskId}/pause", {"reason": "external_dependency", "waitingFor": "the build"})
    check("POST", "/{taskId}/answer", {"value": [1, None]})
    check("GET", "")
    check("GET", "/{taskId}/checkpoints")
    check("POST", "/{taskId}/resume", {"checkpoint": "one"})
    check("POST", "/{taskId}/fail", {"error": "no"})
    check("POST", "/{taskId}/complete", {"result": {"pages": 3}})
    check("GET", "/{taskId}")
    check("POST", "/{taskId}/archive")
    check("DELETE", "/{taskId}")
    check("GET", "/{taskId}", task="nosuch")


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
