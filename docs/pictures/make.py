"""Makes run.svg: the screen of a real Job, drawn as it was at a terminal of 80 columns.

    python docs/pictures/make.py [TO]

The commands of `COMMANDS` are given in a new folder, at a pseudo-terminal, and what they ask is answered from
`ANSWERS`. The model plays a script. The lines appear one after another; where animation is unwelcome they are all there
at once.
"""

from __future__ import annotations

import io
import json
import os
import pty
import pwd
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 80
SECONDS = 60
COMMANDS = (
    'perstack run planner "A weekend in Liguria, by train" --job-id trip',
    "perstack verify trip",
)
ANSWERS = ("yes",)
TOML = """
[experts.planner]
instruction = "Plan the trip. Then let the writer write the plan to plan.md."
delegates = ["writer"]
[experts.writer]
description = "Writes a text to a file"
instruction = "Write what the query asks for to the file that it names, and count its words."
[permissions]
ask = ["exec"]
[prices."scripted/scripted"]
input = 3
output = 15
"""
PLAN = "# Two days in Liguria\n\nSaturday: the train to Camogli.\nSunday: the path to San Fruttuoso.\n"


def _turn(text: str, tokens: tuple[int, int], *tools: tuple[str, dict[str, object]]) -> dict[str, object]:
    calls = [{"name": name, "input": given} for name, given in tools]
    return {"text": text, "tools": calls, "usage": {"inputTokens": tokens[0], "outputTokens": tokens[1]}}


SCRIPT = {
    "planner": [
        _turn("", (1240, 48), ("writer", {"query": "To plan.md: two days in Liguria, by train."})),
        _turn("Two days in Liguria, by train: the plan is in plan.md.", (1340, 22)),
    ],
    "writer": [
        _turn("", (830, 64), ("writeTextFile", {"path": "plan.md", "text": PLAN})),
        _turn("", (930, 40), ("exec", {"command": "wc", "args": ["-w", "plan.md"]})),
        _turn("plan.md is written: 16 words.", (1010, 12)),
    ],
}
APPEARING = (
    "@keyframes in { from { opacity: 0 } }"
    " @media (prefers-reduced-motion: no-preference) { .l { animation: in .2s both } }"
)
_ASKED = re.compile(rb"; Enter: later\)\r\n")
_REDRAWN = re.compile(r"\r(?:\x1b\[(\d+)A)?\x1b\[J")
_LINE = re.compile(r'(<text class="[^"]*" )(?=[^>]*clip-path="url\(#run-line-(\d+)\))')


def recorded() -> list[str]:
    """Each line that stands on the screen in the end, with its colours."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "perstack.toml").write_text(TOML)
        script = {"experts": {name: {"turns": turns} for name, turns in SCRIPT.items()}}
        (Path(folder) / "script.json").write_text(json.dumps(script))
        for command in COMMANDS:
            lines += [f"\x1b[1m$ {command}\x1b[0m", *_left(_given(command, Path(folder))), ""]
    me = pwd.getpwuid(os.getuid()).pw_name
    return [line.replace(f"{me}, cli", "ann, cli") for line in lines[:-1]]


def _given(command: str, folder: Path) -> str:
    """All that a command writes to its terminal."""
    ours, theirs = pty.openpty()
    env = {
        "PATH": os.environ["PATH"],
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
        "LINES": "50",
        "TZ": "UTC",
        "PERSTACK_PLUGINS": "perstack.testing.plugin",
        "PERSTACK_SCRIPT": "script.json",
        "PERSTACK_TRUST": os.path.realpath(folder),
    }
    program = [sys.executable, "-m", *shlex.split(command)]
    process = subprocess.Popen(program, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen, answers, until = b"", list(ANSWERS), time.monotonic() + SECONDS
    while data := _read(ours, until):
        seen += data
        if answers and len(_ASKED.findall(seen)) > len(ANSWERS) - len(answers):
            os.write(ours, f"{answers.pop(0)}\n".encode())
    os.close(ours)
    if process.wait(max(0.1, until - time.monotonic())):
        sys.exit(f"{command} ended with {process.returncode}: {seen.decode()}")
    return seen.decode()


def _read(fd: int, until: float) -> bytes:
    if not select.select([fd], [], [], max(0, until - time.monotonic()))[0]:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:  # Linux says EIO when the last process has closed the other end
        return b""


def _left(written: str) -> list[str]:
    """The lines that no later one was drawn over."""
    lines = [""]
    first, *drawn = _REDRAWN.split(written.replace("\r\n", "\n"))
    for above, part in zip(["0", *drawn[::2]], [first, *drawn[1::2]], strict=True):
        if part is not first:
            lines[-1 - int(above or 0) :] = [""]
        begun, *rest = part.split("\n")
        lines[-1] += begun
        lines += rest
    return lines[:-1] if not lines[-1] else lines


def picture(lines: list[str]) -> str:
    """An SVG of these lines, which loads no font from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=False)
    drawn = console.export_svg(title="perstack", unique_id="run")
    drawn = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.S)
    drawn = drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'")
    drawn = drawn.replace("<style>", f"<style>\n    {APPEARING}", 1)
    return _LINE.sub(lambda found: f'{found[1][:-2]} l" style="animation-delay: {int(found[2]) * 0.35:.2f}s" ', drawn)


if __name__ == "__main__":
    to = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("run.svg")
    to.write_text(picture(recorded()), encoding="utf-8")
