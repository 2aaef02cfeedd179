"""Default limits of a Job whose definition sets none; they protect whoever pays."""

from __future__ import annotations

import pytest
from hosts import Bench, Seen, expert, results, wait_for

from perstack.core.messages.messages import TextPart, ToolMessage
from perstack.ports.provider import GenerationRequest
from perstack.testing.scripted import ScriptedProvider, TurnLike, text, tool, turn
from perstack.toolkit import Toolkit


def always_something_new(request: GenerationRequest) -> TurnLike:
    return tool("think", {"thought": f"thought {len(request.messages)}"})


def test_without_a_limit_a_job_has_a_hundred_steps_and_each_query_after_it_a_hundred_more(bench: Bench) -> None:
    seen = Seen()
    job = wait_for(bench.host(always_something_new, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.total_steps, job.max_steps) == ("stoppedByMaxSteps", 100, 100)
    (start,) = seen.of("startRun")
    assert (start.limits.max_steps, start.limits.max_depth, start.limits.max_repeats) == (100, 8, 10)
    more = wait_for(bench.host(always_something_new, expert("a")).continue_job("a", "go on", job_id=job.id))
    assert (more.status, more.total_steps, more.max_steps) == ("stoppedByMaxSteps", 200, 200)


def test_a_limit_of_zero_steps_is_none_for_a_new_job_and_for_one_that_is_resumed(bench: Bench) -> None:
    def talks_until(steps: int) -> ScriptedProvider:
        return ScriptedProvider(
            lambda request: always_something_new(request) if len(request.messages) < 2 * steps else text("done")
        )

    seen = Seen()
    job = wait_for(bench.host(talks_until(110), expert("a"), max_steps=0).run("a", "q", on_event=seen))
    assert (job.status, job.total_steps, job.max_steps) == ("completed", 111, None)
    assert "maxSteps" in seen.of("startRun")[0].overrides
    stopped = wait_for(bench.host(talks_until(110), expert("a")).run("a", "q"))
    assert stopped.status == "stoppedByMaxSteps"
    done = wait_for(bench.host(talks_until(110), expert("a")).resume(stopped.id, max_steps=0))
    assert (done.status, done.total_steps) == ("completed", 111)


def test_delegates_end_eight_below_the_coordinator_and_the_last_one_is_told_to_do_the_work_itself(bench: Bench) -> None:
    def delegates_on(request: GenerationRequest) -> TurnLike:
        last = request.messages[-1]
        return text("done") if isinstance(last, ToolMessage) else tool("a", {"query": "go"})

    seen = Seen()
    host = bench.host(delegates_on, expert("a", delegates=("a",)))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, len(job.runs)) == ("completed", 9)
    assert [start.depth for start in seen.of("startRun")] == list(range(9))
    assert "8 delegates one below the other" in results(seen, "a")[0]
    assert [event.is_error for event in seen.of("finishToolCall")] == [True, *[False] * 8]
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_the_depth_may_be_set_and_lifted(bench: Bench) -> None:
    depth = 0

    def twelve_deep(request: GenerationRequest) -> TurnLike:
        nonlocal depth
        if isinstance(request.messages[-1], ToolMessage) or depth == 12:
            return text("done")
        depth += 1
        return tool("a", {"query": "go"})

    one = expert("a", delegates=("a",), max_depth=0)
    assert len(wait_for(bench.host(twelve_deep, one).run("a", "q")).runs) == 13
    depth = 0
    one = expert("a", delegates=("a",), max_depth=1)
    assert len(wait_for(bench.host(twelve_deep, one).run("a", "q")).runs) == 2


# --- repetition ---------------------------------------------------------------------------------------------------


def last_text(request: GenerationRequest) -> str:
    last = request.messages[-1]
    assert isinstance(last, ToolMessage)
    return "\n".join(part.text for part in last.contents[-1].contents if isinstance(part, TextPart))


def test_the_fifth_repetition_is_pointed_out_to_the_model_and_the_tenth_fails_the_run(bench: Bench) -> None:
    provider, seen = ScriptedProvider([turn(tool("think", {"thought": "hm"}), repeat=True)]), Seen()
    host = bench.host(provider, expert("a"))
    job = wait_for(host.run("a", "q", on_event=seen))
    assert (job.status, job.total_steps) == ("stoppedByError", 10)
    (failed,) = seen.of("errorRun")
    assert failed.error.name == "RepeatedCall"
    assert failed.error.message.startswith("think had the same arguments and the same result 10 times in a row")
    warned = [event.step_number for event in seen.of("finishToolCall") if event.warning]
    assert warned == [5]
    told = ["5 times in a row" in last_text(request) for request in provider.requests[1:]]
    assert told == [False] * 4 + [True] + [False] * 4
    assert wait_for(host.audit.replay(job.id)).findings == ()


