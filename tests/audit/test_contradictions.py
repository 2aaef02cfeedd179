"""An event that repeats an earlier one wrongly is refused, or found by `verify`, with a chain that is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from hosts import Bench, expert, wait_for

from perstack.audit.verification_report import Report
from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.core.definitions.permissions import call_digest
from perstack.errors import Damaged
from perstack.testing.scripted import text, tool, turn

EXPERTS = (expert("boss", delegates=("helper",), ask=True), expert("helper"))
SCRIPT = {
    "[[boss]]": [
        turn(tool("todo", {"newTodos": ["t"]}), usage=(10, 1)),
        turn(tool("helper", {"query": "Q"}), tool("think", {"thought": "hm"}), usage=(10, 1)),
        turn(tool("askUser", {"question": "sure?"}), usage=(10, 1)),
        text("all is done", usage=(10, 1)),
    ],
    "[[helper]]": [text("helped", usage=(10, 1))],
}
Event = dict[str, Any]
Edit = Callable[[Event], None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workspace with a Job that has a delegate, and asked a question."""
    workspace = tmp_path_factory.mktemp("store")

    async def work() -> None:
        async with Bench(workspace, "file:perstack").host(SCRIPT, *EXPERTS) as host:
            await host.run("boss", "go", job_id="job")
            assert (await host.answer("yes", job_id="job")).status == "completed"
            assert (await host.audit.verify("job")).findings == ()

    wait_for(work())
    return workspace


def edit_log(workspace: Path, run_id: str, type_: str, edit: Edit, *, place: int = 0) -> None:
    """Change one event of a log, make its chain anew, and remove every head of it, as a skilled attacker could."""
    job = workspace / "perstack" / "jobs" / "job"
    log = job / "runs" / run_id / "events.jsonl"
    payloads = [open_line(line).payload for line in log.read_bytes().splitlines()]
    index = [seq for seq, one in enumerate(payloads) if json.loads(one)["type"] == type_][place]
    event = json.loads(payloads[index])
    edit(event)
    payloads[index] = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    head, lines = EMPTY_LOG, list[bytes]()
    for payload in payloads:
        sealed, head = seal(head, [payload])
        lines += sealed
    log.write_bytes(b"\n".join((*lines, b"")))
    (job / "job.json").unlink(missing_ok=True)
    rmtree(job / "checkpoints", ignore_errors=True)


def report_of(workspace: Path) -> Report:
    async def work() -> Report:
        async with Bench(workspace, "file:perstack").host(SCRIPT, *EXPERTS) as host:
            return await host.audit.verify("job")

    return wait_for(work())


def change(*path: str | int, to: object) -> Edit:
    def edit(event: Event) -> None:
        place: Any = event
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    ("run_id", "type_", "edit", "words"),
    [
        ("job-1", "callTools", change("calls", 0, "toolName", to="exec"), "the tool of call"),
        ("job-1", "finishToolCall", change("toolName", to="exec"), "the tool 'exec'"),
        ("job-1", "callDelegate", change("delegates", 0, "query", to="other"), "the query 'other'"),
        ("job-1", "callDelegate", change("delegates", 0, "expertKey", to="boss"), "the Expert 'boss'"),
        ("job-1", "callDelegate", change("delegates", 0, "toolName", to="x"), "the delegate's tool 'x'"),
        ("job-1", "callInteractiveTool", change("args", "question", to="other?"), "the arguments"),
        ("job-1", "callInteractiveTool", change("toolName", to="exec"), "the tool 'exec'"),
        ("job-1", "callInteractiveTool", change("skillName", to="other"), "the skill 'other'"),
        ("job-1", "startGeneration", change("stepNumber", to=7), "the step 7"),
        ("job-1", "finishStep", change("usage", "inputTokens", to=0), "the usage"),
        ("job-1", "finishStep", change("checkpointId", to="job-1-1"), "the checkpoint 'job-1-1'"),
        ("job-1", "finishRun", change("text", to="lie"), "the result 'lie'"),
        ("job-1", "finishRun", change("totalUsage", "totalTokens", to=1), "the usage"),
        ("job-1", "finishRun", change("withoutEffect", to=True), "withoutEffect True"),
        ("job-1", "finishRun", change("result", to={"a": 1}), "the value of the result"),
        ("job-1", "finishRun", change("expertKey", to="other"), "expertKey 'other'"),
        ("job-1", "finishRun", change("stepNumber", to=1), "stepNumber 1"),
        ("job-1", "resumeRun", change("checkpointId", to="job-1-1"), "the checkpoint 'job-1-1'"),
        ("job-2", "startRun", change("query", to="other"), "the query 'other'"),
        ("job-2", "startRun", change("expertKey", to="boss"), "the Expert 'boss'"),
        ("job-2", "startRun", change("delegatedBy", "toolName", to="x"), "the tool that called it 'x'"),
        ("job-2", "startRun", change("delegatedBy", "expertKey", to="x"), "the Expert that called it 'x'"),
        ("job-2", "startRun", change("depth", to=3), "its depth 3"),
    ],
)
def test_an_event_that_says_otherwise_than_an_earlier_one_is_found(
    store: Path, tmp_path: Path, run_id: str, type_: str, edit: Edit, words: str
) -> None:
    workspace = tmp_path / "copy"
    copytree(store, workspace)
    edit_log(workspace, run_id, type_, edit)
    assert any(words in finding.message for finding in report_of(workspace).findings), report_of(workspace)


