"""The state computed from a Job's events, of which each door shows a part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from perstack.core.base.ids import By
from perstack.core.base.usage import NO_USAGE
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import TextPart, ToolCallPart
from perstack.core.runs.display_events import InitializeRuntime, StreamText, ToolProgress
from perstack.core.runs.events import Event
from perstack.core.runs.events.generations import FinishGeneration, StartGeneration
from perstack.core.runs.events.lifecycle import ErrorRun, FinishRun, ResumeRun, StopRunByInterrupt
from perstack.core.runs.events.questions import DecideApproval, RequestApproval
from perstack.core.runs.events.tool_calls import (
    CallDelegate,
    CallTools,
    FinishToolCall,
    StartToolCall,
    StopRunByDelegate,
)
from perstack.core.runs.facts import DelegateHead, Delegation, ErrorInfo
from perstack.doors.shared.activity import CallActivity, JobActivity, RunActivity


class Place(TypedDict):
    id: str
    timestamp: int
    job_id: str
    run_id: str
    expert_key: str
    step_number: int


def place_at(timestamp: int, run_id: str = "job-1") -> Place:
    expert = "lead" if run_id == "job-1" else "helper"
    return Place(
        id=f"{run_id}-{timestamp}", timestamp=timestamp, job_id="job", run_id=run_id, expert_key=expert, step_number=1
    )


CALLS = (
    ToolCallPart(tool_call_id="a", tool_name="readTextFile", args={"path": "a.txt"}),
    ToolCallPart(tool_call_id="b", tool_name="exec", args={"command": "ls"}),
)
REPLY = FinishGeneration(
    **place_at(2), usage=NO_USAGE, reply=(TextPart(text="I look."), *CALLS), finish_reason="toolCalls"
)
DECIDED = CallTools(
    **place_at(3),
    calls=(DecidedCall(id="a", tool_name="readTextFile"), DecidedCall(id="b", tool_name="exec", asks=True)),
)


def activity(events: Iterable[Event]) -> JobActivity:
    found = JobActivity()
    for event in events:
        found.apply(event)
    return found


def run(found: JobActivity, run_id: str = "job-1") -> RunActivity:
    one = found.run(run_id)
    assert one is not None
    return one


def calls(found: JobActivity) -> tuple[CallActivity, CallActivity]:
    known = run(found).calls
    return known["a"], known["b"]


def test_a_call_runs_from_its_decision_to_its_result_and_shows_its_progress() -> None:
    found = activity([StartGeneration(**place_at(1)), REPLY, DECIDED])
    read, _ = calls(found)
    assert (read.began, read.words, [*run(found).work]) == (3, "a.txt", ["a"])
    found.apply(ToolProgress(**place_at(4), tool_call_id="a", tool_name="readTextFile", message="half"))
    assert (read.progress, run(found).last_text) == ("half", "I look.")
    result = (TextPart(text="text"),)
    found.apply(
        FinishToolCall(**place_at(5), tool_call_id="a", tool_name="readTextFile", contents=result, duration_ms=2)
    )
    assert (read.began, read.result, read.is_error, read.took_ms, run(found).work) == (None, "text", False, 2, {})


def test_a_call_that_a_rule_asks_about_waits_and_runs_once_it_is_approved() -> None:
    asks = RequestApproval(**place_at(4), tool_call_id="b", tool_name="exec", args={}, call_digest="d", rule="exec")
    found = activity([REPLY, DECIDED, asks])
    _, program = calls(found)
    assert (program.began, program.rule) == (None, "exec")
    found.apply(DecideApproval(**place_at(5), tool_call_id="b", call_digest="d", decision="once", by=By(door="cli")))
    assert (program.began, program.rule) == (None, None)
    found.apply(StartToolCall(**place_at(6), tool_call_id="b", call_digest="d"))
    assert (program.began, [*run(found).work]) == (6, ["a", "b"])


def test_a_call_of_a_reply_before_the_first_event_is_shown_by_the_name_of_its_tool() -> None:
    found = activity([ResumeRun(**place_at(2), reason="crash", checkpoint_id="job-1-1"), DECIDED])
    assert [(call.name, call.words) for call in run(found).work.values()] == [("readTextFile", "")]


def test_a_stop_interrupts_the_calls_that_run_and_discards_what_was_streamed() -> None:
    found = activity([REPLY, DECIDED, StreamText(**place_at(4), delta="Once")])
    assert run(found).text == "Once"
    found.apply(StopRunByInterrupt(**place_at(5), checkpoint_id="job-1-5"))
    read, program = calls(found)
    assert (read.is_interrupted, program.is_interrupted, run(found).text) == (True, False, "")
    assert (run(found).state, found.lanes) == ("stopped", {})


def test_a_delegate_is_known_from_its_call_to_its_result() -> None:
    one = Delegation(tool_call_id="a", tool_name="helper", expert_key="helper", run_id="job-2", query="look")
    found = activity(
        [REPLY, CallDelegate(**place_at(4), delegates=(one,)), StopRunByDelegate(**place_at(5), checkpoint_id="c")]
    )
    helper = run(found, "job-2")
    assert (helper.label, helper.query, helper.state, found.is_delegate("job-2")) == (
        "helper#2", "look", "working", True
    )  # fmt: skip
    found.apply(StartGeneration(**place_at(6, "job-2")))
    found.apply(FinishRun(**place_at(7, "job-2"), checkpoint_id="c", text="done", total_usage=NO_USAGE))
    assert (helper.steps, helper.state, helper.ended, [*found.lanes]) == (1, "completed", 7, ["job-1"])
    head = DelegateHead(run_id="job-2", seq=3, hash="h")
    found.apply(
        FinishToolCall(**place_at(8), tool_call_id="a", tool_name="helper", contents=(), delegate=head, is_error=True)
    )
    assert (helper.state, helper.ended) == ("failed", 7)


def test_the_coordinator_is_the_run_that_the_host_names_or_the_first() -> None:
    error = ErrorInfo(name="Overloaded", message="busy")
    first = activity([StartGeneration(**place_at(1)), ErrorRun(**place_at(2, "job-2"), checkpoint_id="c", error=error)])
    assert (first.is_delegate("job-1"), first.is_delegate("job-2")) == (False, True)
    begins = InitializeRuntime(
        id="i",
        timestamp=0,
        job_id="job",
        run_id="job-1",
        runtime_version="",
        expert_key="lead",
        model="m",
        provider="p",
    )
    named = activity([begins, StartGeneration(**place_at(1, "job-2")), StartGeneration(**place_at(2))])
    assert (named.is_delegate("job-1"), named.is_delegate("job-2")) == (False, True)
