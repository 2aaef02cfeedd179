"""Output to a disk that is full."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import warm
from terminal import TEAM, Terminal, reply


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("command", [("jobs",), ("jobs", "--json"), ("log",), ("log", "--json"), ("--help",)])
def test_output_that_cannot_be_written_is_an_error_in_a_line(terminal: Terminal, command: tuple[str, ...]) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    assert terminal.call("run", "lead", "q", "--provider", "scripted").code == 0
    with Path("/dev/full").open("wb") as full:
        process = warm.perstack(
            *command,
            cwd=terminal.workspace,
            env=terminal.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            new=command == ("jobs",),  # Python itself writes what is left when it ends
        )
    with process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "error: the output cannot be written: no space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_result_that_cannot_be_written_is_an_error_and_is_kept(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    with Path("/dev/full").open("wb") as full:
        process = warm.perstack(
            *("run", "lead", "q", "--provider", "scripted", "--output", "text", "--job-id", "job"),
            cwd=terminal.workspace,
            env=terminal.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == (
        "error: stdout cannot be written (no space left on device), so the result was not written; it is stored:"
        " perstack log --job job\n"
    )
    assert "Done." in terminal.call("log", "--job", "job").out
