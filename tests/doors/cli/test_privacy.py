"""Access of a tool's program to the host's keys."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import SECONDS, Terminal, reply

pytestmark = pytest.mark.linux

KEY = "sk-canary-0123456789"
NOBODY = 65534

LOOK = """
for name in environ mem cmdline; do
  head -c 100000 /proc/$PPID/$name > seen.$name 2> said.$name
done
"""


@pytest.fixture
def nobodys() -> Iterator[Terminal]:
    """Yield a folder of another user, with a state directory, unlike pytest's temporary folders."""
    with tempfile.TemporaryDirectory() as folder:
        project, state = (Path(folder).resolve() / name for name in ("project", "state"))
        for path in (Path(folder), project, state):
            path.mkdir(exist_ok=True)
            os.chown(path, NOBODY, NOBODY)
        terminal = Terminal(project)
        terminal.env["XDG_STATE_HOME"] = str(state)
        yield terminal


def looking(terminal: Terminal) -> Terminal:
    """Write a project whose only tool call examines the host."""
    terminal.env["ANTHROPIC_API_KEY"] = KEY
    call = ("exec", {"command": "sh", "args": ["-c", LOOK]})
    return terminal.project('[experts.solo]\ninstruction = "x"\n', solo=[reply("", call), reply("end")])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_environment_that_the_system_shows_of_the_host_is_blank(terminal: Terminal) -> None:
    done = looking(terminal).run(
        "run", "solo", "q", "--provider", "scripted", new=True
    )  # shown is what a start was given
    assert done.code == 0, done.err
    assert b"canary" not in (terminal.workspace / "seen.environ").read_bytes()
    assert b"--provider" in (terminal.workspace / "seen.cmdline").read_bytes(), "it looked at the host"


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can become another user")
def test_without_privileges_a_program_sees_neither_environment_nor_memory_of_the_host(nobodys: Terminal) -> None:
    terminal = looking(nobodys)
    python = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable]
    kwargs = {"cwd": terminal.workspace, "env": terminal.env, "capture_output": True, "timeout": SECONDS}
    if shutil.which("setpriv") is None or subprocess.run([*python, "-c", "import perstack"], **kwargs).returncode:
        pytest.skip("another user cannot run this Python")
    done = subprocess.run([*python, "-m", "perstack", "run", "solo", "q", "--provider", "scripted"], **kwargs)
    assert done.returncode == 0, done.stderr
    for name in ("environ", "mem"):
        assert "Permission denied" in (terminal.workspace / f"said.{name}").read_text()
    assert b"--provider" in (terminal.workspace / "seen.cmdline").read_bytes(), "it looked at the host"


def test_whoever_asks_for_a_variable_in_the_process_itself_still_gets_it(terminal: Terminal) -> None:
    code = """
import ctypes, os, sys
from perstack.doors.cli.main import keep_environment_private
keep_environment_private()
keep_environment_private()
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(os.environ["A_KEY"], getenv(b"A_KEY").decode(), repr(os.environ["EMPTY"]), getenv(b"EMPTY"), flush=True)
os.system("echo $A_KEY")
"""
    env = {**terminal.env, "A_KEY": KEY, "EMPTY": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{KEY} {KEY} '' b''", KEY]
