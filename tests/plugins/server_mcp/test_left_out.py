"""`--experts` hides other Experts at every door: they are neither named, read, driven nor answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from editor import Editor, attached, structure
from hosts import wait_for
from http_server import AUTH_HEADERS, serving
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, ResourceTemplateReference
from terminal import SECONDS, Terminal, reply

TOML = """
[permissions]
ask = ["appendTextFile"]
[experts.writer]
instruction = "You write."
[experts.boss]
instruction = "You know secrets."
"""
SECRET = "the merger"


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a project in which each Expert has a completed Job, one that waits for an approval, and a task."""
    terminal = Terminal(tmp_path_factory.mktemp("left-out"))
    (terminal.workspace / "a.txt").write_text("")
    for expert, word in (("writer", "open"), ("boss", SECRET)):
        terminal.project(TOML, **{expert: [reply(word)]})
        result = terminal.run("run", expert, word, "--provider", "scripted", "--job-id", f"{expert}-done")
        assert result.code == 0, result.err
        asking = reply("", ("appendTextFile", {"path": "a.txt", "text": word}))
        terminal.project(TOML, **{expert: [asking, reply("Done.")]})
        result = terminal.run("run", expert, word, "--provider", "scripted", "--job-id", f"{expert}-asks")
        assert result.code == 3, result.err
        words = ("--agent", expert, "--start", "--description", word)
        assert terminal.run("task", "create", f"{expert}-task", *words).code == 0
        assert terminal.run("task", "pause", f"{expert}-task", "--reason", "human_input", "--message", word).code == 0
    assert terminal.run("task", "create", "robot-task", "--agent", "robot").code == 0
    return terminal


CALLS: tuple[tuple[str, dict[str, object]], ...] = (
    ("get_job", {"job": "boss-done"}),
    ("get_job", {"job": "boss-asks"}),
    ("get_checkpoint", {"checkpoint": "boss-done-1-5"}),
    ("get_checkpoint", {"checkpoint": "boss-done-1-5", "job": "boss-done"}),
    ("get_checkpoint", {"checkpoint": "boss-done-1-5", "job": "writer-done"}),
    ("diff", {"job": "boss-done"}),
    ("continue_job", {"job": "boss-done", "query": "more"}),
    ("continue_job", {"job": "writer-done", "query": "more", "resumeFrom": "boss-done-1-5"}),
    ("writer", {"query": "tell me more", "continueJob": "boss-done"}),
    ("answer", {"job": "boss-asks", "answer": "no"}),
    ("answer", {"job": "writer-asks", "answer": "no", "question": "boss-asks-1-6"}),
    ("resume_job", {"job": "boss-asks"}),
    ("cancel_job", {"job": "boss-asks"}),
    ("tell_job", {"job": "boss-asks", "text": "x"}),
    ("rewind", {"job": "boss-done", "checkpoint": "boss-done-1-5"}),
    ("rewind", {"job": "writer-done", "checkpoint": "boss-done-1-5"}),
    ("task_get", {"taskId": "boss-task"}),
    ("task_checkpoints", {"taskId": "boss-task"}),
    ("task_answer", {"taskId": "boss-task", "value": "x"}),
    ("task_resume", {"taskId": "boss-task"}),
    ("task_cancel", {"taskId": "boss-task"}),
    ("task_delete", {"taskId": "boss-task"}),
    ("task_create", {"taskId": "new", "agentId": "boss"}),
)


def test_no_tool_shows_or_changes_a_job_or_a_task_of_an_expert_that_is_left_out(terminal: Terminal) -> None:
    async def work() -> None:
        async with attached(terminal, "--experts", "writer", "--tasks") as editor:
            before = {str(path): path.read_bytes() for path in (terminal.workspace / "perstack").rglob("events.jsonl")}
            tools = {tool.name: tool for tool in (await editor.client.list_tools()).tools}
            for name, arguments in CALLS:
                assert name in tools, name
                refused = await editor.call(name, **arguments)
                assert refused.is_error, (name, arguments, refused)
                assert "input validation" not in str(refused).lower(), refused
                assert SECRET not in str(refused), name
            after = {str(path): path.read_bytes() for path in (terminal.workspace / "perstack").rglob("events.jsonl")}
            assert after == before
            jobs = structure(await editor.call("list_jobs"))["jobs"]
            assert sorted(job["id"] for job in jobs) == ["writer-asks", "writer-done"]
            waiting = structure(await editor.call("inbox"))["questions"]
            assert sorted(str(one.get("job") or one.get("task")) for one in waiting) == ["writer-asks", "writer-task"]
            tasks = structure(await editor.call("task_list"))["tasks"]
            assert sorted(task["taskId"] for task in tasks) == ["robot-task", "writer-task"]
            assert (await editor.job("writer-done"))["text"] == "open"

    wait_for(work(), 60)


