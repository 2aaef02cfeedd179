"""Jobs over HTTP: submitted once for each key, and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_workers import Engine, served
from http_server import AUTH_HEADERS, serving
from terminal import SECONDS, Terminal, reply, trusting

from perstack.definition_files import load_usable
from perstack.host import Host

TOML = """
provider = { providerName = "scripted" }
workers = { dispatcher = "memory:jobs" }
[experts.writer]
instruction = "You write."
[experts.other]
instruction = "You do not."
"""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    folder = tmp_path_factory.mktemp("jobs")
    with trusting(folder):  # a test's own worker drives Jobs too
        yield _terminal(folder, TOML)


def _terminal(folder: Path, toml: str) -> Terminal:
    terminal = Terminal(folder)
    terminal.env["PERSTACK_PLUGINS"] += ",memory_workers"
    terminal.env["PYTHONPATH"] = str(Path(__file__).parents[2] / "support")
    return terminal.project(toml, writer=[reply("A haiku.")])


@pytest.fixture(scope="module")
def server(terminal: Terminal) -> Iterator[httpx.Client]:
    """Yield a client of a server that requires a token and offers one of two Experts."""
    with (
        serving(terminal, "--experts", "writer") as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=AUTH_HEADERS, timeout=SECONDS) as client,
    ):
        yield client


def test_a_job_is_queued_driven_by_a_worker_and_shown(server: httpx.Client, terminal: Terminal) -> None:
    asked = {"expert": "writer", "query": "logs", "priority": 3, "labels": {"team": "x"}}
    done = server.post("/v1/jobs", json=asked)
    assert (done.status_code, done.json()["status"]) == (202, "queued")
    job_id = done.json()["id"]
    assert done.headers["location"] == f"/v1/jobs/{job_id}"
    shown = server.get(done.headers["location"]).json()
    assert (shown["status"], shown["labels"], shown["queued"]["priority"]) == ("queued", {"team": "x"}, 3)
    assert shown["queued"]["by"]["door"] == "http"
    served(terminal, job_id)
    after = server.get(done.headers["location"]).json()
    assert (after["status"], after["text"]) == ("completed", "A haiku.")


@pytest.mark.parametrize("named", ["key", "jobId"])
def test_the_same_request_again_is_no_second_job(server: httpx.Client, terminal: Terminal, named: str) -> None:
    asked: dict[str, Any] = {"expert": "writer", "query": named}
    headers = {"Idempotency-Key": "order-17"} if named == "key" else {}
    asked |= {"jobId": "mine"} if named == "jobId" else {}

    def send(_: int) -> httpx.Response:
        return server.post("/v1/jobs", json=asked, headers=headers)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(send, range(8)))
    assert {one.status_code for one in answers} <= {202, 409}, [one.text for one in answers]
    (job_id,) = {answer.json()["id"] for answer in answers if answer.status_code == 202}
    assert send(0).json() == {"id": job_id, "status": "queued"}
    served(terminal, job_id)
    assert send(0).json() == {"id": job_id, "status": "completed"}
    other = server.post("/v1/jobs", json={**asked, "query": "another"}, headers=headers)
    assert (other.status_code, other.headers["content-type"]) == (409, "application/problem+json")
    assert "was started by another request" in other.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"expert": "writer", "query": " "}, 400, "QUERY is empty"),
        ({"expert": "writer"}, 400, "`query`"),
        ({"expert": "nobody", "query": "q"}, 400, "limited to: writer"),
        ({"expert": "other", "query": "q"}, 400, "limited to: writer"),
        ({"expert": "writer", "query": "q", "jobId": "../up"}, 400, "id"),
        ({"expert": "writer", "query": "q", "at": -1}, 400, "at = -1"),
        ({"expert": "writer", "query": "q", "priority": 1 << 40}, 400, "priority"),
        ({"expert": "writer", "query": "q", "when": 1}, 400, "`when`"),
        ({"expert": "writer", "query": "q", "labels": {"a b": "c"}}, 400, "a b"),
        ({"expert": "writer", "query": "q" * (5 << 20)}, 400, "more than 4 MB"),
        (["writer"], 400, "must be a JSON object"),
    ],
)
def test_what_is_wrong_is_a_problem_in_a_line(server: httpx.Client, body: object, status: int, words: str) -> None:
    refused = server.post("/v1/jobs", json=body)
    assert (refused.status_code, refused.headers["content-type"]) == (status, "application/problem+json")
    assert words in refused.json()["detail"]
    assert "\n" not in refused.json()["detail"]


def test_it_takes_the_token_and_shows_what_is_there(server: httpx.Client) -> None:
    url = f"{server.base_url}/v1/jobs"
    assert httpx.post(url, json={"expert": "writer", "query": "q"}).status_code == 401
    assert httpx.get(f"{url}/mine").status_code == 401
    assert server.get("/v1/jobs/nobody").status_code == 404
    assert server.get("/v1/jobs/a%20b").status_code == 400
    described = server.get("/openapi.json").json()["paths"]
    assert {"/v1/jobs", "/v1/jobs/{id}"} <= set(described)


def test_without_a_dispatcher_it_is_refused(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path).project('[experts.writer]\ninstruction = "x"\n', writer=[reply("A haiku.")])
    with serving(terminal) as (url, _):
        refused = httpx.post(
            url.replace("/mcp", "/v1/jobs"),
            json={"expert": "writer", "query": "q"},
            headers=AUTH_HEADERS,
            timeout=SECONDS,
        )
        assert refused.status_code == 400
        assert "set `dispatcher` in [workers]" in refused.json()["detail"]
    assert terminal.call("jobs", "--json").out == ""


def test_after_a_503_the_job_is_recorded_and_a_worker_that_looks_finds_it(tmp_path: Path) -> None:
    terminal = _terminal(tmp_path, TOML.replace("memory:jobs", "down:"))
    asked, key = {"expert": "writer", "query": "logs"}, {**AUTH_HEADERS, "Idempotency-Key": "order-17"}
    with (
        serving(terminal) as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=key, timeout=SECONDS) as client,
    ):
        refused = client.post("/v1/jobs", json=asked)
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
        (job,) = terminal.call("jobs", "--json").events
        job_id = job["id"]
        wanted = f"Job {job_id} is recorded, but could not be queued: the engine is down; a worker will find it"
        assert refused.json()["detail"] == wanted
        assert client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"
        again = client.post("/v1/jobs", json=asked)
        assert (again.status_code, again.json()) == (202, {"id": job_id, "status": "queued"})

        async def work() -> None:
            engine = Engine()
            project = load_usable(terminal.workspace / "perstack.toml").project
            host = Host(project, workspace=terminal.workspace, env=terminal.env, dispatcher=engine.dispatcher)
            async with engine.at_work(host) as at_work:
                await at_work.wait_for_report("ended")

        asyncio.run(work())
        after = client.post("/v1/jobs", json=asked)
        assert (after.status_code, after.json()) == (202, {"id": job_id, "status": "completed"})