def test_a_run_that_failed_of_repetition_is_resumed_and_may_repeat_itself_as_often_again(bench: Bench) -> None:
    script = [turn(tool("think", {"thought": "hm"}), repeat=14), text("done")]
    host = bench.host(script, expert("a"))
    job = wait_for(host.run("a", "q"))
    assert job.status == "stoppedByError"
    done = wait_for(host.resume(job.id))
    assert (done.status, done.total_steps, done.text) == ("completed", 15, "done")
    assert wait_for(host.audit.replay(job.id)).findings == ()


@pytest.mark.parametrize(
    "step",
    [
        lambda n: tool("think", {"thought": f"{n}"}),
        lambda n: turn(tool("think", {"thought": "hm"}), *[tool("healthCheck")] * (n % 2)),
        lambda n: tool("writeTextFile" if n % 4 else "think", {"path": "a", "text": "x", "thought": "t"}),
    ],
    ids=["other arguments", "a call more", "another call in between"],
)
def test_what_is_not_the_same_in_a_row_is_no_repetition(bench: Bench, step) -> None:
    script, seen = [*(step(n) for n in range(15)), text("done")], Seen()
    job = wait_for(bench.host(script, expert("a")).run("a", "q", on_event=seen))
    assert job.status == "completed"
    assert not [event for event in seen.of("finishToolCall") if event.warning]


def test_the_same_call_many_times_in_one_reply_is_asked_for_once(bench: Bench) -> None:
    calls = [tool("think", {"thought": "hm"}, id=f"c{n}") for n in range(12)]
    assert wait_for(bench.host([turn(*calls), text("done")], expert("a")).run("a", "q")).status == "completed"


def test_several_calls_that_are_repeated_together_are_a_loop_too(bench: Bench) -> None:
    seen = Seen()
    script = [turn(tool("think", {"thought": "a"}), tool("todo", {}), tool("nonsense", {}), repeat=True)]
    job = wait_for(bench.host(script, expert("a")).run("a", "q", on_event=seen))
    assert (job.status, job.total_steps) == ("stoppedByError", 10)
    assert "think, todo, nonsense" in (job.error or "")
    assert len([event for event in seen.of("finishToolCall") if event.warning]) == 1


def test_a_delegate_that_repeats_itself_fails_and_its_parent_goes_on(bench: Bench) -> None:
    script = {
        "[[boss]]": [tool("helper", {"query": "go"}), text("without it")],
        "[[helper]]": [turn(tool("think", {"thought": "hm"}), repeat=True)],
    }
    seen = Seen()
    host = bench.host(script, expert("boss", delegates=("helper",)), expert("helper"))
    job = wait_for(host.run("boss", "q", on_event=seen))
    assert (job.status, job.text) == ("completed", "without it")
    assert results(seen, "helper")[0].startswith("Delegation failed: think had the same arguments")


kit = Toolkit("waiting")


@kit.tool(effect="readOnly", polling=True)
async def is_done() -> str:
    """Whether it is done."""
    return "not yet"


@kit.tool(effect="readOnly")
async def is_ready() -> str:
    """Whether it is ready."""
    return "not yet"


@pytest.mark.parametrize(
    ("name", "fields", "status"),
    [
        ("is_done", {}, "completed"),
        ("is_ready", {}, "stoppedByError"),
        ("is_ready", {"polling": True}, "completed"),
    ],
)
def test_tools_that_wait_are_called_as_often_as_it_takes(bench: Bench, name: str, fields: dict, status: str) -> None:
    from perstack.core.definitions.skills import PluginSkill

    one = expert("a").model_copy(update={"skills": (PluginSkill(name="s", plugin="waiting", **fields),)})
    host = bench.host([turn(tool(name, {}), repeat=15), text("done")], one, plugins=(kit,))
    assert wait_for(host.run("a", "q")).status == status


def test_a_tool_of_the_base_skill_that_is_made_for_waiting_is_no_loop(bench: Bench) -> None:
    script = [turn(tool("healthCheck", {}), repeat=15), text("done")]
    assert wait_for(bench.host(script, expert("a")).run("a", "q")).status == "completed"


@pytest.mark.parametrize(("most", "status", "steps"), [(0, "completed", 15), (2, "stoppedByError", 2)])
def test_how_often_a_step_may_be_repeated_is_a_setting(bench: Bench, most: int, status: str, steps: int) -> None:
    script = [turn(tool("think", {"thought": "hm"}), repeat=14), text("done")]
    job = wait_for(bench.host(script, expert("a", max_repeats=most)).run("a", "q"))
    assert (job.status, job.total_steps) == (status, steps)
