"""The command line as tests use it: a project on a scripted model, and commands run in it."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import warm

from perstack.frontends.cli.main import entry

SECONDS = 60
"""How long a command may take before a test gives up on it."""

TEAM = """
[experts.lead]
description = "leads"
instruction = "You lead."
delegates = ["helper"]
[experts.helper]
description = "helps"
instruction = "You help."
"""

ASKING = """
[experts.guest]
instruction = "You ask."
[experts.guest.skills.user]
type = "interactiveSkill"
[experts.guest.skills.user.tools.askUser]
description = "Ask"
inputJsonSchema = '{"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}'
"""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its stdout as JSON, one object a line."""
        return [json.loads(line) for line in self.lines]


class Terminal:
    """A directory with a perstack.toml and a script for the model, where commands are given."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.env: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "PERSTACK_PLUGINS": "perstack.testing.plugin",
            "PERSTACK_SCRIPT": str(workspace / "script.json"),
            "TZ": "UTC",
        }

    def project(self, toml: str, **turns: list[dict[str, Any]]) -> Terminal:
        """Write perstack.toml, and what each Expert's model says, turn by turn."""
        (self.workspace / "perstack.toml").write_text(toml)
        return self.script(**turns)

    def script(self, **turns: list[dict[str, Any]]) -> Terminal:
        """Write what each Expert's model says, turn by turn."""
        experts = {key: {"turns": each} for key, each in turns.items()}
        (self.workspace / "script.json").write_text(json.dumps({"experts": experts}))
        return self

    def run(
        self,
        *args: str,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        new: bool = False,
    ) -> Result:
        """The command in a process of its own, which may take so many seconds. `new`: not a forked one."""
        process = warm.perstack(
            *args,
            new=new,
            cwd=self.workspace,
            env={**self.env, **(env or {})},
            stdin=None if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                out, err = process.communicate(stdin, timeout=seconds)
            except BaseException:
                process.kill()
                raise
        return Result(process.returncode, out, err)

    def call(
        self, *args: str, attended: bool = False, columns: int | None = None, env: Mapping[str, str] | None = None
    ) -> Result:
        """The command in this process: the same but for the start of Python, and much faster.

        `attended`: its stderr is a terminal; with `columns` its stdout is one too, of that width.
        """
        kinds = (
            io.TextIOWrapper if columns is None else _Attended,
            _Attended if attended or columns is not None else io.TextIOWrapper,
        )
        width = {} if columns is None else {"COLUMNS": str(columns), "LINES": "50", "TERM": "xterm-256color"}
        out, err = (kind(io.BytesIO(), "utf-8", write_through=True) for kind in kinds)
        with (
            chdir(self.workspace),
            mock.patch.dict(os.environ, {**self.env, **width, **(env or {})}, clear=True),
            mock.patch.object(sys, "argv", ["perstack", *args]),
            mock.patch.object(sys, "stdout", out),
            mock.patch.object(sys, "stderr", err),
        ):
            on_ctrl_c = signal.getsignal(signal.SIGINT)
            try:
                entry()
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            finally:
                signal.signal(signal.SIGINT, on_ctrl_c)
        return Result(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]

    def look(self, *args: str, columns: int = 80, types: str = "") -> str:
        """What a person sees in a terminal of that width, escape sequences and all.

        Each line of `types` is typed when something is asked.
        """
        ours, theirs = pty.openpty()
        process = warm.perstack(
            *args,
            cwd=self.workspace,
            env={**self.env, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "50"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        seen, asked, answers = b"", 0, types.splitlines(keepends=True)
        until = time.monotonic() + SECONDS
        while data := _read(ours, until):
            seen += data
            while answers and len(_PROMPTS.findall(seen)) > asked:
                asked += 1
                os.write(ours, answers.pop(0).encode())
        os.close(ours)
        if time.monotonic() >= until:
            process.kill()
            raise AssertionError(
                f"perstack {' '.join(args)} did not end in {SECONDS} s: {seen.decode(errors='replace')}"
            )
        process.wait(SECONDS)
        return seen.decode().replace("\r\n", "\n")

    def jobs(self) -> Path:
        """Where Jobs are kept."""
        return self.workspace / "perstack" / "jobs"

    def log_of(self, run_id: str) -> Path:
        """A Run's log."""
        return self.jobs() / run_id.rpartition("-")[0] / "runs" / run_id / "events.jsonl"


_PROMPTS = re.compile(rb"; nothing: later\)\r\n|\[y/N\]|say yes or no")


class _Attended(io.TextIOWrapper):
    """Text that goes to a terminal."""

    def isatty(self) -> bool:
        return True


def _read(fd: int, until: float) -> bytes:
    """What comes; nothing at the end, and when the time is over."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(max(0, until - time.monotonic()) * 1000):
        return b""
    # Linux says EIO when the last process has closed the other end
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def reply(text: str = "", *tools: tuple[str, dict[str, Any]], thinking: str = "", usage: tuple[int, int] = (0, 0)):
    """One turn of a script."""
    return {
        "text": text,
        "thinking": thinking,
        "tools": [{"name": name, "input": arguments} for name, arguments in tools],
        "usage": {"inputTokens": usage[0], "outputTokens": usage[1]},
    }
