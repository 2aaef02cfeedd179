"""Output to a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from terminal import TEAM, Terminal, reply


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("command", [("jobs",), ("jobs", "--json"), ("log",), ("log", "--json"), ("--help",)])
def test_output_that_cannot_be_written_is_an_error_in_a_line(terminal: Terminal, command: tuple[str, ...]) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    assert terminal.call("run", "lead", "q", "--provider", "scripted").code == 0
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perstack", *command],
            cwd=terminal.workspace,
            env=terminal.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "error: the output cannot be written: no space left on device\n")
