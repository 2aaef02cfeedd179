"""Files, calls, and moves from one file to another that one operation takes in the project's code.

    .venv/bin/python bench/calls.py            the figures
    .venv/bin/python bench/calls.py --most 20  with the functions that are called most

A coroutine that continues after a wait counts as a call. Each operation runs once before it is counted, without imports
and first-time work then. The counts are nearly equal on every machine: a slow disk adds the waits for threads.

The last figure is the number of Python frames that one more step with one tool call enters in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import FrameType

from perstack.core.definitions.settings import Overrides
from perstack.definition_files import load_usable
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool
from perstack.toolkit import Toolkit

ROOT = str(Path(__file__).parents[1])
INLINE = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>"}
TOML = """
[experts.reader]
description = "reads"
instruction = "Read a.txt."
"""


class Trail:
    """Counter of calls in the project's code, without test tools."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.moves = 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        path = code.co_filename
        if event != "call" or not path.startswith((f"{ROOT}/host/", f"{ROOT}/plugins/")) or "/testing/" in path:
            return
        if code.co_name in INLINE:
            return
        self.calls[path.removeprefix(f"{ROOT}/"), code.co_name] += 1
        self.moves += path != self._last
        self._last = path

    def __str__(self) -> str:
        files = len({path for path, _ in self.calls})
        return f"{files} files, {self.calls.total():,} calls, {self.moves} moves"


async def trace_work(work: Callable[[], Awaitable[object]]) -> Trail:
    await work()
    trail = Trail()
    sys.setprofile(trail)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return trail


@asynccontextmanager
async def open_host(folder: Path) -> AsyncGenerator[Host]:
    """Yield a Host on file storage whose model reads a file in each Job."""
    (folder / "a.txt").write_text("x")
    (folder / "perstack.toml").write_text(TOML)
    turns = [tool("readTextFile", {"path": "a.txt"}), text("done")] * 4
    project = load_usable(folder / "perstack.toml").project
    host = Host(
        project,
        workspace=folder,
        storage="file:perstack",
        env={"PATH": "/bin"},
        overrides=Overrides(provider="scripted"),
        plugins=[ScriptedProvider(turns)],
    )
    async with host:
        yield host


async def count_step_frames(folder: Path, few_steps: int = 20, many_steps: int = 120) -> float:
    """Return the number of Python frames that one more step enters: the difference between two Runs."""
    kit = Toolkit("kit")

    @kit.tool(effect="sideEffect", description="Pay.")
    async def pay(amount: int) -> str:
        return f"{amount} paid"

    (folder / "steps.toml").write_text(
        f'maxRepeats = 0\n{TOML}skills.kit = {{ type = "pluginSkill", plugin = "kit" }}\n'
    )
    project = load_usable(folder / "steps.toml").project

    async def frames(steps: int) -> int:
        count = 0

        def counting(_frame: FrameType, event: str, _: object) -> None:
            nonlocal count
            count += event == "call"

        host = Host(
            project,
            workspace=folder,
            storage="file:steps",
            env={"PATH": "/bin"},
            overrides=Overrides(provider="scripted", max_steps=0),
            plugins=[ScriptedProvider([tool("pay", {"amount": 3})] * steps + [text("done")]), kit],
        )
        async with host:
            sys.setprofile(counting)
            try:
                await host.run("reader", "pay")
            finally:
                sys.setprofile(None)
        return count

    await frames(few_steps)
    return (await frames(many_steps) - await frames(few_steps)) / (many_steps - few_steps)


async def main(most_called: int) -> None:
    from mcp import Client

    from perstack_server.mcp.server import build_server
    from perstack_server.mcp.workspaces import ServeOptions, serve_projects

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perstack-bench-")))
        os.environ["PERSTACK_TRUST"] = str(folder)
        host = await stack.enter_async_context(open_host(folder))
        offer = ServeOptions((host, load_usable(folder / "perstack.toml")), tasks=True)
        server = build_server(await stack.enter_async_context(serve_projects(offer)))
        client = await stack.enter_async_context(Client(server, mode="2026-07-28"))
        for task_id in ("t1", "t2"):
            await host.tasks.create(task_id, start=True)
        task_ids = iter(("t1", "t2"))

        async def pause() -> None:
            arguments = {"taskId": next(task_ids), "reason": "human_input", "message": "?"}
            assert not (await client.call_tool("task_pause", arguments)).is_error

        async def expert() -> None:
            assert not (await client.call_tool("reader", {"query": "read"})).is_error

        for name, work in (
            ("one Host.run with one file read", lambda: host.run("reader", "read")),
            ("one Expert called over MCP", expert),
            ("one task_pause over MCP", pause),
        ):
            trail = await trace_work(work)
            print(f"{name}: {trail}")
            for (path, function), count in trail.calls.most_common(most_called):
                print(f"  {count:4} {path} {function}")
        print(f"a further step: {await count_step_frames(folder):.0f} frames")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=0)
    asyncio.run(main(parser.parse_args().most))
