"""What it costs to watch a Job at a terminal: `python bench/live.py [--seconds N] [--steps N]`.

The view is given the events of a Job while its terminal is read by another process, as a terminal's window does. Only
the processor time of the view's own process counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from perstack.core.definitions.experts import Expert
from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.core.runs.display_events import StreamText
from perstack.core.runs.events import Event, StartGeneration
from perstack.doors.cli.live import LiveView
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

TOKENS = 100
"""A second."""


def recorded(steps: int) -> list[Event]:
    """The events of a Job that reads a file in each step."""
    found: list[Event] = []
    reads = [
        turn(tool("readTextFile", {"path": f"./{'./' * (number % 9)}notes.txt"}), text="I read.", usage=(1000, 20))
        for number in range(steps)
    ]
    with TemporaryDirectory() as folder:
        (Path(folder) / "notes.txt").write_text("Twenty bytes of text")
        project = Project(experts={"a": Expert(key="a", instruction="i")})
        provider = ScriptedProvider([*reads, text("Done.")])
        host = Host(
            project, workspace=folder, plugins=[provider], env={}, overrides=Overrides(provider="scripted", max_steps=0)
        )
        asyncio.run(_driven(host, lambda event, line: found.append(event)))
    assert len(found) > steps * 4, found[-1]
    return found


async def _driven(host: Host, on_event: Callable[[Event, bytes], None]) -> None:
    async with host:
        await host.run("a", "q", on_event=on_event)


def on_a_terminal() -> subprocess.Popen[bytes]:
    """From now on stdout is a terminal of 120 columns, which the process reads that is returned."""
    ours, theirs = pty.openpty()
    reader = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(ours)
    os.environ |= {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    sys.stdout = os.fdopen(theirs, "w")
    return reader


async def streamed(seconds: float) -> float:
    """The share of one core that a text takes which comes token by token."""
    view = LiveView(is_compact=False)
    common = {"id": "e", "job_id": "job", "run_id": "job-1", "expert_key": "writer", "step_number": 1}
    view.take(StartGeneration(timestamp=int(time.time() * 1000), **common))  # type: ignore[arg-type]
    began, used = time.monotonic(), time.process_time()
    number = 0
    while time.monotonic() - began < seconds:
        number += 1
        delta = "frogs " if number % 20 else "jump.\n"
        view.take(StreamText(timestamp=int(time.time() * 1000), delta=delta, **common))  # type: ignore[arg-type]
        await asyncio.sleep(max(0.0, began + number / TOKENS - time.monotonic()))
    share = (time.process_time() - used) / (time.monotonic() - began)
    view.pause()
    return share


async def stepped(events: list[Event], steps: int) -> float:
    """Milliseconds of processor time for one step."""
    view = LiveView(is_compact=False)
    used = time.process_time()
    for event in events:
        view.take(event)
        await asyncio.sleep(0)
    view.pause()
    return (time.process_time() - used) * 1000 / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    words, events = sys.stdout, recorded(given.steps)
    reader = on_a_terminal()
    share = asyncio.run(streamed(given.seconds))
    step = asyncio.run(stepped(events, given.steps))
    sys.stdout.close()
    reader.wait(10)
    sys.stdout = words
    print(f"watching {TOKENS} tokens a second: {share:.1%} of one core; a step: {step:.2f} ms")


if __name__ == "__main__":
    main()
