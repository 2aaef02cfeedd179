"""What a Toolkit opens for its functions: when it is entered, shared and left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hosts import Bench, Seen, results, wait_for
from toolkit_experts import Settings, call, with_kit

from perstack.testing.scripted import text, tool
from perstack.toolkit import Setup, ToolContext, Toolkit


class Shop:
    """Records how it was opened and closed, and in which task."""

    def __init__(self, *, fails: bool = False) -> None:
        self.opened: list[object] = []
        self.closed: list[object] = []
        self.fails = fails

    @asynccontextmanager
    async def lifespan(self, setup: Setup[Settings]) -> AsyncIterator[list[int]]:
        if self.fails:
            raise ConnectionError("nobody answers")
        self.opened.append(asyncio.current_task())
        try:
            yield [setup.settings.sides]
        finally:
            self.closed.append(asyncio.current_task())

    def kit(self) -> Toolkit[Settings, list[int]]:
        kit = Toolkit("kit", settings=Settings, lifespan=self.lifespan)

        @kit.tool(effect="readOnly")
        async def push(context: ToolContext[Settings, list[int]]) -> int:
            """Push."""
            context.resource.append(0)
            return len(context.resource)

        return kit


def test_what_a_lifespan_opens_is_shared_by_a_job_and_left_in_the_task_that_entered_it(bench: Bench) -> None:
    shop = Shop()
    seen, _ = call(bench, shop.kit(), tool("push"), tool("push"), sides=4)
    assert sorted(results(seen)) == ["2", "3"]
    assert len(shop.opened) == 1
    assert shop.closed == shop.opened


def test_a_lifespan_that_fails_costs_only_its_own_tools(bench: Bench) -> None:
    seen, _ = call(bench, Shop(fails=True).kit(), tool("push"))
    (reason,) = [event.reason for event in seen.of("skillDisconnected")]
    assert reason.startswith("skill 'mine' could not be opened")
    assert reason.endswith("ConnectionError: nobody answers")
    assert reason in results(seen)[0], "a model that calls its tool is told why there is none"


@dataclass
class Line:
    """A connection that can be cut."""

    cut: asyncio.Event
    gone: asyncio.Event


@asynccontextmanager
async def line(setup: Setup) -> AsyncIterator[Line]:
    one = Line(asyncio.Event(), asyncio.Event())

    async def break_off() -> None:
        await one.cut.wait()
        raise ConnectionError("the line is cut")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(break_off())
            yield one
    finally:
        one.gone.set()


def test_a_lifespan_that_breaks_later_is_an_error_of_the_calls_that_follow(bench: Bench) -> None:
    kit = Toolkit("kit", lifespan=line)

    @kit.tool()
    async def cut(context: ToolContext[None, Line]) -> None:
        """Cut the line."""
        context.resource.cut.set()
        await context.resource.gone.wait()

    seen = Seen()
    host = bench.host([tool("cut"), tool("cut"), text("ok")], with_kit(), plugins=(kit,))
    assert wait_for(host.run("a", "q", on_event=seen)).status == "completed"
    first, second = results(seen)
    assert first == "Done."
    assert second.endswith("did not stay open: ConnectionError: the line is cut")


def test_a_run_that_is_cancelled_while_a_lifespan_opens_leaves_it(bench: Bench) -> None:
    left: list[str] = []

    async def run() -> None:
        entering = asyncio.Event()

        @asynccontextmanager
        async def lifespan(setup: Setup) -> AsyncIterator[None]:
            try:
                entering.set()
                await asyncio.Event().wait()
                yield
            finally:
                left.append("left")

        kit = Toolkit("kit", lifespan=lifespan)
        host = bench.host([text("never")], with_kit(), plugins=(kit,))
        work = asyncio.ensure_future(host.run("a", "q", job_id="job"))
        await entering.wait()
        work.cancel()
        await asyncio.wait({work})

    wait_for(run())
    assert left == ["left"]
