"""Cost of watching a Job at a terminal: `python bench/live.py [--seconds N] [--steps N]`.

The view receives the events of a Job while another process reads its terminal, as a terminal emulator does. Only the
processor time of the view's own process counts.
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
from perstack.core.runs.events import Event
from perstack.core.runs.events.generations import StartGeneration
from perstack.doors.cli.live import LiveView
from perstack.host import Host
from perstack.testing.scripted import ScriptedProvider, text, tool, turn

TOKENS_PER_S = 100


def record_events(steps: int) -> list[Event]:
    """Return the events of a Job that reads a file in each step."""
    events: list[Event] = []
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
        asyncio.run(_drive(host, lambda event, line: events.append(event)))
    assert len(events) > steps * 4, events[-1]
    return events


async def _drive(host: Host, on_event: Callable[[Event, bytes], None]) -> None:
    async with host:
        await host.run("a", "q", on_event=on_event)


def redirect_to_terminal() -> subprocess.Popen[bytes]:
    """Make stdout a terminal of 120 columns, and return the process that reads it."""
    controller, terminal = pty.openpty()
    reader = subprocess.Popen(["cat"], stdin=controller, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(controller)
    os.environ |= {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    sys.stdout = os.fdopen(terminal, "w")
    return reader


async def measure_stream(seconds: float) -> float:
    """Return the share of one core that a text takes that arrives token by token."""
    view = LiveView(is_compact=False)
    common = {"id": "e", "job_id": "job", "run_id": "job-1", "expert_key": "writer", "step_number": 1}
    view.show_event(StartGeneration(timestamp=int(time.time() * 1000), **common))  # type: ignore[arg-type]
    began, cpu_began = time.monotonic(), time.process_time()
    number = 0
    while time.monotonic() - began < seconds:
        number += 1
        delta = "frogs " if number % 20 else "jump.\n"
        view.show_event(StreamText(timestamp=int(time.time() * 1000), delta=delta, **common))  # type: ignore[arg-type]
        await asyncio.sleep(max(0.0, began + number / TOKENS_PER_S - time.monotonic()))
    share = (time.process_time() - cpu_began) / (time.monotonic() - began)
    view.pause()
    return share


async def measure_steps(events: list[Event], steps: int) -> float:
    """Return the processor milliseconds of one step."""
    view = LiveView(is_compact=False)
    cpu_began = time.process_time()
    for event in events:
        view.show_event(event)
        await asyncio.sleep(0)
    view.pause()
    return (time.process_time() - cpu_began) * 1000 / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    stdout, events = sys.stdout, record_events(args.steps)
    reader = redirect_to_terminal()
    share = asyncio.run(measure_stream(args.seconds))
    step = asyncio.run(measure_steps(events, args.steps))
    sys.stdout.close()
    reader.wait(10)
    sys.stdout = stdout
    print(f"watching {TOKENS_PER_S} tokens a second: {share:.1%} of one core; a step: {step:.2f} ms")


if __name__ == "__main__":
    main()
