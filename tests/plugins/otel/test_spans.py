"""Spans are folded from events: one for each Run, generation and call, the same for everyone who reads the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from perstack.core.base.chain import open_line
from perstack.core.base.ids import job_of_run
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.settings import Limits
from perstack.core.definitions.skills import McpSseSkill, McpStdioSkill
from perstack.core.runs.events import StoredEvent, parse_event
from perstack.core.runs.events.lifecycle import ResumeRun
from perstack.core.runs.facts import ErrorInfo
from perstack.core.runs.start import StartRun
from perstack_otel.attributes import ATTRIBUTES, SPAN_EVENTS
from perstack_otel.spans import (
    MAX_CONTENT_CHARS,
    MAX_EVENTS,
    RunSpans,
    TraceSpan,
    delegation_span_id,
    span_id_of,
    trace_id_of,
)

HISTORIES = Path(__file__).parents[2] / "histories"
RUNS = sorted(path.stem for path in HISTORIES.glob("*.jsonl"))
JOBS = sorted({job_of_run(run_id) for run_id in RUNS})


class Line(NamedTuple):
    event: StoredEvent
    hash: str


def lines_of(run_id: str) -> list[Line]:
    lines = (HISTORIES / f"{run_id}.jsonl").read_bytes().splitlines()
    return [Line(parse_event(sealed.payload), sealed.hash) for sealed in map(open_line, lines)]


def fold(lines: Iterable[Line], *, content: bool = False) -> list[TraceSpan]:
    spans = RunSpans(content=content)
    return [span for line in lines for span in spans.apply(line.event, line.hash)]


def spans_of_job(job_id: str) -> list[TraceSpan]:
    return [span for run_id in RUNS if job_of_run(run_id) == job_id for span in fold(lines_of(run_id))]


def check_names(spans: Iterable[TraceSpan]) -> None:
    """Check that every attribute and span event is in the table, and every required attribute on its span."""
    events = {row.name: set(row.attributes) for row in SPAN_EVENTS}
    for span in spans:
        allowed = {row.name for row in ATTRIBUTES if span.operation in row.on}
        required = {
            row.name
            for row in ATTRIBUTES
            if span.operation in row.on and row.level == "required" and not row.name.startswith("mcp.")
        }
        assert set(span.attributes) <= allowed
        assert required <= set(span.attributes)
        for event in span.events:
            assert set(event.attributes) <= events[event.name]


class Log:
    """A log that a test writes, an event each second."""

    def __init__(self, **start) -> None:
        self.lines: list[Line] = []
        fields = {"query": "q", "model": "m", "provider": "google", "instruction": "i", "limits": Limits()}
        expert = start.pop("expert", Expert(key="a", instruction="i", description="does it"))
        event = StartRun(**self._stamp(), **{**fields, "expert": expert, **start})
        self.lines.append(Line(event, "hash 1"))

    def _stamp(self) -> dict:
        seq = len(self.lines) + 1
        return {
            "id": f"job-1-{seq}", "timestamp": seq * 1_000, "job_id": "job", "run_id": "job-1", "expert_key": "a",
            "step_number": 1,
        }  # fmt: skip

    def add(self, kind: str, **fields) -> Log:
        stamp = {"".join([part if not at else part.title() for at, part in enumerate(name.split("_"))]): value
                 for name, value in self._stamp().items()}  # fmt: skip
        payload = to_json({"type": kind, **stamp, **fields})
        self.lines.append(Line(parse_event(payload), f"hash {len(self.lines) + 1}"))
        return self

    def reply(self, *calls: str, **decided) -> Log:
        parts = [
            {"type": "toolCallPart", "toolCallId": call, "toolName": "search", "args": {"q": "cats"}} for call in calls
        ]
        usage = {"inputTokens": 9, "outputTokens": 2, "totalTokens": 11, "cachedInputTokens": 4, "costUsd": 0.5}
        self.add("startGeneration")
        self.add("finishGeneration", usage=usage, reply=parts, finishReason="toolCalls", durationMs=300)
        return self.add(
            "callTools", calls=[{"id": call, "toolName": "search", "skillName": "web", **decided} for call in calls]
        )

    def result(self, call: str, **fields) -> Log:
        contents = [{"type": "textPart", "text": "found"}]
        return self.add("finishToolCall", toolCallId=call, toolName="search", contents=contents, **fields)

    def finish(self) -> Log:
        return self.add("finishRun", checkpointId="c", text="done", totalUsage={})

    def spans(self, *, content: bool = False) -> list[TraceSpan]:
        spans = fold(self.lines, content=content)
        check_names(spans)
        return spans


def only(spans: Iterable[TraceSpan], operation: str) -> list[TraceSpan]:
    return [span for span in spans if span.operation == operation]


@pytest.mark.parametrize("job_id", JOBS)
def test_a_recorded_job_has_one_span_for_each_thing_that_happened(job_id: str) -> None:
    spans, lines = spans_of_job(job_id), [line for run in RUNS if job_of_run(run) == job_id for line in lines_of(run)]
    check_names(spans)
    types = Counter(line.event.type for line in lines)
    by_id = {span.span_id: span for span in spans}

    assert len(by_id) == len(spans)
    assert {span.trace_id for span in spans} == {trace_id_of(job_id)}
    assert len(only(spans, "invoke_agent")) == types["startRun"] + types["resumeRun"]
    finished = [span for span in only(spans, "chat") if not span.is_error]
    assert len(finished) == types["finishGeneration"]
    ended = [span for span in only(spans, "execute_tool") if "perstack.interrupted" not in span.attributes]
    assert len(ended) == types["finishToolCall"] + types["attemptCompletion"]
    assert all(span.parent_id in by_id for span in spans if span.parent_id)
    roots = [span for span in spans if not span.parent_id]
    assert {span.attributes["perstack.run.id"] for span in roots} == {
        line.event.run_id for line in lines if isinstance(line.event, StartRun) and line.event.delegated_by is None
    }
    assert all(span.start_ms <= span.end_ms for span in spans)


@pytest.mark.parametrize("job_id", JOBS)
def test_tokens_are_on_generations_alone_and_add_up(job_id: str) -> None:
    spans = spans_of_job(job_id)
    lines = [line for run in RUNS if job_of_run(run) == job_id for line in lines_of(run)]
    used = sum(line.event.usage.input_tokens for line in lines if line.event.type == "finishGeneration")

    counted = [span for span in spans if "gen_ai.usage.input_tokens" in span.attributes]

    assert {span.operation for span in counted} == {"chat"}
    assert sum(int(str(span.attributes["gen_ai.usage.input_tokens"])) for span in counted) == used


@given(st.sampled_from(RUNS), st.data())
def test_a_kill_at_any_event_leaves_each_span_once_and_none_out(run_id: str, data: st.DataObject) -> None:
    """A process ends after any event, another resumes the Run: what was returned before stays as it was."""
    lines = lines_of(run_id)
    cut = data.draw(st.integers(1, len(lines) - 1))
    before, last = lines[:cut], lines[cut - 1].event
    stamp = {name: getattr(last, name) for name in ("timestamp", "job_id", "run_id", "expert_key", "step_number")}

    resume = ResumeRun(id=f"{run_id}-resume", **stamp, reason="crash", checkpoint_id=last.id)
    killed = [*before, Line(resume, "another hash"), *lines[cut:]]

    spans = fold(killed)

    check_names(spans)
    assert fold(before) == spans[: len(fold(before))]
    assert len({span.span_id for span in spans}) == len(spans)
    ended = [span for span in spans if "perstack.interrupted" not in span.attributes]
    expected = Counter(line.event.type for line in lines)
    assert len(only(ended, "execute_tool")) == expected["finishToolCall"] + expected["attemptCompletion"]
    assert len([span for span in only(ended, "chat") if not span.is_error]) == expected["finishGeneration"]
    starts = sum(line.event.type in ("startRun", "resumeRun") for line in killed)
    assert len(only(spans, "invoke_agent")) >= starts - 1


def test_a_call_of_an_mcp_server_has_its_attributes_on_the_span_of_the_tool() -> None:
    web, local = McpSseSkill(name="web", endpoint="https://example.com"), McpStdioSkill(name="local", command="x")
    log = Log(expert=Expert(key="a", instruction="i", skills=(web, local))).reply("c1").result("c1", durationMs=500)

    (call,) = only(log.finish().spans(), "execute_tool")

    assert call.name == "execute_tool search"
    assert (call.attributes["mcp.method.name"], call.attributes["network.transport"]) == ("tools/call", "tcp")
    assert (call.start_ms, call.end_ms) == (4_500, 5_000)


def test_a_generation_has_usage_and_names_of_the_conventions() -> None:
    chat, _, run = Log().reply("c1").result("c1").finish().spans()

    assert chat.name == "chat m"
    assert chat.parent_id == run.span_id == span_id_of("job-1", "hash 1")
    assert chat.attributes["gen_ai.provider.name"] == "gcp.gemini"
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("tool_call",)
    assert chat.attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert chat.attributes["perstack.usage.cost_usd"] == 0.5
    assert run.attributes["perstack.run.end"] == "finishRun"
    assert not run.is_error


def test_a_failed_attempt_is_a_span_with_its_error() -> None:
    error = ErrorInfo(name="Overloaded", message="secret words", status_code=529).model_dump(by_alias=True)
    log = Log().add("startGeneration").add("retry", error=error, attempt=1, delayMs=50)

    failed, chat, *_ = log.reply("c1").result("c1").finish().spans()

    assert failed.is_error
    assert (failed.attributes["error.type"], failed.attributes["perstack.generation.delay_ms"]) == ("529", 50)
    assert not chat.is_error
    assert "secret words" not in str(failed)


def test_a_failed_run_names_its_error() -> None:
    error = ErrorInfo(name="Quota", message="used up").model_dump(by_alias=True)

    chat, run = Log().add("startGeneration").add("errorRun", checkpointId="c", error=error).spans()

    assert (chat.attributes["error.type"], run.attributes["error.type"]) == ("Quota", "Quota")
    assert "perstack.interrupted" not in chat.attributes


@pytest.mark.parametrize(("reason", "is_error"), [("interrupt", True), ("rateLimit", False)])
def test_an_interrupt_is_an_error_and_a_pause_for_a_rate_limit_is_none(reason: str, is_error: bool) -> None:
    (run,) = Log().add("stopRunByInterrupt", checkpointId="c", reason=reason).spans()

    assert run.is_error == is_error
    assert ("perstack.interrupted" in run.attributes) == is_error


def test_what_a_kill_left_open_is_closed_by_the_resumption_at_the_last_event_before_it() -> None:
    log = Log().reply("c1").add("resumeRun", reason="crash", checkpointId="c").result("c1", isError=True).finish()

    _, left, first, call, second = log.spans()

    assert (left.operation, left.end_ms, left.attributes["perstack.interrupted"]) == ("execute_tool", 4_000, True)
    assert (first.end_ms, first.attributes["error.type"], first.is_error) == (4_000, "interrupted", True)
    assert (call.parent_id, call.start_ms, call.end_ms) == (second.span_id, 5_000, 6_000)
    assert call.span_id != left.span_id
    assert second.attributes["perstack.run.resumed"] == "crash"


def test_an_approval_says_by_which_rule_who_and_how_long() -> None:
    log = Log().reply("c1", rule="search(*)", asks=True)
    log.add("requestApproval", toolCallId="c1", toolName="search", args={}, callDigest="d", rule="search(*)")
    log.add("stopRunByInteractiveTool", checkpointId="c").add("resumeRun", reason="answer", checkpointId="c")
    by = {"user": "ann", "door": "cli"}
    log.add("decideApproval", toolCallId="c1", callDigest="d", decision="once", by=by)
    log.add("startToolCall", toolCallId="c1", callDigest="d").result("c1").finish()

    _, asking, call, answered = log.spans()

    (request,), (decision,) = asking.events, answered.events
    assert request.attributes["perstack.tool.rule"] == "search(*)"
    assert (decision.attributes["perstack.by"], decision.attributes["perstack.wait.duration_ms"]) == ("ann, cli", 3_000)
    assert call.attributes["perstack.tool.approval"] == "once"
    assert (call.attributes["perstack.tool.decider"], call.attributes["perstack.tool.approved_by"]) == (
        "rules",
        "ann, cli",
    )
    assert (call.start_ms, call.end_ms) == (9_000, 10_000)
    assert not asking.is_error


def test_a_delegate_names_the_span_of_its_call_from_its_own_log() -> None:
    delegation = {"toolCallId": "c1", "toolName": "search", "expertKey": "b", "runId": "job-2", "query": "q"}
    caller = Log().reply("c1", kind="delegate").add("callDelegate", delegates=[delegation])
    caller.add("stopRunByDelegate", checkpointId="c").add("resumeRun", reason="parent", checkpointId="c")
    origin = {"expert_key": "a", "run_id": "job-1", "tool_call_id": "c1", "tool_name": "search"}
    callee = Log(delegated_by=origin)
    callee.lines[0] = Line(callee.lines[0].event.model_copy(update={"run_id": "job-2"}), "hash")

    _, waiting, call, _ = caller.result("c1").finish().spans()
    (run,) = callee.finish().spans()

    assert run.parent_id == call.span_id == delegation_span_id("job-2")
    assert not waiting.is_error
    assert call.end_ms - call.start_ms == 3_000


def test_a_queued_run_begins_a_span_where_a_worker_takes_it() -> None:
    log = Log().add("queueRun", by={"door": "cli"}).add("resumeRun", reason="queued", checkpointId="c").finish()

    queued, run = log.spans()

    assert queued.attributes["perstack.run.end"] == "queueRun"
    assert not queued.is_error
    assert run.attributes["perstack.run.resumed"] == "queued"


def test_content_is_included_only_if_asked_and_cut() -> None:
    log = Log(query="q" * 20_000).reply("c1").result("c1").finish()

    plain, full = log.spans(), log.spans(content=True)

    opt_in = {row.name for row in ATTRIBUTES if row.level == "opt-in"}
    assert not any(opt_in & set(span.attributes) for span in plain)
    assert opt_in == {name for span in full for name in opt_in & set(span.attributes)}
    (query,) = [span.attributes["gen_ai.input.messages"] for span in full if "gen_ai.input.messages" in span.attributes]
    assert MAX_CONTENT_CHARS < len(str(query)) < MAX_CONTENT_CHARS + 100
    assert [span.span_id for span in plain] == [span.span_id for span in full]


def test_events_of_a_span_are_limited_by_choice() -> None:
    log = Log()
    for number in range(MAX_EVENTS + 7):
        log.add("rejectResult", problem="p", text=str(number))

    (run,) = log.finish().spans()

    assert (len(run.events), run.dropped_events) == (MAX_EVENTS, 7)


def test_no_span_has_as_many_attributes_as_the_sdk_keeps() -> None:
    assert all(
        sum(operation in row.on for row in ATTRIBUTES) < 128 for operation in ("invoke_agent", "chat", "execute_tool")
    )
