"""The command line in tests: a project on a scripted model, and commands run in it."""

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
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import warm
from hosts import agree_to_state

from perstack.doors.cli.main import run_command_line

SECONDS = 60
"""Maximum seconds of a command."""

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
ask = true
"""
ASKING_BY_SKILL = """
[experts.guest]
instruction = "You ask."
[experts.guest.skills.user]
type = "interactiveSkill"
[experts.guest.skills.user.tools.askUser]
description = "Ask"
inputJsonSchema = '{"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}'
"""


@contextmanager
def trusting(folder: Path) -> Iterator[None]:
    """Let Hosts of this process trust the definition in a folder, as if its user had agreed to it."""
    before = os.environ.get("PERSTACK_TRUST", "")
    os.environ["PERSTACK_TRUST"] = os.pathsep.join(filter(None, (before, str(folder))))
    try:
        yield
    finally:
        os.environ["PERSTACK_TRUST"] = before


@dataclass(frozen=True)
class Result:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return stdout parsed as JSON, one object per line."""
        return [json.loads(line) for line in self.lines]


class Terminal:
    """A directory with a perstack.toml and a script for the model, in which commands run."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.env: dict[str, str] = {
            "PATH": os.environ["PATH"],
            "PERSTACK_PLUGINS": "perstack.testing.plugin",
            "PERSTACK_SCRIPT": str(workspace / "script.json"),
            "TZ": "UTC",
            "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
            "PERSTACK_TRUST": str(workspace),  # the tests' definitions are their user's own; see `as_stranger`
        }

    def project(self, toml: str, **turns: list[dict[str, Any]]) -> Terminal:
        """Write perstack.toml and each Expert's turns. If they call `exec`, the definition allows it."""
        is_named = "permissions" in toml or '"exec"' in toml or "exec" not in json.dumps(turns)
        names = "" if is_named else '\n[permissions]\nallow = ["exec"]\n'
        (self.workspace / "perstack.toml").write_text(toml + names)
        return self.script(**turns)

    def as_stranger(self) -> Terminal:
        """Run commands as a user who has agreed to nothing in this folder."""
        del self.env["PERSTACK_TRUST"]
        return self

    def agreed(self) -> Terminal:
        """Agree to the state in the folder, as its user does after copying it here."""
        agree_to_state(self.workspace, env=self.env)
        return self

    def script(self, **turns: list[dict[str, Any]]) -> Terminal:
        """Write each Expert's turns."""
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
        """Run the command in its own process, with a timeout. With `new`, the process is not forked."""
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
        """Run the command in this process: the same except for the start of Python, and much faster.

        With `attended` its stderr is a terminal; with `columns` its stdout is one too, of that width.
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
                run_command_line()
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            finally:
                signal.signal(signal.SIGINT, on_ctrl_c)
        return Result(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]

    def look(self, *args: str, columns: int = 80, types: str = "") -> str:
        """Return what a user sees in a terminal of that width, including escape sequences.

        Each line of `types` is typed at a prompt.
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
        """Return the folder of the Jobs."""
        return self.workspace / "perstack" / "jobs"

    def log_of(self, run_id: str) -> Path:
        """Return the path of a Run's log."""
        return self.jobs() / run_id.rpartition("-")[0] / "runs" / run_id / "events.jsonl"


_PROMPTS = re.compile(rb"; Enter: later\)\r\n|\[y/N\]|answer yes or no")


class _Attended(io.TextIOWrapper):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def _read(fd: int, until: float) -> bytes:
    """Return available data; empty at the end and after the timeout."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(max(0, until - time.monotonic()) * 1000):
        return b""
    # Linux reports EIO when the last process has closed the other end
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""


def reply(text: str = "", *tools: tuple[str, dict[str, Any]], thinking: str = "", usage: tuple[int, int] = (0, 0)):
    """Return one turn of a script."""
    return {
        "text": text,
        "thinking": thinking,
        "tools": [{"name": name, "input": arguments} for name, arguments in tools],
        "usage": {"inputTokens": usage[0], "outputTokens": usage[1]},
    }
