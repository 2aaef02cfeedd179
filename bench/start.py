"""What `perstack start` costs: `python bench/start.py [--steps N] [--seconds N]`.

The real program on a terminal of its own: the first frame, the processor's share while a text streams, and a long Job
that is opened, from the shell and from History, and scrolled. Its processor time is read from the kernel, with all that
drives the Job: where other work is on the machine, only that can be compared.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

PERSTACK = [sys.executable, "-m", "perstack"]
TOKENS = 100
"""A second."""

TICKS = os.sysconf("SC_CLK_TCK")
TOML = 'maxSteps = 0\nmaxRepeats = 0\n[experts.bench]\ndescription = "Reads a file"\ninstruction = "You read."\n'
STREAM = """
import asyncio
from perstack.core.runs.messages import ExpertMessage, TextPart
from perstack.core.base.usage import Usage
from perstack.ports.hooks import hookimpl
from perstack.ports.provider import Delta, Generation, Provider, ProviderFactory

class Streams(Provider, ProviderFactory):
    name, priority, default_model, how_to_configure = "streams", 0, "streams", "it is"
    def is_configured(self, env): return True
    def create(self, config): return self
    async def close(self): pass
    async def generate(self, request, on_delta):
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(1, 100_000):
            on_delta(Delta("text", "frogs " if number % 60 else "jump.\\n"))
            await asyncio.sleep(max(0.0, began + number / TOKENS - loop.time()))

@hookimpl
def perstack_providers():
    return [Streams()]
"""


FLOOR = """
import asyncio
from textual.app import App
from textual.widgets import Log

class Bare(App):
    def compose(self):
        yield Log()

    def on_mount(self):
        self.waiting, self.column = "", 0
        self.set_interval(1 / 12, self.show)
        self.run_worker(self.hear())

    async def hear(self):
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(1, 100_000):
            self.column = (self.column + 6) % 114
            self.waiting += "frogs " if self.column and number % 60 else "jump.\\n"
            await asyncio.sleep(max(0.0, began + number / TOKENS - loop.time()))

    def show(self):
        text, self.waiting = self.waiting, ""
        self.query_one(Log).write(text)