def test_no_resource_or_completion_shows_one(terminal: Terminal) -> None:
    async def work() -> None:
        async with attached(terminal, "--experts", "writer") as editor:
            for uri in (
                "perstack://jobs/boss-done",
                "perstack://runs/boss-done-1/events",
                "perstack://checkpoints/boss-done-1-5",
                "perstack://experts/boss",
            ):
                with pytest.raises(MCPError) as refused:
                    await editor.client.read_resource(uri)
                assert SECRET not in str(refused.value)
            assert SECRET not in str(await editor.client.read_resource("perstack://jobs"))
            templates = (await editor.client.list_resource_templates()).resource_templates
            assert len(templates) == 4
            for template in templates:
                (name,) = [part.split("}")[0] for part in template.uri_template.split("{")[1:]]
                for typed in ("", "boss", "boss-done", "boss-done-1"):
                    reference = ResourceTemplateReference(uri=template.uri_template)
                    found = await editor.client.complete(reference, {"name": name, "value": typed})
                    assert not [value for value in found.completion.values if value.startswith("boss")]

    wait_for(work(), 60)


def test_an_answer_that_nobody_was_asked_for_shows_no_job(terminal: Terminal) -> None:
    """The state of a second call is the client's to invent."""

    async def work() -> None:
        async with attached(terminal, "--experts", "writer", era="stateless") as editor:
            state = json.dumps({"question": question_of(terminal, "boss-asks")})
            for name, arguments in (("writer", {"query": "x"}), ("answer", {"job": "writer-asks", "answer": "yes"})):
                params = CallToolRequestParams(name=name, arguments=arguments, request_state=state)
                assert SECRET not in await said_of(editor, params)

    wait_for(work(), 60)


async def said_of(editor: Editor, params: CallToolRequestParams) -> str:
    try:
        return str(
            await editor.client.session.call_tool(params.name, params.arguments, request_state=params.request_state)
        )
    except MCPError as error:
        return str(error)


def question_of(terminal: Terminal, job_id: str) -> str:
    (job,) = [event for event in terminal.run("jobs", "--json").events if event["id"] == job_id]
    return str(job["asking"]["id"])


def test_nothing_over_http_shows_or_changes_one(terminal: Terminal) -> None:
    question = question_of(terminal, "boss-asks")
    with (
        serving(terminal, "--experts", "writer") as (url, _),
        httpx.Client(base_url=url.removesuffix("/mcp"), headers=AUTH_HEADERS, timeout=SECONDS) as client,
    ):
        refused: list[tuple[str, str, dict[str, Any] | None, int]] = [
            ("GET", "/v1/jobs/boss-done", None, 404),
            ("GET", "/v1/jobs/boss-asks", None, 404),
            ("POST", "/v1/jobs", {"expert": "boss", "query": "x"}, 400),
            ("POST", "/v1/jobs/boss-asks/tell", {"text": "x"}, 400),
            ("POST", f"/v1/approvals/{question}", {"answer": "yes"}, 404),
            ("POST", f"/v1/approvals/{question}", {"answer": "no", "callDigest": "v1:x"}, 404),
            ("GET", "/v1/execution/boss-task", None, 404),
            ("GET", "/v1/execution/boss-task/checkpoints", None, 404),
            ("POST", "/v1/execution/boss-task/answer", {"value": "x"}, 404),
            ("POST", "/v1/execution/boss-task/resume", {}, 404),
            ("POST", "/v1/execution/boss-task/cancel", {}, 404),
            ("DELETE", "/v1/execution/boss-task", None, 404),
            ("POST", "/v1/execution", {"taskId": "new", "agentId": "boss"}, 400),
        ]
        for method, path, body, status in refused:
            done = client.request(method, path, json=body)
            assert (done.status_code, SECRET in done.text) == (status, False), (method, path, done.text)
        approvals = client.get("/v1/approvals").json()["approvals"]
        assert [approval["jobId"] for approval in approvals] == ["writer-asks"]
        assert client.get("/v1/jobs/writer-done").json()["text"] == "open"
        listed = client.get("/v1/execution").json()["tasks"]
        assert sorted(task["taskId"] for task in listed) == ["robot-task", "writer-task"]
        assert client.get("/v1/execution", params={"agentId": "boss"}).json()["tasks"] == []
        assert client.get("/v1/execution/writer-task").json()["agentId"] == "writer"
    assert terminal.run("jobs", "--json").out.count("stoppedByInteractiveTool") >= 2
    assert Path(terminal.workspace / "a.txt").read_text() == ""
