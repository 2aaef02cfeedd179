"""Plain functions as tools: each call in a thread, which a cancelled Job leaves."""

from __future__ import annotations

import asyncio
import functools
import threading
from contextvars import ContextVar

from hosts import Bench, results, wait_for
from toolkit_experts import call, with_kit

from perstack.testing.scripted import text, tool
from perstack.toolkit import ToolContext, Toolkit

USER: ContextVar[str] = ContextVar("USER", default="nobody")


def test_calls_of_plain_functions_run_at_the_same_time_each_in_a_thread_and_see_context_variables(bench: Bench) -> None:
    kit, both = Toolkit("kit"), threading.Barrier(2, timeout=20)
    USER.set("ana")

    @kit.tool(effect="readOnly")
    def meet(number: int) -> dict[str, object]:
        """Wait for the other call."""
        both.wait()
        return {"number": number, "user": USER.get(), "is_main": threading.current_thread() is threading.main_thread()}

    seen, _ = call(bench, kit, tool("meet", {"number": 1}), tool("meet", {"number": 2}))
    assert sorted(results(seen)) == [f'{{"number":{number},"user":"ana","is_main":false}}' for number in (1, 2)]


def test_progress_of_a_plain_function_is_shown_in_the_loops_thread(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly")
    def count(context: ToolContext) -> str:
        """Count."""
        context.tool_call.on_progress("one")
        context.tool_call.on_progress("two")
        return f"done, cancelled: {context.is_cancelled()}"

    seen, _ = call(bench, kit, tool("count"))
    assert [event.message for event in seen.of("toolProgress")] == ["one", "two"]
    assert results(seen) == ["done, cancelled: False"]


def test_errors_of_a_plain_function_are_results_also_those_that_asyncio_does_not_pass_on(bench: Bench) -> None:
    kit = Toolkit("kit")

    @kit.tool(effect="readOnly")
    def first(names: list[str]) -> str:
        """Return the first."""
        return next(iter(names))

    @kit.tool(effect="readOnly")
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    @kit.tool(effect="readOnly")
    def divide(by: int) -> float:
        """Divide."""
        return 1 / by

    seen, _ = call(bench, kit, tool("first", {"names": []}), tool("leave"), tool("divide", {"by": 0}))
    found = "\n".join(results(seen))
    assert "division by zero" in found
    assert "the tool raised StopIteration" in found
    assert "the tool raised SystemExit: 3" in found


def test_a_decorated_async_function_is_awaited(bench: Bench) -> None:
    kit = Toolkit("kit")

    async def slow(count: int) -> str:
        """Count."""
        return f"{count} in {asyncio.current_task() is not None}"

    @functools.wraps(slow)
    def logged(*args: int, **named: int) -> object:
        return slow(*args, **named)

    kit.tool(effect="readOnly")(logged)
    seen, _ = call(bench, kit, tool("slow", {"count": 2}))
    assert results(seen) == ["2 in True"]


def test_a_cancelled_job_does_not_wait_for_a_plain_function_which_may_see_it(bench: Bench) -> None:
    kit, began, told = Toolkit("kit"), threading.Event(), threading.Event()

    @kit.tool()
    def work(context: ToolContext) -> str:
        """Work until cancelled."""
        began.set()
        while not context.is_cancelled():
            told.wait(0.01)
        told.set()
        return "late"

    host = bench.host([*[tool("work")], text("never")], with_kit(), plugins=(kit,))

    async def cancelled() -> None:
        running = asyncio.create_task(host.run("a", "q", job_id="job"))
        assert await asyncio.to_thread(began.wait, 20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await host.job("job")).status == "stoppedByInterrupt"

    wait_for(cancelled())
    assert told.wait(20)