Bare().run()
"""
"""The library alone, that writes as many words as often as the program is drawn."""

F2, TAB, ENTER, PAGE_UP = b"\x1bOQ", b"\t", b"\r", b"\x1b[5~"


class Taken(NamedTuple):
    """What something took, in seconds."""

    seconds: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.cpu:.2f} s of the processor)"


class Window:
    """A terminal of 120 columns and 40 lines with the program in it."""

    def __init__(self, folder: Path, *args: str, program: Sequence[str] = (*PERSTACK, "start")) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(folder), "LC_ALL": "C.UTF-8"}
        env |= {"PERSTACK_PLUGINS": "perstack.testing.plugin,bench_streams", "PERSTACK_SCRIPT": "script.json"}
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [*program, *args], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        self._seen = b""

    def until(self, holds: Callable[[str], bool], seconds: float = 120) -> float:
        """Seconds from the start until what was written since the last look holds."""
        end = time.perf_counter() + seconds
        while not holds(_text(self._seen)):
            left = end - time.perf_counter()
            if left <= 0 or not select.select([self._ours], [], [], left)[0]:
                raise SystemExit(f"waited in vain; seen: {_text(self._seen)[-2000:]}")
            self._seen += os.read(self._ours, 1 << 16)
        self._seen = b""
        return time.perf_counter() - self.began

    def marks(self, *words: str, keys: bytes = b"") -> list[Taken]:
        """When each of these was first seen, from the keys on, or else from the start, and the processor time of it."""
        began, cpu = (time.perf_counter(), self.cpu()) if keys else (self.began, 0.0)
        self.press(keys)
        seen, found = b"", dict[str, Taken]()
        while len(found) < len(words):
            if not select.select([self._ours], [], [], 120)[0]:
                raise SystemExit(f"waited in vain; seen: {_text(seen)[-2000:]}")
            seen += os.read(self._ours, 1 << 16)
            text, now = _text(seen), Taken(time.perf_counter() - began, self.cpu() - cpu)
            found |= {word: now for word in words if word in text and word not in found}
        self._seen = b""
        return [found[word] for word in words]

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read_for(self, seconds: float) -> None:
        """Take what is written, as a terminal does."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self._ours], [], [], left)[0]:
                os.read(self._ours, 1 << 16)

    def cpu(self) -> float:
        """Seconds of the processor that the process has had."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        while self.process.poll() is None:
            with suppress(OSError):  # Linux says so when the last process has closed the other end
                self.read_for(0.1)
        os.close(self._ours)


def _text(seen: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[PX^_\]].*?(?:\x1b\\|\x07)", "", seen.decode(errors="replace"))


def first_frame(folder: Path, times: int) -> tuple[float, float]:
    """The median of the first frame, and the processor time of it, with what was written before warm."""
    found: list[tuple[float, float]] = []
    for _ in range(times):
        window = Window(folder)
        at = window.until(lambda text: "Choose an Expert" in text)
        found.append((at, window.cpu()))
        window.close()
    return sorted(found)[times // 2]


def streaming(window: Window, seconds: float) -> float:
    """The share of one core while a text streams, once it is longer than the window."""
    window.until(lambda text: text.count("jump.") > 10)
    before, began = window.cpu(), time.perf_counter()
    window.read_for(seconds)
    share = (window.cpu() - before) / (time.perf_counter() - began)
    window.close()
    return share


def make_long_job(folder: Path, steps: int) -> None:
    """A Job of that many steps, whose id is `long`."""
    turns = [{"text": "I read.", "tools": [{"name": "readTextFile", "input": {"path": "notes.txt"}}], "repeat": steps}]
    (folder / "script.json").write_text(
        json.dumps({"experts": {"bench": {"turns": [*turns, {"text": "Last words."}]}}})
    )
    (folder / "notes.txt").write_text("Twenty bytes of text")
    command = [*PERSTACK, "run", "bench", "go", "--provider", "scripted", "--max-steps", "0", "--job-id", "long"]
    env = {**os.environ, "PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)


def started_with(folder: Path) -> tuple[list[Taken], float]:
    """`start --job`: from the start of the process until its first frame, the last words, and until all is checked; and
    seconds for a page up."""
    window = Window(folder, "--job", "long")
    found = window.marks("perstack  ", "Last words.", "✓ completed")
    began, pages = time.perf_counter(), 20
    for _ in range(pages):
        window.press(PAGE_UP)
        window.until(lambda text: "readTextFile" in text)
    paged = (time.perf_counter() - began) / pages
    window.close()
    return found, paged


def opened_from_history(folder: Path) -> tuple[list[Taken], list[Taken]]:
    """In a program at work: from Enter on a Job until its last words are seen, and all is checked; and from Enter on
    its latest checkpoint until it is seen."""
    window = Window(folder)
    window.until(lambda text: "Choose an Expert" in text)
    window.press(F2 + b"(long)")
    window.until(lambda text: "(long)▏" in text)
    job = window.marks("Last words.", "✓ completed", keys=ENTER)
    window.press(F2 + b"(long)")
    window.until(lambda text: "(long)▏" in text)
    window.press(TAB)
    window.until(lambda text: "long-1-" in text)
    checkpoint = window.marks("status", keys=ENTER)
    window.close()
    return job, checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "perstack.toml").write_text(TOML)
        (folder / "bench_streams.py").write_text(STREAM.replace("TOKENS", str(TOKENS)))
        (folder / "floor.py").write_text(FLOOR.replace("TOKENS", str(TOKENS)))
        (folder / "script.json").write_text('{"experts": {}}')
        frame, cpu = first_frame(folder, given.times)
        print(f"first frame: {frame:.2f} s, {cpu:.2f} s of the processor")
        share = streaming(Window(folder, "bench", "go", "--provider", "streams"), given.seconds)
        floor = streaming(Window(folder, program=(sys.executable, "floor.py")), given.seconds)
        print(f"streaming {TOKENS} tokens/s: {share:.1%} of a core; the library alone: {floor:.1%}")
        make_long_job(folder, given.steps)
        (first, words, whole), paged = started_with(folder)
        print(f"start --job with {given.steps:,} steps: first frame {first}, last words {words}, all checked {whole}")
        print(f"a page up in {paged * 1000:.0f} ms")
        (words, whole), (checkpoint,) = opened_from_history(folder)
        print(f"the same Job from History: last words {words}, all checked {whole}")
        print(f"its latest checkpoint: {checkpoint}")


if __name__ == "__main__":
    main()
