"""What a caller of MCP or HTTP may not decide: a decision needs a person, in a form or by a token with that right."""

from __future__ import annotations

import httpx
import pytest
from editor import attached, decides, structure, texts
from hosts import wait_for
from http_server import AUTH_HEADERS, DECIDING_HEADERS, DECISION_TOKEN, TOKEN, authorized_client, serving
from mcp_types import ElicitRequestParams, ElicitResult, TextContent
from terminal import SECONDS, Terminal, reply

from perstack.doors.operations import (
    AnyArguments,
    Arguments,
    OfferedOperation,
    marks_of,
    task_operation,
)
from perstack.doors.operations.driving import EXPERT_OPERATION
from perstack.doors.operations.jobs import JOB_OPERATIONS
from perstack.oversight.needed_decisions import FREE, decisions_in
from perstack.tasks.operation_table import OPERATIONS

ALL = (*JOB_OPERATIONS, *map(task_operation, OPERATIONS), EXPERT_OPERATION)
RUN = ("run", "solo", "go", "--provider", "scripted", "--job-id")


@pytest.fixture
def stopped(terminal: Terminal) -> Terminal:
    """Return a project with a Job that a person limited to two cents and one step, and three tasks."""
    with (terminal.workspace / "perstack.toml").open("a") as file:
        file.write('\n[prices."scripted/scripted"]\ninput = 0.001\noutput = 0.001\n')
    assert terminal.run(*RUN, "job", "--max-cost", "0.02", "--max-steps", "1").code == 4
    for task, reason in (("asks", "human_approval"), ("waits", "external_dependency")):
        assert terminal.run("task", "create", task, "--start").code == 0
        assert terminal.run("task", "pause", task, "--reason", reason, "--message", "Deploy?").code == 0
    assert terminal.run("task", "create", "behind", "--depends-on", "asks").code == 0
    return terminal


@pytest.mark.parametrize("operation", ALL, ids=lambda one: one.name)
def test_each_operation_and_each_argument_declares_what_it_decides(
    operation: OfferedOperation[AnyArguments],
) -> None:
    assert [name for name, mark in marks_of(operation).items() if mark is None] == []


def test_an_argument_that_declares_nothing_does_nothing() -> None:
    class Added(Arguments):
        limit: int = 0

    marks = {"operation": FREE, "limit": None}
    (decision,) = decisions_in(marks, None, Added(limit=1))
    assert "not declared" in decision.text


REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("resume_job", {"job": "job", "maxCost": 1000}, "perstack resume job --max-cost 1000"),
    ("resume_job", {"job": "job", "maxSteps": 2}, "perstack resume job --max-steps 2"),
    ("resume_job", {"job": "job", "max_steps": 0}, "perstack resume job --max-steps 0"),
    ("resume_job", {"job": "job", "maxCost": 0.01, "maxSteps": 9}, "perstack resume job --max-steps 9"),
    ("continue_job", {"job": "job", "query": "on"}, "perstack run solo QUERY --continue-job job"),
    ("solo", {"continueJob": "job", "query": "on"}, "perstack run solo QUERY --continue-job job"),
    ("continue_job", {"job": "job", "query": "on", "resumeFrom": "job-1-3"}, "--resume-from job-1-3"),
    ("cancel_job", {"job": "job", "final": True}, "perstack cancel job --final"),
    ("tell_job", {"job": "job", "text": "only once"}, "perstack tell job 'only once'"),
    ("tell_job", {"job": "job", "text": "x", "run": "job-1"}, "perstack tell job x --run job-1"),
    ("tell_job", {"job": "job", "drop": "job-1-1"}, "perstack tell job --drop job-1-1"),
    ("task_answer", {"taskId": "asks", "value": True}, "perstack task answer asks true"),
    ("task_answer", {"taskId": "asks", "value": "; yes"}, "perstack task answer asks '; yes'"),
    ("task_answer", {"taskId": "asks"}, "perstack task answer asks null"),
    ("task_answer", {"taskId": "waits", "value": {"built": 1}}, "perstack task answer waits"),
    ("task_resume", {"taskId": "asks"}, "perstack task resume asks"),
    ("task_resume", {"taskId": "asks", "value": True}, "perstack task resume asks"),
    ("task_resume", {"taskId": "waits"}, "perstack task resume waits"),
    ("task_resume", {"taskId": "behind"}, "perstack task resume behind"),
    ("task_delete", {"taskId": "asks"}, "perstack task delete asks"),
]


