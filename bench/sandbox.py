"""Cost of a sandbox per program, from start to end, beside the same program without one.

    .venv/bin/python bench/sandbox.py              the table of docs/sandbox.md
    .venv/bin/python bench/sandbox.py --times 200  with more of each

Each variant runs once before, and then all in turn, so that other load on the machine affects them equally. `bwrap`
alone, which unshares the same namespaces and mounts almost nothing, is the floor of every sandbox made with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.errors import PerstackError
from perstack.ports.runtime import LOCAL_RUNTIME, Program, Runtime, Surroundings
from perstack.system.processes import await_start, end_with_block
from perstack_bubblewrap.plugin import BubblewrapFactory

FLOOR = (
    "bwrap --unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64"
    " --proc /proc --dev /dev --tmpfs /tmp -- /usr/bin/true"
)
Runner = Callable[[], Awaitable[None]]


async def run_unsandboxed(argv: list[str]) -> None:
    """Run a program as directly as Python can."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    if await process.wait() != 0:
        raise SystemExit(f"{argv[0]} failed")


def make_runner(runtime: Runtime, workspace: Path) -> Runner:
    """Return a function that runs a program as exec does."""

    async def run() -> None:
        env = {"PATH": os.defpath, "PWD": str(workspace)}
        program = Program(("/usr/bin/true",), workspace, env, DEVNULL, DEVNULL, DEVNULL)
        process = await await_start(asyncio.create_task(runtime.start(program)))
        async with end_with_block(process):
            if await process.wait() != 0:
                raise SystemExit("the program failed")
        runtime.ending(process)

    return run


async def measure_each(runners: dict[str, Runner], times: int) -> dict[str, list[float]]:
    """Return the milliseconds of each variant, run in turn."""
    times_ms: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(times + 1):
        for name, run in runners.items():
            began = time.perf_counter()
            await run()
            if turn:
                times_ms[name].append((time.perf_counter() - began) * 1000)
    return times_ms


async def main(times: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name) / "work"
        for folder in range(100):
            (workspace / f"folder{folder}").mkdir(parents=True)
        (workspace / ".env").touch()
        around = Surroundings(workspace, "job", {"PATH": os.defpath, "HOME": "/nonexistent"})
        policy = SandboxPolicy(runtime="bubblewrap")
        limited = policy.model_copy(update={"memory": 1 << 30, "processes": 256})
        async with AsyncExitStack() as stack:
            runners: dict[str, Runner] = {
                "a plain start, the floor": lambda: run_unsandboxed(["/usr/bin/true"]),
                "`local`": make_runner(LOCAL_RUNTIME, workspace),
                "`bwrap` by itself": lambda: run_unsandboxed(FLOOR.split()),
            }
            for label, limited_policy in (
                ("`bubblewrap`", policy),
                ("`bubblewrap`, memory and processes limited", limited),
            ):
                try:
                    runtime = await BubblewrapFactory().prepare(limited_policy, around)
                except PerstackError as error:
                    raise SystemExit(str(error)) from error
                stack.push_async_callback(runtime.close)
                runners[label] = make_runner(runtime, workspace)
            times_ms = await measure_each(runners, times)
    sys.stdout.write("| `/usr/bin/true` | least, ms | median, ms |\n| --- | --- | --- |\n")
    for label, each in times_ms.items():
        sys.stdout.write(f"| {label} | {min(each):.1f} | {median(each):.1f} |\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    if shutil.which("bwrap") is None:
        raise SystemExit("bwrap was not found: apt install bubblewrap")
    asyncio.run(main(parser.parse_args().times))
