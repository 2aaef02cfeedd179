"""Experts with MCP servers, from the query to the result."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest
from hosts import Seen, expert, project_of, results, wait_for
from mcp_bed import MARK, MISBEHAVING, Bed

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Overrides
from perstack.core.definitions.skills import McpStdioSkill, McpTool
from perstack.core.jobs.summary import JobSummary
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, ScriptLike, text, tool, turn

PLENTY = 60_000


def _misbehaving_skill(name: str, fault: str = "none", **fields) -> McpStdioSkill:
    fields.setdefault("timeout", PLENTY)
    return McpStdioSkill(name=name, command=sys.executable, args=(str(MISBEHAVING), fault, name), **fields)


def _expert_with(key: str, *skills: McpStdioSkill, **fields) -> Expert:
    return expert(key, **fields).model_copy(update={"skills": skills})


def _host(bed: Bed, script: ScriptLike | ScriptedProvider, *experts: Expert) -> Host:
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
    return Host(
        project_of(*experts),
        workspace=bed.workspace,
        storage="file:perstack",
        env=bed.env,
        overrides=Overrides(provider="scripted"),
        plugins=[provider],
    )


def test_an_expert_uses_a_server_and_its_delegate_shares_it(bed: Bed) -> None:
    seen = Seen()
    script = {
        "[[a]]": [turn(tool("echo"), tool("b", {"query": "x"})), text("ok")],
        "[[b]]": [tool("echo"), text("b")],
    }
    server = _misbehaving_skill("server", pick=("echo", "env"))
    experts = (
        _expert_with("a", server, delegates=("b",)),
        _expert_with("b", server.model_copy(update={"pick": ("echo",)})),
    )
    job = wait_for(_host(bed, script, *experts).run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert results(seen, "echo") == ["here", "here"]
    shown = [event.type for event in seen.events if event.type.startswith("skill")]
    assert shown == ["skillStarting", "skillConnected", "skillDisconnected"]


def test_a_description_of_a_tool_that_is_not_there_is_named_on_stderr(bed: Bed) -> None:
    seen = Seen()
    server = _misbehaving_skill(
        "server", tools=(McpTool(name="ecko", paths=("path",)), McpTool(name="echo", paths=("path",)))
    )
    job = wait_for(_host(bed, [tool("echo"), text("ok")], _expert_with("a", server)).run("a", "q", on_event=seen))
    assert job.status == "completed"
    told = [event.message for event in seen.of("skillStderr")]
    assert told == ["perstack.toml describes a tool ecko, which the skill does not have: rename or remove it"]


def test_pick_and_omit_choose_what_the_model_is_offered(bed: Bed) -> None:
    provider = ScriptedProvider([text("ok")])
    server = _misbehaving_skill("server", pick=("e*", "die"), omit=("di*",))
    assert wait_for(_host(bed, provider, _expert_with("a", server)).run("a", "q")).status == "completed"
    names = {spec.name for spec in provider.requests[0].tools if spec.skill_name == "server"}
    assert names == {"echo", "env"}


FAULTS = {
    "dies-at-start": ("exit code 7", "stderr: cannot find my configuration"),
    "hangs-at-start": ("no answer within 4 s", "stderr: still looking"),
    "floods": ("it floods stdout", "stderr: here it comes"),
    "one-endless-line": ("a message of more than 64 MB", "stderr: here it comes"),
    "lists-nonsense": ("Input should be", "stderr: here is my list"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_does_not_start_costs_only_its_own_tools(bed: Bed, fault: str) -> None:
    seen = Seen()
    patience = 4_000 if fault == "hangs-at-start" else PLENTY
    provider = ScriptedProvider([turn(tool("echo"), tool("gone_tool")), text("went on")])
    host = _host(
        bed, provider, _expert_with("a", _misbehaving_skill("up"), _misbehaving_skill("gone", fault, timeout=patience))
    )
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "went on")
    assert results(seen, "echo") == ["here"]
    stored = next(event.guidance for event in seen.of("startGeneration"))
    (shown,) = [event.reason for event in seen.of("skillDisconnected") if event.skill_name == "gone"]
    for told in (shown, stored, results(seen, "gone_tool")[0], provider.requests[0].instruction):
        assert "skill 'gone' could not be connected to" in told
        assert all(words in told for words in FAULTS[fault]), told


def test_the_rule_of_a_skill_reaches_the_prompt(bed: Bed) -> None:
    provider = ScriptedProvider([text("ok")])
    wait_for(
        _host(bed, provider, _expert_with("a", _misbehaving_skill("server", rule="Echo once, not twice."))).run(
            "a", "q"
        )
    )
    assert "Rules for the tools of server:\nEcho once, not twice." in provider.requests[0].instruction


def test_cancelling_a_job_reaches_the_server_of_a_call_in_flight(bed: Bed) -> None:
    seen = Seen()

    async def run() -> JobSummary:
        called = asyncio.Event()

        def on_event(event, line) -> None:
            seen(event, line)
            if event.type == "skillStderr" and event.message == "hanging":
                called.set()

        host = _host(bed, [tool("hang"), text("never")], _expert_with("a", _misbehaving_skill("server")))
        running = asyncio.create_task(host.run("a", "q", job_id="job", on_event=on_event))
        await called.wait()
        await host.cancel("job")
        await asyncio.wait({running})
        return await host.job("job")

    assert wait_for(run()).status == "stoppedByInterrupt"
    assert any(event.message.startswith("cancelled") for event in seen.of("skillStderr"))


def test_progress_becomes_events_of_its_call(bed: Bed) -> None:
    seen = Seen()
    wait_for(
        _host(bed, [tool("slow"), text("ok")], _expert_with("a", _misbehaving_skill("server"))).run(
            "a", "q", on_event=seen
        )
    )
    shown = [(event.tool_name, event.message) for event in seen.of("toolProgress")]
    assert shown == [("slow", f"slow: {part}/4") for part in range(4)]


def test_a_call_that_kills_its_server_is_an_error_and_the_next_one_works(bed: Bed) -> None:
    seen = Seen()
    host = _host(bed, [tool("die"), tool("echo"), text("ok")], _expert_with("a", _misbehaving_skill("server")))
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert [event.is_error for event in seen.of("finishToolCall")] == [True, False]
    assert results(seen, "echo") == ["here"]


def test_a_missing_variable_ends_the_run_with_its_name_before_any_server_starts(bed: Bed) -> None:
    seen = Seen()
    other = McpStdioSkill(name="other", command="touch", args=("started",))
    host = _host(
        bed, [text("never")], _expert_with("a", other, _misbehaving_skill("server", required_env=("API_TOKEN",)))
    )
    assert wait_for(host.run("a", "q", on_event=seen)).status == "stoppedByError"
    assert "skill 'server' needs API_TOKEN" in seen.of("errorRun")[0].error.message
    assert not (bed.workspace / "started").exists()
    assert not [event for event in seen.events if event.type.startswith("skill")]


def test_three_servers_that_take_a_second_each_start_at_the_same_time(bed: Bed) -> None:
    seen = Seen()
    slow = [_misbehaving_skill(f"server{number}", "starts-slowly") for number in range(3)]
    assert (
        wait_for(_host(bed, [text("ok")], _expert_with("a", *slow)).run("a", "q", on_event=seen)).status == "completed"
    )
    shown = [event.type for event in seen.events if event.type in ("skillStarting", "skillConnected")]
    assert shown == ["skillStarting"] * 3 + ["skillConnected"] * 3


def test_nothing_of_the_sdk_is_imported_for_an_expert_without_such_a_skill(bed: Bed) -> None:
    code = (
        "import asyncio, sys, perstack\n"
        "from perstack.testing.scripted import ScriptedProvider, text\n"
        "work = perstack.run('a', 'q', overrides=perstack.Overrides(provider='scripted'),"
        " plugins=[ScriptedProvider([text('ok')])])\n"
        "assert asyncio.run(work).text == 'ok'\n"
        "print([name for name in ('mcp', 'httpx2', 'anyio') if name in sys.modules])\n"
    )
    (bed.workspace / "perstack.toml").write_text('[experts.a]\ninstruction = "Say ok."\n')
    paths = os.pathsep.join(path for path in sys.path if path)
    env = {**os.environ, "PYTHONPATH": paths, MARK: bed.mark}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=bed.workspace, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_call_costs_little_more_than_the_servers_own_time(bed: Bed) -> None:
    async def run() -> float:
        async with bed.session(_misbehaving_skill("server")) as session:
            await session.tools()
            took = []
            for _ in range(50):
                began = time.perf_counter()
                await bed.call(session, "echo")
                took.append(time.perf_counter() - began)
            return sorted(took)[25]

    assert wait_for(run()) < 0.05
