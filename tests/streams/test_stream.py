"""Iterate over a Job while it is driven, answer in the loop, and leave the loop early."""

from __future__ import annotations

import asyncio
import gc

import pytest
from approval_jobs import ASK_WRITE, append, files
from asking_team import Gate, script, team
from hosts import Bench, expert, wait_for
from toolkit_experts import with_kit

from perstack import DelegateStarted, Event, Finished, Question, StreamEvent, TextDelta, ToolCall, ToolResult
from perstack.errors import Conflict, UsageError
from perstack.host import Host
from perstack.ports.hooks import Listener, hookimpl
from perstack.testing.scripted import fail, text, tool
from perstack.toolkit import Toolkit

ASKS = [tool("askUser", {"question": "Which colour?"}), text("Done.")]


def names(events: list[StreamEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


async def read(host: Host, query: str = "q", **more: object) -> list[StreamEvent]:
    return [event async for event in host.stream("a", query, **more)]


def test_a_stream_shows_texts_calls_results_and_the_end_each_with_its_stored_event(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly")
    def add(one: int, other: int) -> int:
        """Add."""
        return one + other

    host = bench.host([tool("add", {"one": 1, "other": 2}), text("It is 3.")], with_kit(), plugins=(kit,))
    call, result, *texts, end = wait_for(read(host))
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments, call.skill_name) == ("add", {"one": 1, "other": 2}, "mine")
    assert call.event is not None
    assert call.event.type == "callTools"
    assert isinstance(result, ToolResult)
    assert (result.id, result.text, result.is_error) == (call.id, "3", False)
    assert result.event is not None
    assert result.event.type == "finishToolCall"
    assert "".join(one.text for one in texts if isinstance(one, TextDelta)) == "It is 3."
    assert isinstance(end, Finished)
    assert (end.summary.status, end.summary.text) == ("completed", "It is 3.")
    assert end.event is not None
    assert end.event.type == "finishRun"


def test_a_delegate_is_shown_as_it_starts_and_its_result_has_the_calls_id(bench: Bench) -> None:
    turns = {"[[a]]": [tool("b", {"query": "count"}), text("Two.")], "[[b]]": [text("2")]}
    host = bench.host(turns, expert("a", delegates=("b",)), expert("b"))
    events = wait_for(read(host))
    (started,) = [event for event in events if isinstance(event, DelegateStarted)]
    (result,) = [event for event in events if isinstance(event, ToolResult)]
    assert (started.expert_key, started.query, started.id) == ("b", "count", result.id)
    assert {event.run_id for event in events if isinstance(event, TextDelta)} == {started.run_id, started.parent_run_id}
    assert not [event for event in events if isinstance(event, ToolCall)]


def test_a_question_is_answered_in_the_loop_which_continues_with_the_same_job(bench: Bench) -> None:
    host = bench.host(ASKS, expert("a", ask=True))

    async def work() -> None:
        events: list[StreamEvent] = []
        async for event in host.stream("a", "q", job_id="job"):
            events.append(event)
            if isinstance(event, Question):
                assert (event.text, event.options, event.is_approval) == ("Which colour?", (), False)
                assert event.event is not None
                job = await host.answer("Green.", question=event)
                assert job.id == "job"
                assert job.status in ("running", "completed")  # it may end before a slow storage has been read
        assert [name for name in names(events) if name != "TextDelta"] == ["Question", "ToolResult", "Finished"]
        assert isinstance(events[-1], Finished)
        assert (events[-1].summary.id, events[-1].summary.status) == ("job", "completed")
        assert [job.id for job in (await host.jobs.list()).jobs] == ["job"]
        assert (await host.audit.verify("job")).ok

    wait_for(work())


def test_the_id_of_a_question_answers_it_too_and_an_answer_that_does_not_fit_leaves_it_open(bench: Bench) -> None:
    files(bench, "a.txt")
    host = bench.host([append("a.txt"), text("Done.")], expert("a"))
    host.use(host.project.model_copy(update={"permissions": ASK_WRITE}))

    async def work() -> None:
        async for event in host.stream("a", "q", job_id="job"):
            if isinstance(event, Question):
                assert event.is_approval
                assert event.options[0] == "yes"
                with pytest.raises(UsageError, match="does not fit"):
                    await host.answer("perhaps", question=event.id)
                await host.answer("yes", question_id=event.id)
                with pytest.raises(Conflict):
                    await host.answer("yes", question=event)
        assert (await host.job("job")).status == "completed"
        assert (bench.workspace / "a.txt").read_text() == "x\n"

    wait_for(work())


def test_a_stream_ends_after_a_question_that_is_not_answered_and_another_call_answers_it(bench: Bench) -> None:
    host = bench.host(ASKS, expert("a", ask=True))

    async def work() -> None:
        events = await read(host)
        assert isinstance(events[-1], Question)
        assert (await host.job()).status == "stoppedByInteractiveTool"
        assert (await host.answer("Green.", question=events[-1])).status == "completed"

    wait_for(work())


def test_several_questions_are_answered_one_after_another(bench: Bench) -> None:
    turns = [*ASKS[:1], tool("askUser", {"question": "Which size?"}), text("Done.")]
    host = bench.host(turns, expert("a", ask=True))

    async def work() -> None:
        asked: list[str] = []
        async for event in host.stream("a", "q"):
            if isinstance(event, Question):
                asked.append(event.text)
                await host.answer("Any.", question=event)
        assert asked == ["Which colour?", "Which size?"]
        assert (await host.job()).status == "completed"

    wait_for(work())


def test_the_question_of_a_delegate_is_shown_and_answered_while_another_is_at_work(bench: Bench) -> None:
    files(bench, "a.txt")
    gate = Gate()
    host = bench.host(script(append("a.txt")), *team(), plugins=(gate.kit,))
    host.use(host.project.model_copy(update={"permissions": ASK_WRITE}))

    async def work() -> None:
        events: list[StreamEvent] = []
        async for event in host.stream("boss", "q", job_id="job"):
            events.append(event)
            if isinstance(event, Question):
                assert host.jobs.live_questions("job")
                await host.answer("yes", question=event)
                gate.may_end.set()
        assert names(events).count("Question") == 1
        assert isinstance(events[-1], Finished)
        assert events[-1].summary.status == "completed"
        assert (bench.workspace / "a.txt").read_text() == "x\n"

    wait_for(work())


def test_a_delegates_question_that_nobody_answers_ends_the_stream_when_the_job_rests(bench: Bench) -> None:
    files(bench, "a.txt")
    gate = Gate()
    host = bench.host(script(append("a.txt")), *team(), plugins=(gate.kit,))
    host.use(host.project.model_copy(update={"permissions": ASK_WRITE}))

    async def work() -> None:
        events: list[StreamEvent] = []
        async for event in host.stream("boss", "q", job_id="job"):
            events.append(event)
            if isinstance(event, Question):
                gate.may_end.set()
        assert names(events).count("Question") == 1
        assert "Finished" not in names(events)
        assert (await host.job("job")).status == "stoppedByInteractiveTool"

    wait_for(work())


class _Blocking:
    """A kit whose tool waits until its call is cancelled."""

    def __init__(self) -> None:
        self.kit = Toolkit("kit")
        self.was_cancelled = False

        @self.kit.tool(effect="readOnly")
        async def wait() -> str:
            """Wait."""
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise
            return ""


def test_leaving_the_loop_interrupts_the_job_which_can_be_resumed(bench: Bench) -> None:
    blocking = _Blocking()
    host = bench.host([tool("wait"), text("Done.")], with_kit(), plugins=(blocking.kit,))

    async def work() -> None:
        async for event in host.stream("a", "q", job_id="job"):
            if isinstance(event, ToolCall):
                break
        assert (await host.job("job")).status == "stoppedByInterrupt"
        lines = await host.events("job-1", job_id="job")
        assert lines[-1].event.type == "stopRunByInterrupt"

    gc.disable()  # what a `break` leaves is collected without the collector of cycles
    try:
        wait_for(work())
    finally:
        gc.enable()


def test_an_error_in_the_loop_and_a_cancelled_reader_interrupt_the_job_too(bench: Bench) -> None:
    host = bench.host([tool("wait"), text("Done.")], with_kit(), plugins=(_Blocking().kit,))

    async def fails() -> None:
        async for event in host.stream("a", "q", job_id="failed"):
            if isinstance(event, ToolCall):
                raise ValueError

    async def waits(seen: asyncio.Event) -> None:
        async for event in host.stream("a", "q", job_id="cancelled"):
            if isinstance(event, ToolCall):
                seen.set()

    async def work() -> None:
        with pytest.raises(ValueError):
            await fails()
        assert (await host.job("failed")).status == "stoppedByInterrupt"
        seen = asyncio.Event()
        reader = asyncio.create_task(waits(seen))
        await seen.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert (await host.jobs.job("cancelled")).status == "stoppedByInterrupt"

    wait_for(work())


class _Leaver(Listener):
    """A plugin's listener that exits the program when a tool is called."""

    @hookimpl
    def perstack_listeners(self) -> list[Listener]:
        return [self]

    def on_event(self, event: Event, line: bytes) -> None:
        if event.type == "callTools":
            raise SystemExit(7)


def test_a_listener_that_leaves_the_program_ends_the_stream_with_its_exit(bench: Bench) -> None:
    host = bench.host([tool("wait"), text("Done.")], with_kit(), plugins=(_Blocking().kit, _Leaver()))

    async def work() -> None:
        async for _ in host.stream("a", "q", job_id="job"):
            pass

    with pytest.raises(SystemExit, match="7"):
        wait_for(work())
    assert wait_for(host.job("job")).status == "stoppedByInterrupt"


def test_a_listener_of_an_answer_that_leaves_the_program_ends_the_stream_with_its_exit(bench: Bench) -> None:
    host = bench.host(ASKS, expert("a", ask=True))

    def leave(event: Event) -> None:
        if event.type == "resumeRun":
            raise KeyboardInterrupt

    async def work() -> None:
        async for event in host.stream("a", "q", job_id="job"):
            if isinstance(event, Question):
                await host.answer("Green.", question=event, on_event=leave)

    with pytest.raises(KeyboardInterrupt):
        wait_for(work())
    assert wait_for(host.job("job")).status == "stoppedByInterrupt"
    assert wait_for(host.resume("job")).status == "completed"


def test_a_stream_is_a_context_manager_that_waits_for_the_interrupt(bench: Bench) -> None:
    blocking = _Blocking()
    host = bench.host([tool("wait"), text("Done.")], with_kit(), plugins=(blocking.kit,))

    async def work() -> None:
        async with host.stream("a", "q", job_id="job") as events:
            async for event in events:
                if isinstance(event, ToolCall):
                    break
        assert blocking.was_cancelled
        assert (await host.jobs.job("job")).status == "stoppedByInterrupt"
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    wait_for(work())


def test_a_closed_host_interrupts_the_job_of_a_stream_that_is_still_open(bench: Bench) -> None:
    host = bench.host([tool("wait"), text("Done.")], with_kit(), plugins=(_Blocking().kit,))

    async def work() -> None:
        events = host.stream("a", "q", job_id="job")
        async with host:
            while not isinstance(await anext(events), ToolCall):
                pass
        assert (await host.jobs.job("job")).status == "stoppedByInterrupt"

    wait_for(work())


def test_a_resume_right_after_a_loop_that_was_left_continues_the_job(bench: Bench) -> None:
    stop = asyncio.Event()
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly")
    async def wait() -> str:
        """Wait for the second call."""
        await stop.wait()
        return "waited"

    host = bench.host([tool("wait"), text("Done.")], with_kit(), plugins=(kit,))

    async def work() -> None:
        async for event in host.stream("a", "q", job_id="job"):
            if isinstance(event, ToolCall):
                break
        stop.set()
        assert (await host.resume("job")).status == "completed"

    wait_for(work())


def test_a_job_that_another_caller_cancels_is_finished_as_interrupted(bench: Bench) -> None:
    host = bench.host([tool("wait"), text("Done.")], with_kit(), plugins=(_Blocking().kit,))

    async def work() -> None:
        last: StreamEvent | None = None
        async for event in host.stream("a", "q", job_id="job"):
            last = event
            if isinstance(event, ToolCall):
                await host.cancel("job")
        assert isinstance(last, Finished)
        assert last.summary.status == "stoppedByInterrupt"

    wait_for(work())


def test_errors_are_those_of_run_and_a_failing_model_finishes_the_stream(bench: Bench) -> None:
    host = bench.host([fail(401, "no such key")], expert("a"))

    async def nobody() -> None:
        async for _ in host.stream("nobody", "q"):
            pass

    with pytest.raises(UsageError, match="there is no Expert 'nobody'"):
        wait_for(nobody())
    (*_, end) = wait_for(read(host))
    assert isinstance(end, Finished)
    assert (end.summary.status, end.summary.error) == ("stoppedByError", "no such key")


def test_two_streams_of_a_host_are_read_at_the_same_time(bench: Bench) -> None:
    host = bench.host(ASKS, expert("a", ask=True))

    async def stream_of(job_id: str) -> list[str]:
        seen: list[str] = []
        async for event in host.stream("a", "q", job_id=job_id):
            if isinstance(event, Question):
                assert event.run_id == f"{job_id}-1"
                await host.answer(job_id, question=event)
            if isinstance(event, ToolResult):
                seen.append(event.text)
        return seen

    async def work() -> None:
        assert await asyncio.gather(stream_of("first"), stream_of("second")) == [["first"], ["second"]]

    wait_for(work())


def test_a_second_task_that_reads_a_stream_is_refused_and_the_first_gets_every_event(bench: Bench) -> None:
    host = bench.host([text("Done.")], expert("a"))

    async def work() -> None:
        stream = host.stream("a", "q")
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="another task reads this stream: iterate over it in one task"):
            await anext(stream)
        assert names([await first, *[event async for event in stream]]) == ["TextDelta", "Finished"]

    wait_for(work())
