"""Kinds of Jobs that a recording plays: each has the same events as the one that was recorded."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import OPENED, Bench, Seen, expert, project_of, wait_for
from long_runs import SmallModel
from many_tools import City, mayor
from recording import ANN, NO_SCRIPT, exec_, facts, player
from toolkit_experts import with_kit

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.models import Price
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.settings import Budget, Overrides
from perstack.core.definitions.skills import McpStdioSkill, Skill, ToolSpec
from perstack.core.jobs.summary import JobSummary
from perstack.core.messages.messages import TextPart, UserMessage
from perstack.core.messages.tool_search import SEARCH_TOOL
from perstack.host import Host
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Delta, Generation, GenerationRequest
from perstack.ports.skill import SampleRequest, SkillFactory, SkillSession, ToolCall, ToolResult, Toolset
from perstack.testing.scripted import ScriptedProvider, TurnLike, fail, text, tool, turn
from perstack.toolkit import Blob, Toolkit

CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Sums(SkillFactory, SkillSession):
    """A skill whose tool asks the model."""

    name = "sums"

    def handles(self, definition: Skill) -> bool:
        return isinstance(definition, McpStdioSkill) and definition.name == "sums"

    async def open(self, definition: object, context: object) -> Sums:
        return self

    async def tools(self) -> Toolset:
        return Toolset((ToolSpec(name="sum"),))

    async def call(self, call: ToolCall) -> ToolResult:
        assert call.sample is not None
        query = UserMessage(contents=(TextPart(text="2 + 2?"),))
        return ToolResult.text((await call.sample(SampleRequest((query,), "[[calculator]]"))).reply.text)

    async def close(self) -> None:
        pass

    @hookimpl
    def perstack_skills(self) -> list[Sums]:
        return [self]


def record_job(bench: Bench, host: Host | None = None, job_id: str = "live") -> Path:
    path = bench.workspace / f"{job_id}.json"
    path.write_bytes(wait_for((host or bench.host(NO_SCRIPT)).exports.record(job_id)).to_bytes())
    return path


def again(bench: Bench, *experts: Expert, query: str = "q", **overrides: object) -> tuple[JobSummary, Host]:
    """The Job `live`, played as `again`, with the same events."""
    folder = bench.workspace / "fresh"
    folder.mkdir(exist_ok=True)
    host = player(record_job(bench), folder, bench.storage, *experts, **overrides)
    job = wait_for(host.run("a", query, job_id="again"))
    assert job.error is None, job.error
    played, live = facts(host, "again"), facts(bench.host(NO_SCRIPT), "live")
    same = {
        run: {one.replace("recorded/recorded", "scripted/scripted") for one in each} for run, each in played.items()
    }
    assert [same[run] ^ set(live[run]) for run in live] == [set() for _ in live]
    assert wait_for(host.audit.replay("again")).ok
    return job, host


def test_a_history_that_was_summarised_is_summarised_by_the_recorded_words(bench: Bench) -> None:
    filling = "words that fill the context " * 60

    def reply(request: GenerationRequest) -> TurnLike:
        if request.step == 1:
            return turn(tool("todo", {"newTodos": ["the last thing"]}), usage=(0, 20))
        if request.step > 30:
            return "done"
        return turn(tool("think", {"thought": f"thought {request.step}: {filling}"}), usage=(0, 400))

    own = expert("a", context_window=8_000)
    live = wait_for(bench.host(ScriptedProvider(SmallModel(reply, 8_000)), own).run("a", "q", job_id="live"))
    job, host = again(bench, own)
    assert (job.text, job.usage) == ("done", live.usage)
    events = [line.event for line in wait_for(host.events("again-1"))]
    summaries = [event for event in events if event.type == "compactHistory"]
    assert summaries
    assert all("Notes: it went on." in event.text for event in summaries)  # type: ignore[union-attr]


class CutEarly(ScriptedProvider):
    """An endpoint that cuts a text far below the limit of its request, since the context is full."""

    async def generate(self, request: GenerationRequest, on_delta: Callable[[Delta], None]) -> Generation:
        return replace(await super().generate(request, on_delta), max_tokens=10_000)


@pytest.mark.parametrize("kind", [CutEarly, ScriptedProvider], ids=["not continued", "continued, and cut again"])
def test_a_job_whose_text_was_cut_ends_as_it_did(bench: Bench, kind: type[ScriptedProvider]) -> None:
    turns = [turn(text="half a", usage=(9, 90), finish_reason="length")] * 2
    own = expert("a")
    live = wait_for(bench.host(kind(turns), own).run("a", "q", job_id="live"))
    job = wait_for(player(record_job(bench), bench.workspace, bench.storage, own).run("a", "q", job_id="again"))
    assert (job.status, job.error, job.total_steps) == (live.status, live.error, live.total_steps)
    assert job.status == "stoppedByError"


def test_a_summary_that_is_missing_is_an_error_and_no_outline(bench: Bench) -> None:
    filling = "words that fill the context " * 60

    def reply(request: GenerationRequest) -> TurnLike:
        return turn(tool("think", {"thought": filling * 3}), usage=(0, 1_200)) if request.step < 9 else "done"

    own = expert("a", context_window=8_000)
    wait_for(bench.host(ScriptedProvider(SmallModel(reply, 80_000)), own).run("a", "q", job_id="live"))
    path = record_job(bench)
    document = json.loads(path.read_text())
    replies = document["runs"][0]["replies"]
    assert [one for one in replies if one.get("kind") == "summary"]
    document["runs"][0]["replies"] = [one for one in replies if one.get("kind") != "summary"]
    path.write_text(json.dumps(document))
    job = wait_for(player(path, bench.workspace, bench.storage, own).run("a", "q"))
    assert "has no summary in" in (job.error or "")


def test_a_result_that_was_corrected_is_corrected_again(bench: Bench) -> None:
    own = expert("a", output=CITY)
    script = [text('{"name": "Ulm"}'), text('{"name": "Ulm", "people": 128000}')]
    wait_for(bench.host(script, own).run("a", "q", job_id="live"))
    assert again(bench, own)[0].result == {"name": "Ulm", "people": 128000}


def test_a_schema_that_was_changed_since_is_seen(bench: Bench) -> None:
    wait_for(bench.host([text('{"name": "Ulm", "people": 3}')], expert("a", output=CITY)).run("a", "q", job_id="live"))
    strict = {**CITY, "required": ["name", "people", "river"]}
    host = player(record_job(bench), bench.workspace, bench.storage, expert("a", output=strict))
    job = wait_for(host.run("a", "q"))
    assert job.error is not None
    assert "step 2 of a has no reply in" in job.error


def test_what_another_model_stood_in_for_is_played_as_what_counted(bench: Bench) -> None:
    first = ScriptedProvider([turn(text="I will not.", finish_reason="refusal", repeat=True)])
    second = ScriptedProvider([fail(500), turn(tool("todo"), usage=(3, 4)), text("Second did it.")])
    first.name, second.name = "first", "second"
    host = Host(
        project_of(expert("a", model=("first/a", "second/b"))),
        workspace=bench.workspace,
        storage=bench.storage,
        env={"PATH": "/usr/bin:/bin"},
        overrides=Overrides(max_retries=2),
        plugins=[first, second],
    )
    OPENED.append(host)
    assert wait_for(host.run("a", "q", job_id="live")).text == "Second did it."
    path = record_job(bench, host)
    assert "I will not" not in path.read_text()
    played = player(path, bench.workspace, bench.storage, expert("a", model=("first/a", "second/b")))
    assert wait_for(played.run("a", "q")).text == "Second did it."


def test_delegates_with_the_same_query_have_each_its_own_part(bench: Bench) -> None:
    boss, hand = expert("a", delegates=("hand",)), expert("hand")

    def reply(request: GenerationRequest) -> TurnLike:
        number = int(request.run_id.rpartition("-")[2])
        if request.expert_key == "hand":
            return f"I am {number}."
        calls = turn(tool("hand", {"query": "same"}), tool("hand", {"query": "same"}))
        return calls if request.step < 3 else "".join(str(request.step))

    wait_for(bench.host(ScriptedProvider(reply), boss, hand).run("a", "q", job_id="live"))
    again(bench, boss, hand)


def test_a_conversation_is_played_query_by_query(bench: Bench) -> None:
    script = [text("One."), text("Two."), text("Two again.")]
    live = bench.host(script, expert("a"))
    for query in ("first", "second", "second"):
        work = live.continue_job("a", query, job_id="live") if query != "first" else live.run("a", query, job_id="live")
        wait_for(work)
    host = player(record_job(bench), bench.workspace, bench.storage, expert("a"))
    assert wait_for(host.run("a", "first", job_id="again")).text == "One."
    assert wait_for(host.continue_job("a", "second", job_id="again")).text == "Two."
    assert wait_for(host.continue_job("a", "second", job_id="again")).text == "Two again."
    assert "once more" in (wait_for(host.continue_job("a", "second", job_id="again")).error or "")


def test_an_image_that_a_tool_gave_is_in_the_recording_and_in_the_played_job(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool()
    async def draw() -> Blob:
        """Draws."""
        return Blob(PNG, "image/png", "dot.png")

    own = with_kit()
    wait_for(bench.host([tool("draw"), text("drawn")], own, plugins=(kit,)).run("a", "q", job_id="live"))
    host = again(bench, own)[1]
    blob = next(part for line in wait_for(host.events("again-1")) for part in getattr(line.event, "contents", ()))
    assert wait_for(host.storage.blob("again", blob.sha256)) == PNG
    assert wait_for(host.audit.verify("again")).ok


def test_a_tool_that_was_found_by_a_search_is_called_again_without_its_server(bench: Bench) -> None:
    script = [tool(SEARCH_TOOL, {"query": "delete museum"}), tool("deleteMuseum9"), text("ok")]
    wait_for(bench.host(script, mayor(), plugins=(City(),)).run("a", "q", job_id="live"))
    again(bench, mayor())


@pytest.mark.parametrize("said", ["no: not today", "always", "yes"])
def test_what_a_person_decided_is_decided_again(bench: Bench, said: str) -> None:
    own = expert("a", permissions=Permissions(ask=("exec",)))
    script = [tool("exec", exec_("echo", "1")), tool("exec", exec_("echo", "1")), text("ok")]

    async def live() -> None:
        host = bench.host(script, own)
        job = await host.run("a", "q", job_id="live")
        while job.asking is not None:
            job = await host.answer(said, question_id=job.asking.id, by=ANN)

    wait_for(live())
    again(bench, own)


def test_an_approval_that_was_not_asked_then_stops_the_job(bench: Bench) -> None:
    wait_for(bench.host([tool("exec", exec_("echo", "1")), text("ok")], expert("a")).run("a", "q", job_id="live"))
    own = expert("a", permissions=Permissions(ask=("exec",)))
    host = player(record_job(bench), bench.workspace, bench.storage, own)
    job = wait_for(host.run("a", "q"))
    assert (job.status, job.pause_reason) == ("stoppedByInteractiveTool", "human_approval")


def test_what_it_cost_then_is_what_it_costs_and_a_budget_in_dollars_holds(bench: Bench) -> None:
    priced = (Price(name="scripted/scripted", input=1, output=10),)
    script = [turn(tool("todo"), usage=(1_000, 100)), turn(tool("todo"), usage=(1_000, 100)), text("ok")]
    live = wait_for(bench.host(script, expert("a"), prices=priced).run("a", "q", job_id="live"))
    assert live.cost_usd == pytest.approx(0.004)
    path = record_job(bench)
    played = wait_for(player(path, bench.workspace, bench.storage, expert("a")).run("a", "q"))
    assert played.usage == live.usage
    poor = expert("a", budget=Budget(max_cost=0.001))
    stopped = wait_for(player(path, bench.workspace, bench.storage, poor).run("a", "q"))
    assert stopped.status == "stoppedByBudget"


def test_a_call_that_fails_beside_the_end_of_the_work_is_seen_too(bench: Bench) -> None:
    last = turn(tool("exec", exec_("echo", "1")), tool("attemptCompletion", {"result": "All done."}))
    wait_for(bench.host([last], expert("a")).run("a", "q", job_id="live"))
    denied = expert("a", permissions=Permissions(deny=("exec",)))
    job = wait_for(player(record_job(bench), bench.workspace, bench.storage, denied).run("a", "q"))
    assert job.status == "stoppedByError"
    assert "exec(command=echo" in (job.error or "")


def test_a_generation_that_a_live_tool_asks_for_is_named(bench: Bench) -> None:
    skill = McpStdioSkill(name="sums", command="x", sampling=True)
    own = expert("a").model_copy(update={"skills": (skill,)})
    script = {"[[a]]": [tool("sum"), text("four")], "[[calculator]]": [text("4")]}
    wait_for(bench.host(script, own, plugins=(Sums(),)).run("a", "q", job_id="live"))
    seen = Seen()
    host = Host(
        project_of(own),
        workspace=bench.workspace,
        storage=bench.storage,
        env={},
        overrides=Overrides(recording=str(record_job(bench)), recorded_tools={"sum": "live"}),
        plugins=[Sums()],
    )
    OPENED.append(host)
    job = wait_for(host.run("a", "q", on_event=seen))
    assert "asks the model for a generation in step 1" in (job.error or "")