def test_without_a_person_each_decision_is_refused_with_its_command(stopped: Terminal, era: str) -> None:
    def state() -> list[object]:
        tasks = [stopped.run("task", "get", task, "--json").out for task in ("asks", "waits", "behind")]
        return [stopped.run("log", "--job", "job", "--json").out, *tasks]

    before = state()

    async def work() -> None:
        async with attached(stopped, "--tasks", era=era) as editor:
            for tool, arguments, command in REFUSED:
                refused = await editor.call(tool, **arguments)
                (text,) = texts(refused)
                assert refused.is_error, (tool, arguments)
                assert text.startswith("only a person can decide this, and this client cannot ask one: "), text
                assert command in text, text

    wait_for(work(), SECONDS)
    assert state() == before


def test_a_no_changes_nothing_and_a_yes_is_for_what_the_form_showed(stopped: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(stopped, era=era, fill=decides("no")) as editor:
            refused = await editor.call("resume_job", job="job", maxCost=1000)
            assert "the person did not agree" in texts(refused)[0]
        async with attached(stopped, era=era, fill=decides()) as editor:
            done = await editor.call("resume_job", job="job", maxCost=1000, maxSteps=0)
            assert texts(done)[0] == "One note."
            (asked,) = editor.shown
            assert asked.message.startswith("mcp ")
            assert "asks for decisions that only you can make:\n- Raise a limit of Job job of solo: " in asked.message
            assert asked.message.endswith("max_steps from 1 to no limit, max_cost from 0.02 to 1,000")

    wait_for(work(), SECONDS)
    (resumed,) = stopped.run("log", "--job", "job", "--type", "resumeRun", "--json").events
    assert resumed["limits"]["budget"]["maxCost"] == 1000


def test_a_yes_to_what_has_changed_meanwhile_is_none(stopped: Terminal, era: str) -> None:
    def fill(params: ElicitRequestParams) -> ElicitResult:
        lower = ("resume", "job", "--max-cost", "0.01", "--max-steps", "1", "--provider", "scripted")
        assert stopped.run(*lower).code == 4
        return ElicitResult(action="accept", content={"decision": "yes"})

    async def work() -> None:
        async with attached(stopped, era=era, fill=fill) as editor:
            refused = await editor.call("resume_job", job="job", maxCost=1000)
            assert "what the person was shown has changed since" in texts(refused)[0]

    wait_for(work(), SECONDS)


def test_lower_limits_and_a_plain_resumption_need_nobody(stopped: Terminal, era: str) -> None:
    async def work() -> None:
        async with attached(stopped, era=era) as editor:
            for limits in (
                {},
                {"maxCost": 0.02},
                {"maxCost": 0.001},
                {"maxSteps": 1},
                {"maxSteps": 1, "maxCost": 1e-6},
            ):
                same = structure(await editor.call("resume_job", job="job", **limits))
                assert same["status"] in ("stoppedByMaxSteps", "stoppedByBudget"), limits

    wait_for(work(), SECONDS)


def test_a_job_that_nobody_limited_continues_with_the_limits_of_its_definition(terminal: Terminal, era: str) -> None:
    terminal.script(**{"[[solo]]": [reply("One."), reply("Two.")]})
    assert terminal.run(*RUN, "free").code == 0

    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            assert texts(await editor.call("continue_job", job="free", query="on"))[0] == "Two."

    wait_for(work(), SECONDS)


LONG_KILL = f": {'x' * 300}; kill -9 $PPID"


def test_a_call_without_a_result_is_settled_by_a_person(terminal: Terminal, era: str) -> None:
    terminal.project(
        '[experts.solo]\ninstruction = "x"\n[permissions]\nallow = ["exec"]\n',
        solo=[reply("", ("exec", {"command": "sh", "args": ["-c", LONG_KILL]})), reply("Done.")],
    )
    assert terminal.run(*RUN, "job").code != 0

    async def work() -> None:
        async with attached(terminal, era=era) as editor:
            (open_call,) = (await editor.job("job"))["openCalls"]
            assert open_call["args"].endswith('kill -9 $PPID"]}')
            for how in ("done", "retry"):
                refused = await editor.call("resume_job", job="job", settle={open_call["key"]: how})
                assert f"perstack resume job --settle {open_call['key']}={how}" in texts(refused)[0]
                assert LONG_KILL in texts(refused)[0], "the call is shown whole"
            waiting = await editor.call("resume_job", job="job", settle={open_call["key"]: "ask"})
            assert "What became of this call?" in texts(waiting)[0]
            assert (await editor.job("job"))["openCalls"] == []

    wait_for(work(), SECONDS)
    inbox = terminal.run("inbox").out
    assert "exec began, and its process ended before it had a result." in inbox
    assert "3. no" in inbox
    answered = terminal.run("answer", "job", "no: leave it", "--drive")
    assert answered.code == 0, answered.err


@pytest.mark.parametrize("how", ["tell"])
def test_a_call_without_a_result_is_told_to_the_model_without_a_person(terminal: Terminal, how: str) -> None:
    terminal.project(
        '[experts.solo]\ninstruction = "x"\n[permissions]\nallow = ["exec"]\n',
        solo=[reply("", ("exec", {"command": "sh", "args": ["-c", LONG_KILL]})), reply("Done.")],
    )
    assert terminal.run(*RUN, "job").code != 0

    async def work() -> None:
        async with attached(terminal) as editor:
            (open_call,) = (await editor.job("job"))["openCalls"]
            result = await editor.call("resume_job", job="job", settle={open_call["key"]: how})
            assert texts(result)[0] == "Done."

    wait_for(work(), SECONDS)


@pytest.mark.parametrize("detour", ["task_cancel", "task_fail"])
def test_a_task_that_failed_while_a_person_was_asked_is_revived_by_a_person(stopped: Terminal, detour: str) -> None:
    async def work() -> None:
        async with attached(stopped, "--tasks") as editor:
            given_up = {"error": "no time"} if detour == "task_fail" else {}
            assert structure(await editor.call(detour, taskId="asks", **given_up))["status"] == "failed"
            for tool in ("task_resume", "task_retry"):
                refused = await editor.call(tool, taskId="asks")
                assert "although nobody answered before it failed" in texts(refused)[0]
            assert structure(await editor.call("task_get", taskId="asks"))["status"] == "failed"

    wait_for(work(), SECONDS)


def test_an_agent_works_on_its_own_tasks_without_a_person(stopped: Terminal) -> None:
    async def work() -> None:
        async with attached(stopped, "--tasks") as editor:
            await editor.call("task_create", taskId="own", config={"maxRetries": 1})
            await editor.call("task_checkpoint", taskId="own", state={"done": 1}, name="one")
            await editor.call("task_pause", taskId="own", reason="checkpoint")
            back = structure(await editor.call("task_resume", taskId="own", checkpoint="one"))
            assert (back["status"], back["state"]) == ("running", {"done": 1})
            for expected in ("task_retry", "task_resume"):
                await editor.call("task_fail", taskId="own", error="full")
                again = await editor.call(expected, taskId="own")
                assert again.is_error is (expected == "task_resume"), texts(again)
            assert "beyond its limit of 1 retries" in texts(again)[0]

    wait_for(work(), SECONDS)


def test_over_http_a_token_decides_that_was_given_that_right(stopped: Terminal) -> None:
    with serving(stopped, "--tasks") as (url, _):
        base = f"{url.removesuffix('/mcp')}/v1/execution"
        for method, path, body in (
            ("POST", "asks/answer", {"value": True}),
            ("POST", "asks/resume", {}),
            ("DELETE", "asks", None),
        ):
            refused = httpx.request(method, f"{base}/{path}", json=body, headers=AUTH_HEADERS)
            assert (refused.status_code, refused.json()["title"]) == (403, "NeedsPerson"), refused.text
            assert "PERSTACK_DECISION_TOKEN" in refused.json()["detail"]
        answered = httpx.post(f"{base}/asks/answer", json={"value": True}, headers=DECIDING_HEADERS)
        assert (answered.status_code, answered.json()["answered"]) == (200, True)
        # what has come is no wait any more
        assert httpx.post(f"{base}/asks/resume", headers=AUTH_HEADERS).status_code == 200

        async def work() -> None:
            arguments = {"job": "job", "maxCost": 1000, "maxSteps": 9}
            async with authorized_client(url, "legacy") as client:
                refused = await client.call_tool("resume_job", arguments)
                assert refused.is_error
            async with authorized_client(url, "legacy", token=DECISION_TOKEN) as client:
                (block, *_) = (await client.call_tool("resume_job", arguments)).content
                assert isinstance(block, TextContent)
                assert block.text == "One note."

        wait_for(work(), SECONDS)


@pytest.mark.parametrize(
    ("token", "words"),
    [("short", "PERSTACK_DECISION_TOKEN has 5 characters"), (TOKEN, "every client could decide")],
)
def test_a_token_that_anybody_has_decides_nothing(terminal: Terminal, token: str, words: str) -> None:
    terminal.env |= {"PERSTACK_MCP_TOKEN": TOKEN, "PERSTACK_DECISION_TOKEN": token}
    refused = terminal.run("mcp", "--http", "127.0.0.1:0", "--provider", "scripted")
    assert (refused.code, words in refused.err) == (2, True), refused.err


def test_a_file_gives_no_right_to_decide(stopped: Terminal) -> None:
    planted = "a-token-in-a-file-that-somebody-else-has-written"
    (stopped.workspace / ".env").write_text(f"PERSTACK_DECISION_TOKEN={planted}\n")
    stopped.env.pop("PERSTACK_DECISION_TOKEN", None)
    with serving(stopped, "--env-path", ".env") as (url, _):
        headers = {"Authorization": f"Bearer {planted}"}
        assert httpx.get(f"{url.removesuffix('/mcp')}/v1/approvals", headers=headers).status_code == 401
