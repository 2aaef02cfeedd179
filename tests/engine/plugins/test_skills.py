"""Skills from plugins, as used by the loop."""

from __future__ import annotations

import asyncio

import pytest
from hosts import Bench, Seen, expert, results, wait_for

from perstack.core.definitions.skills import McpStdioSkill, PluginSkill, ToolSpec
from perstack.engine.plugins import job_skills
from perstack.errors import SkillError
from perstack.ports.hooks import hookimpl
from perstack.ports.skill import SkillContext, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

THREE = Toolset((ToolSpec(name="count"), ToolSpec(name="break"), ToolSpec(name="think")), "Count from one.")

RENAMED = "tools are offered under other names, because their own are in use: think as mine_think"


class Counter(SkillFactory, SkillSession):
    """A skill that counts how often it was opened, and has guidance for the model."""

    name = "counter"

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    def handles(self, definition) -> bool:
        return isinstance(definition, PluginSkill) and definition.plugin == "counter"

    async def open(self, definition, context: SkillContext) -> SkillSession:
        self.opened += 1
        context.on_stderr("counting")
        return self

    async def tools(self) -> Toolset:
        return THREE

    async def call(self, call: ToolCall) -> ToolResult:
        if call.tool_name == "break":
            raise RuntimeError("a fault in the plugin")
        call.on_progress("half way")
        return ToolResult.text(f"{call.tool_name} {call.key}")

    async def close(self) -> None:
        self.closed += 1

    @hookimpl
    def perstack_skills(self):
        return [self]


def with_counter(key: str, **fields):
    return expert(key, **fields).model_copy(update={"skills": (PluginSkill(name="mine", plugin="counter"),)})


def test_a_skill_is_opened_once_for_a_job_shown_and_closed(bench: Bench) -> None:
    counter, seen = Counter(), Seen()
    script = {
        "[[a]]": [turn(tool("count"), tool("b", {"query": "x"})), text("ok")],
        "[[b]]": [tool("count"), text("b")],
    }
    experts = (with_counter("a", delegates=("b",)), with_counter("b"))
    job = wait_for(bench.host(script, *experts, plugins=(counter,)).run("a", "q", job_id="job", on_event=seen))
    assert (job.status, counter.opened, counter.closed) == ("completed", 1, 1)
    assert results(seen, "count") == ["count job-1-1-call_0_0", "count job-2-1-call_0_0"]
    shown = [event.type for event in seen.events if event.type.startswith("skill")]
    assert shown == ["skillStarting", "skillStderr", "skillConnected", "skillStderr", "skillDisconnected"]
    assert [event.message for event in seen.of("skillStderr")] == ["counting", RENAMED]
    assert [event.message for event in seen.of("toolProgress")] == ["half way", "half way"]


def test_a_fault_in_a_skills_code_goes_back_to_the_model(bench: Bench) -> None:
    seen = Seen()
    host = bench.host([tool("break"), text("noted")], with_counter("a"), plugins=(Counter(),))
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    assert results(seen) == ["RuntimeError: a fault in the plugin"]


def test_a_base_tool_keeps_its_name_and_another_skills_tool_of_that_name_gets_a_prefix(bench: Bench) -> None:
    provider, seen = ScriptedProvider([text("ok")]), Seen()
    wait_for(bench.host(provider, with_counter("a"), plugins=(Counter(),)).run("a", "q", on_event=seen))
    skills = {spec.name: spec.skill_name for spec in provider.requests[0].tools}
    assert (skills["think"], skills["mine_think"], skills["count"]) == ("@perstack/base", "mine", "mine")
    assert len(skills) == len(provider.requests[0].tools)
    assert RENAMED in [event.message for event in seen.of("skillStderr")]


def test_pick_and_omit_are_globs(bench: Bench) -> None:
    provider = ScriptedProvider([text("ok")])
    skill = PluginSkill(name="mine", plugin="counter", pick=("c*", "b*"), omit=("br*",))
    picky = expert("a").model_copy(update={"skills": (skill,)})
    wait_for(bench.host(provider, picky, plugins=(Counter(),)).run("a", "q"))
    assert [spec.name for spec in provider.requests[0].tools if spec.skill_name == "mine"] == ["count"]


class Stubborn(Counter):
    """A skill that works, but fails to close."""

    async def close(self) -> None:
        raise SkillError("the server did not end within 5 s")


def test_a_skill_that_fails_to_end_is_shown_and_the_result_stays(bench: Bench) -> None:
    seen = Seen()
    host = bench.host([tool("count"), text("ok")], with_counter("a"), plugins=(Stubborn(),))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "ok")
    assert [event.reason for event in seen.of("skillDisconnected")] == [
        "skill 'mine' did not end cleanly: the server did not end within 5 s"
    ]
    assert wait_for(host.job(job.id)).text == "ok"


class Endless(Counter):
    """A skill that works, but never closes."""

    async def close(self) -> None:
        await asyncio.Event().wait()


