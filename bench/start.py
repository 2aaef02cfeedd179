"""Cost of `perstack start`: `python bench/start.py [--steps N] [--seconds N]`.

The real program on its own terminal: the first frame, the processor's share while a text streams, and a long Job that
is opened, from the shell and from History, and scrolled. Its processor time comes from the kernel and includes driving
the Job: on a machine with other load only this figure can be compared.
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
TOKENS_PER_S = 100

TICKS = os.sysconf("SC_CLK_TCK")
TOML = 'maxSteps = 0\nmaxRepeats = 0\n[experts.bench]\ndescription = "Reads a file"\ninstruction = "You read."\n'
STREAM = """
import asyncio
from perstack.core.messages.messages import ExpertMessage, TextPart
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
"""The library alone, writing as many words at the program's frame rate."""

F2, TAB, ENTER, PAGE_UP = b"\x1bOQ", b"\t", b"\r", b"\x1b[5~"


class Duration(NamedTuple):
    """Elapsed and processor seconds."""

    seconds: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s ({self.cpu:.2f} s of the processor)"


class Window:
    """Terminal of 120 columns and 40 lines that runs the program."""

    def __init__(self, folder: Path, *args: str, program: Sequence[str] = (*PERSTACK, "start")) -> None:
        self._ours, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(folder), "LC_ALL": "C.UTF-8"}
        env |= {"PERSTACK_PLUGINS": "perstack.testing.plugin,bench_streams", "PERSTACK_SCRIPT": "script.json"}
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [*program, *args], cwd=folder, env=env, stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(terminal)
        self._seen = b""

    def until(self, holds: Callable[[str], bool], seconds: float = 120) -> float:
        """Wait until the output since the last call satisfies `holds`; return the seconds since the start."""
        end = time.perf_counter() + seconds
        while not holds(_text(self._seen)):
            remaining = end - time.perf_counter()
            if remaining <= 0 or not select.select([self._ours], [], [], remaining)[0]:
                raise SystemExit(f"waited in vain; seen: {_text(self._seen)[-2000:]}")
            self._seen += os.read(self._ours, 1 << 16)
        self._seen = b""
        return time.perf_counter() - self.began

    def marks(self, *words: str, keys: bytes = b"") -> list[Duration]:
        """Return when each of these words was first seen, measured from the keys, or else from the start."""
        began, cpu = (time.perf_counter(), self.cpu()) if keys else (self.began, 0.0)
        self.press(keys)
        output, durations = b"", dict[str, Duration]()
        while len(durations) < len(words):
            if not select.select([self._ours], [], [], 120)[0]:
                raise SystemExit(f"waited in vain; seen: {_text(output)[-2000:]}")
            output += os.read(self._ours, 1 << 16)
            text, duration = _text(output), Duration(time.perf_counter() - began, self.cpu() - cpu)
            durations |= {word: duration for word in words if word in text and word not in durations}
        self._seen = b""
        return [durations[word] for word in words]

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read_for(self, seconds: float) -> None:
        """Read the output, as a terminal does."""
        end = time.perf_counter() + seconds
        while (remaining := end - time.perf_counter()) > 0:
            if select.select([self._ours], [], [], remaining)[0]:
                os.read(self._ours, 1 << 16)

    def cpu(self) -> float:
        """Return the processor seconds of the process."""
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


def measure_first_frame(folder: Path, times: int) -> tuple[float, float]:
    """Return the median of the first frames with its processor time; files are cached."""
    frames: list[tuple[float, float]] = []
    for _ in range(times):
        window = Window(folder)
        seconds = window.until(lambda text: "Choose an Expert" in text)
        frames.append((seconds, window.cpu()))
        window.close()
    return sorted(frames)[times // 2]


def measure_streaming(window: Window, seconds: float) -> float:
    """Return the share of one core while a text streams, once it is longer than the window."""
    window.until(lambda text: text.count("jump.") > 10)
    before, began = window.cpu(), time.perf_counter()
    window.read_for(seconds)
    share = (window.cpu() - before) / (time.perf_counter() - began)
    window.close()
    return share


def make_long_job(folder: Path, steps: int) -> None:
    """Make a Job with the id `long` of that many steps."""
    turns = [{"text": "I read.", "tools": [{"name": "readTextFile", "input": {"path": "notes.txt"}}], "repeat": steps}]
    (folder / "script.json").write_text(
        json.dumps({"experts": {"bench": {"turns": [*turns, {"text": "Last words."}]}}})
    )
    (folder / "notes.txt").write_text("Twenty bytes of text")
    command = [*PERSTACK, "run", "bench", "go", "--provider", "scripted", "--max-steps", "0", "--job-id", "long"]
    env = {**os.environ, "PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)


def measure_start_with_job(folder: Path) -> tuple[list[Duration], float]:
    """Start with `--job`; return the durations until its first frame, its last words and its check, and the seconds
    for a page up."""
    window = Window(folder, "--job", "long")
    durations = window.marks("perstack  ", "Last words.", "✓ completed")
    began, pages = time.perf_counter(), 20
    for _ in range(pages):
        window.press(PAGE_UP)
        window.until(lambda text: "readTextFile" in text)
    page_s = (time.perf_counter() - began) / pages
    window.close()
    return durations, page_s


def measure_history(folder: Path) -> tuple[list[Duration], list[Duration]]:
    """Open the Job and its latest checkpoint in a running program; return the durations from Enter until the Job's last
    words and its check, and until the checkpoint."""
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
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "perstack.toml").write_text(TOML)
        (folder / "bench_streams.py").write_text(STREAM.replace("TOKENS", str(TOKENS_PER_S)))
        (folder / "floor.py").write_text(FLOOR.replace("TOKENS", str(TOKENS_PER_S)))
        (folder / "script.json").write_text('{"experts": {}}')
        frame, cpu = measure_first_frame(folder, args.times)
        print(f"first frame: {frame:.2f} s, {cpu:.2f} s of the processor")
        program_share = measure_streaming(Window(folder, "bench", "go", "--provider", "streams"), args.seconds)
        floor = measure_streaming(Window(folder, program=(sys.executable, "floor.py")), args.seconds)
        print(f"streaming {TOKENS_PER_S} tokens/s: {program_share:.1%} of a core; the library alone: {floor:.1%}")
        make_long_job(folder, args.steps)
        (first, words, checked), page_s = measure_start_with_job(folder)
        print(f"start --job with {args.steps:,} steps: first frame {first}, last words {words}, all checked {checked}")
        print(f"a page up in {page_s * 1000:.0f} ms")
        (words, checked), (checkpoint,) = measure_history(folder)
        print(f"the same Job from History: last words {words}, all checked {checked}")
        print(f"its latest checkpoint: {checkpoint}")


if __name__ == "__main__":
    main()
