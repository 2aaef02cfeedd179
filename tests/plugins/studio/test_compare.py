"""Two Jobs or branches beside each other, and where they stop being equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
from studio_server import serving_studio
from terminal import TEAM, Terminal, reply

from perstack.core.base.ids import By
from perstack.core.base.usage import Usage
from perstack.core.definitions.skills import DecidedCall
from perstack.core.messages.messages import TextPart, ThinkingPart, ToolCallPart
from perstack.core.runs.events import (
    CallTools,
    FinishGeneration,
    FinishRun,
    FinishStep,
    FinishToolCall,
    Retry,
    StartGeneration,
    StoredEvent,
)
from perstack.core.runs.facts import DelegateHead, ErrorInfo
from perstack_studio.divergence import Course, Divergence, diff_of_texts, first_divergence, place_in_log

HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"


class Told:
    """The events of a Run, as they are added."""

    def __init__(self, job_id: str, run: int = 1, clock: int = 0) -> None:
        self.job_id = job_id
        self.run_id = f"{job_id}-{run}"
        self.clock = clock
        self.step = 0
        self.events: list[StoredEvent] = []

    def _stamp(self) -> dict[str, Any]:
        seq = len(self.events) + 1
        base = {"id": f"{self.run_id}-{seq}", "timestamp": self.clock + seq, "job_id": self.job_id}
        return {**base, "run_id": self.run_id, "expert_key": "lead", "step_number": self.step}

    def says(self, *parts: Any, **fields: Any) -> Told:
        self.step += 1
        self.events.append(StartGeneration(**self._stamp()))
        usage = Usage(input_tokens=self.clock, total_tokens=self.clock)
        reason = "toolCalls" if any(isinstance(part, ToolCallPart) for part in parts) else "stop"
        event = FinishGeneration(**self._stamp(), usage=usage, reply=parts, finish_reason=reason, **fields)
        self.events.append(event)
        return self

    def calls(self, *ids: str) -> Told:
        decided = tuple(DecidedCall(id=one, tool_name="read", skill_name="base") for one in ids)
        self.events.append(CallTools(**self._stamp(), calls=decided))
        return self

    def results(self, call_id: str, text: str, delegate: str = "") -> Told:
        head = DelegateHead(run_id=delegate, seq=1, hash=self.job_id * 10) if delegate else None
        content = (TextPart(text=text),)
        by = By(user=self.job_id)
        self.events.append(
            FinishToolCall(
                **self._stamp(), tool_call_id=call_id, tool_name="read", contents=content, delegate=head, by=by
            )
        )
        return self

    def ends_step(self) -> Told:
        stamp = self._stamp()
        self.events.append(FinishStep(**stamp, checkpoint_id=stamp["id"], usage=Usage()))
        return self

    def fails(self) -> Told:
        error = ErrorInfo(name="Overloaded", message="wait")
        self.events.append(Retry(**self._stamp(), error=error, attempt=1, delay_ms=5))
        return self

    def ends(self, text: str) -> Told:
        stamp = self._stamp()
        self.events.append(FinishRun(**stamp, checkpoint_id=stamp["id"], text=text, total_usage=Usage()))
        return self


def asks(*ids: str) -> list[ToolCallPart]:
    return [
        ToolCallPart(tool_call_id=one, tool_name="read", args={"path": f"{number}"}) for number, one in enumerate(ids)
    ]


def diverge(a: Told, b: Told, below: Sequence[Told] = (), **fields: Any) -> Divergence | None:
    courses = [
        Course(
            one.job_id, one.events, {told.run_id: told.events for told in below if told.job_id == one.job_id}, **fields
        )
        for one in (a, b)
    ]
    return first_divergence(courses[0], courses[1])


def test_ids_times_usage_attempts_and_actors_are_no_divergence() -> None:
    a = Told("a").says(*asks("x1", "x2")).calls("x1", "x2")
    a.results("x1", "one").results("x2", "two").ends_step().says(TextPart(text="done")).ends("done")
    b = Told("b", clock=99).fails().says(*asks("y7", "y8"), duration_ms=70).calls("y7", "y8")
    # side by side calls end in any order
    b.results("y8", "two").results("y7", "one").ends_step().fails().says(TextPart(text="done")).ends("done")

    assert diverge(a, b) is None


def test_opaque_content_of_a_vendor_is_no_divergence_but_reasoning_is() -> None:
    a = Told("a").says(ThinkingPart(thinking="so", opaque={"signature": "1"}), TextPart(text="x"))
    b = Told("b").says(ThinkingPart(thinking="so", opaque={"signature": "2"}), TextPart(text="x"))
    c = Told("c").says(ThinkingPart(thinking="no", opaque={"signature": "2"}), TextPart(text="x"))

    assert diverge(a, b) is None
    assert diverge(a, c) is not None


def test_the_first_different_event_is_found_with_what_differs() -> None:
    a = Told("a").says(*asks("1")).calls("1").results("1", "same\nold").ends_step().says(TextPart(text="x"))
    b = Told("b").says(*asks("1")).calls("1").results("1", "same\nnew").ends_step().says(TextPart(text="y"))

    found = diverge(a, b)

    assert found is not None
    assert [(event.type, event.step_number, place_in_log(event)) for event in found.events if event] == [
        ("finishToolCall", 1, 4),
        ("finishToolCall", 1, 4),
    ]
    changed = [(kind, line.replace(" ", "")) for kind, line in found.lines if kind in ("add", "remove")]
    assert changed == [("remove", "-old"), ("add", "+new")]


def test_results_of_swapped_calls_are_a_divergence() -> None:
    a = Told("a").says(*asks("1", "2")).calls("1", "2").results("1", "one").results("2", "two")
    b = Told("b").says(*asks("1", "2")).calls("1", "2").results("1", "two").results("2", "one")

    assert diverge(a, b) is not None


def test_an_end_is_a_divergence_unless_events_are_left_out() -> None:
    a = Told("a").says(TextPart(text="x"))
    b = Told("b").says(TextPart(text="x")).ends("x")

    found = diverge(a, b)

    assert found is not None
    assert found.a is None
    assert found.b is b.events[-1]
    assert diverge(a, b, is_cut=True) is None
    assert diverge(Told("a"), Told("b")) is None


def test_a_delegate_is_compared_where_its_result_is() -> None:
    below = [Told("a", 2).says(TextPart(text="left")), Told("b", 3).says(TextPart(text="right"))]
    a = Told("a").says(*asks("1")).calls("1").results("1", "left", delegate="a-2")
    b = Told("b").says(*asks("1")).calls("1").results("1", "right", delegate="b-3")

    found = diverge(a, b, below)

    assert found is not None
    assert [event.run_id for event in found.events if event] == ["a-2", "b-3"]
    alone = diverge(a, b)
    assert alone is not None
    assert [event.run_id for event in alone.events if event] == ["a-1", "b-1"]


@pytest.mark.parametrize("size", [10, 5_000])
def test_a_difference_of_texts_is_bounded(size: int) -> None:
    old, new = (f"{letter}\n" * size for letter in "ab")

    lines = diff_of_texts(old, new)

    assert len(lines) <= 401
    assert diff_of_texts(old, old) == ()
    assert max(len(line) for _, line in diff_of_texts("x" * 5_000, "y" * 5_000)) < 600


def test_two_jobs_are_compared_on_a_page(terminal: Terminal) -> None:
    terminal.project(
        TEAM.replace("[experts.lead]", 'workspace = { path = ".", snapshots = true }\n[experts.lead]', 1),
        lead=[
            reply("", ("writeTextFile", {"path": "a.txt", "text": "one\n"}), usage=(10, 5)),
            reply(f"The end of A {HOSTILE}", usage=(10, 5)),
        ],
    )
    assert terminal.run("run", "lead", "Write <b>it", "--provider", "scripted", "--job-id", "j1").code == 0
    definition = terminal.workspace / "perstack.toml"
    definition.write_text(definition.read_text().replace("You lead.", "You lead <b>well."))
    terminal.script(
        lead=[
            reply("", ("writeTextFile", {"path": "a.txt", "text": "two\n"}), usage=(10, 5)),
            reply("The end of B", usage=(30, 5)),
        ]
    )
    assert terminal.run("run", "lead", "Write <b>it", "--provider", "scripted", "--job-id", "j2").code == 0
    branch = ("--continue-job", "j1", "--resume-from", "j1-1-8", "--provider", "scripted")
    terminal.script(lead=[reply("not said"), reply("Another end")])
    done = terminal.run("run", "lead", "Go on otherwise", *branch)
    assert done.code == 0, done.err
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        assert 'href="/compare?a=j1"' in visitor.get("/jobs/j1")
        form = visitor.get("/compare?a=j1")
        assert "/compare?a=j1&amp;b=j2" in form
        assert "/compare?a=j1&amp;b=j1/j1-1" in form
        assert "Compare" in visitor.get("/compare")

        page = visitor.get("/compare?a=j1/1&b=j2")
        assert "step 1</a> of j1-1" in page
        assert "step 1</a> of j2-1" in page
        assert '<a href="/jobs/j2/runs/j2-1/events/' in page
        assert "two" in page
        assert '<span class="add">+The end of B</span>' in page
        assert "a.txt" in page
        assert "<summary>Expert: instruction</summary>" in page
        assert '<span class="add">+You lead &lt;b&gt;well.</span>' in page
        assert "<td>30 tokens (20 in, 10 out)</td><td>50 tokens (40 in, 10 out)</td>" in page
        for hostile in ("<script>a", "<b>it", "<b>well", "\u202e", "\x1b"):
            assert hostile not in page

        same = visitor.get("/compare?a=j2&b=j2")
        assert "What was said and done is equal." in same
        assert "Settings that differ" not in same
        assert "The results are equal." in same
        of_branch = visitor.get("/compare?a=j1/1&b=j1/2")
        assert "Go on otherwise" in of_branch
        assert "of j1-2" in of_branch
        for names, status in (("a=j1&b=nothing", 404), ("a=j1&b=j1/9", 404), (f"a=j1&b={quote('../<b>')}", 400)):
            refused = visitor.get(f"/compare?{names}", status)
            assert "<b>" not in refused