def test_a_skill_that_never_ends_keeps_no_job_and_no_cancellation_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_skills, "CLOSE_TIMEOUT_S", 0.05)

    async def work() -> list[str]:
        seen = Seen()
        script = [tool("count"), turn(text="late", delay_ms=60_000)]
        host = bench.host(script, with_counter("a"), plugins=(Endless(),))
        task = asyncio.create_task(host.run("a", "q", job_id="job", on_event=seen))
        async with asyncio.timeout(10):
            while len(seen.of("startGeneration")) < 2:
                await asyncio.sleep(0.01)
            await host.cancel("job")
        assert task.cancelled()
        assert (await host.job("job")).status == "stoppedByInterrupt"
        return [event.reason for event in seen.of("skillDisconnected")]

    assert wait_for(work()) == ["skill 'mine' did not end cleanly: it took more than 0.05 s"]


class Unreachable(Counter):
    """A skill that opens, but cannot list its tools."""

    async def tools(self) -> Toolset:
        raise SkillError("skill 'mine' could not be connected to: nobody answers")


def test_a_skill_that_cannot_be_reached_is_left_out_and_the_run_goes_on(bench: Bench) -> None:
    skill, seen = Unreachable(), Seen()
    provider = ScriptedProvider([tool("count"), text("without it")])
    host = bench.host(provider, with_counter("a"), plugins=(skill,))
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    told = "The tools of skill mine are not there: skill 'mine' could not be connected to: nobody answers"
    assert all(request.instruction.endswith(told) for request in provider.requests), "the model need not find out"
    assert [event.guidance for event in seen.of("startGeneration")] == [told, None], "and it stands in the log"
    assert skill.closed == 1
    assert [event.reason for event in seen.of("skillDisconnected")] == [
        "skill 'mine' could not be connected to: nobody answers"
    ]
    assert results(seen)[0].endswith("Not there now: skill 'mine' could not be connected to: nobody answers."), (
        "a model that calls its tool is told why there is none"
    )


class Meeting(Counter):
    """A skill that lists its tools only once two instances were asked for them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.both = asyncio.Event()

    async def tools(self) -> Toolset:
        self.asked += 1
        if self.asked == 2:
            self.both.set()
        await self.both.wait()
        return await super().tools()


def test_the_skills_of_a_run_are_opened_at_the_same_time(bench: Bench) -> None:
    skills = tuple(PluginSkill(name=name, plugin="counter") for name in ("one", "two"))
    experts = expert("a").model_copy(update={"skills": skills})
    assert wait_for(bench.host([text("ok")], experts, plugins=(Meeting(),)).run("a", "q")).status == "completed"


class Growing(Counter):
    """A skill that offers one more tool from the second step on."""

    def __init__(self) -> None:
        super().__init__()
        self.toolset = THREE

    async def tools(self) -> Toolset:
        return self.toolset

    async def call(self, call: ToolCall) -> ToolResult:
        self.toolset = Toolset((*THREE.specs, ToolSpec(name="more")), "Now there is more.")
        return ToolResult.text("grown")


def test_what_a_skill_offers_may_change_while_a_run_goes_on(bench: Bench) -> None:
    provider, seen = ScriptedProvider([tool("count"), tool("more"), text("ok")]), Seen()
    wait_for(bench.host(provider, with_counter("a"), plugins=(Growing(),)).run("a", "q", on_event=seen))
    offered = [{spec.name for spec in request.tools} for request in provider.requests]
    assert ["more" in names for names in offered] == [False, True, True]
    assert results(seen) == ["grown", "grown"]
    guidance = [event.guidance for event in seen.of("startGeneration")]
    mine = "What skill mine says of its tools:\n"
    assert guidance == [f"{mine}Count from one.", None, None], "other instructions need a new Job"
    assert provider.requests[2].instruction.endswith("Count from one.")
    notices = [event.message for event in seen.of("skillStderr")]
    assert "its instructions changed, the new ones are not shown to the model" in notices[-1]


class Slow(Counter):
    """A skill that becomes ready only when the other skill's tool is called."""

    name = "slow"

    def __init__(self, go: asyncio.Event) -> None:
        super().__init__()
        self.go = go

    def handles(self, definition) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "slow"

    async def tools(self) -> Toolset:
        await self.go.wait()
        return Toolset((ToolSpec(name="late"),))


class Waker(Counter):
    """A skill whose tool makes the slow skill ready, and returns once it is."""

    def __init__(self, go: asyncio.Event, is_up: asyncio.Event) -> None:
        super().__init__()
        self.go, self.is_up = go, is_up

    async def call(self, call: ToolCall) -> ToolResult:
        self.go.set()
        await self.is_up.wait()
        return ToolResult.text("it is up")


def test_a_lazy_skill_is_not_waited_for_and_joins_when_it_is_up(bench: Bench) -> None:
    go, is_up = asyncio.Event(), asyncio.Event()
    lazy = McpStdioSkill(name="slow", command="x", lazy_init=True)
    one = expert("a").model_copy(update={"skills": (lazy, PluginSkill(name="mine", plugin="counter"))})
    provider = ScriptedProvider([tool("late"), tool("count"), tool("late"), text("ok")])

    def on_event(event, line) -> None:
        seen(event, line)
        if event.type == "skillConnected" and event.skill_name == "slow":
            is_up.set()

    seen = Seen()
    host = bench.host(provider, one, plugins=(Slow(go), Waker(go, is_up)))
    assert wait_for(host.run("a", "q", on_event=on_event)).status == "completed"
    assert ["late" in {spec.name for spec in request.tools} for request in provider.requests] == [
        False,
        False,
        True,
        True,
    ]
    assert results(seen)[0].endswith("Not there now: skill 'slow' is being connected to.")
    assert results(seen)[2].startswith("late ")