def test_the_result_of_a_delegate_is_compared_with_its_log(store: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "copy"
    copytree(store, workspace)

    def edit(event: Event) -> None:
        event["contents"][0]["text"] = "it is fine"
        event["report"]["steps"] = 9

    log = workspace / "perstack/jobs/job/runs/job-1/events.jsonl"
    finished = [json.loads(line) for line in log.read_bytes().splitlines() if b'"type":"finishToolCall"' in line]
    place = next(index for index, event in enumerate(finished) if "delegate" in event)
    edit_log(workspace, "job-1", "finishToolCall", edit, place=place)
    messages = " ".join(finding.message for finding in report_of(workspace).findings)
    assert "the delegate's result 'it is fine', where an earlier event says 'helped'" in messages
    assert "the delegate's report" in messages


# Approvals: what is shown is what runs.

ASKING = {"[[x]]": [turn(tool("exec", {"command": "touch", "args": ["made"]}), usage=(10, 1)), text("done")]}


def digest_of(event: Event) -> str:
    return call_digest(event["skillName"], event["toolName"], event["args"])


def _other_args(event: Event) -> None:
    event["args"] = {"command": "ls"}


def _other_args_and_digest(event: Event) -> None:
    _other_args(event)
    event["callDigest"] = digest_of(event)


def _other_tool(event: Event) -> None:
    event["toolName"] = "readTextFile"
    event["callDigest"] = digest_of(event)


def _other_skill(event: Event) -> None:
    event["skillName"] = "other"


def _other_digest(event: Event) -> None:
    event["callDigest"] = event["callDigest"][:-1] + ("0" if event["callDigest"][-1] != "0" else "1")


def _other_rule(event: Event) -> None:
    event["rule"] = "harmless"


@pytest.mark.parametrize(
    "edit", [_other_args, _other_args_and_digest, _other_tool, _other_skill, _other_digest, _other_rule]
)
def test_a_request_for_approval_that_shows_another_call_runs_nothing(tmp_path: Path, edit: Edit) -> None:
    bench = Bench(tmp_path, "file:perstack")
    rules = expert("x", permissions={"ask": ["exec"]})

    async def work() -> None:
        async with bench.host(ASKING, rules) as host:
            assert (await host.run("x", "go", job_id="job")).question is not None
        edit_log(tmp_path, "job-1", "requestApproval", edit)
        async with bench.host(ASKING, rules) as host:
            findings = (await host.audit.verify("job")).findings
            assert any("requestApproval says the" in finding.message for finding in findings), findings
            with pytest.raises(Damaged, match="requestApproval says the"):
                await host.answer("yes", job_id="job")

    wait_for(work())
    assert not (tmp_path / "made").exists()


def test_a_request_without_arguments_shows_those_of_the_call_and_is_found(tmp_path: Path) -> None:
    """A redaction empties a request, so it reads; the question is made from the call that would run."""
    bench = Bench(tmp_path, "file:perstack")
    rules = expert("x", permissions={"ask": ["exec"]})

    async def work() -> None:
        async with bench.host(ASKING, rules) as host:
            await host.run("x", "go", job_id="job")
        edit_log(tmp_path, "job-1", "requestApproval", change("args", to={}))
        async with bench.host(ASKING, rules) as host:
            asked = (await host.job("job")).asking
            assert asked is not None
            assert asked.args == {"command": "touch", "args": ["made"]}
            findings = (await host.audit.verify("job")).findings
            assert any("says the arguments {}" in finding.message for finding in findings)

    wait_for(work())
