"""`perstack demo`: a recorded Job for users without a key or a model."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from terminal import Terminal
from tmux import PERSTACK, tmux


@pytest.fixture
def newcomer(terminal: Terminal) -> Terminal:
    """Return the terminal of a user with an empty home and no other variables than these."""
    for name in ("home", "tmp", "here"):
        (terminal.workspace / name).mkdir()
    terminal.env = {
        "PATH": terminal.env["PATH"],
        "HOME": str(terminal.workspace / "home"),
        "TMPDIR": str(terminal.workspace / "tmp"),
    }
    terminal.workspace = terminal.workspace / "here"
    return terminal


def remaining_files(newcomer: Terminal) -> list[Path]:
    return sorted(newcomer.workspace.parent.rglob("*"))


def test_it_plays_a_job_and_leaves_nothing(newcomer: Terminal) -> None:
    before = remaining_files(newcomer)
    result = newcomer.run("demo", env={"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"})
    assert (result.code, result.err) == (0, "")
    assert '$ perstack run checker "Check data/orders.csv against rules.md"' in result.lines
    for words in ("delegates: reporter", "decided: yes", "snapshot: +7", "| 6 | date 2026-02-30 | 3: a date exists |"):
        assert words in result.out
    assert remaining_files(newcomer) == before
    last = result.lines[-1].rpartition(": perstack ")[2]
    assert newcomer.run(*shlex.split(last), "--no-input").code == 0
    assert (newcomer.workspace / "my-checker" / "rules.md").is_file()


def test_at_a_terminal_it_takes_some_ten_seconds(newcomer: Terminal) -> None:
    began = time.monotonic()
    seen = newcomer.look("demo")
    assert 5 < time.monotonic() - began < 20
    assert "The folder was removed." in seen


def test_with_a_folder_the_job_can_be_looked_at_and_run_again(newcomer: Terminal) -> None:
    done = newcomer.run("demo", "--to", "my demo")
    assert done.lines[-1] == "next: cd 'my demo' && perstack log"
    newcomer.workspace /= "my demo"
    (job,) = [json.loads(line) for line in newcomer.run("jobs", "--json").lines]
    assert job["status"] == "completed"
    assert newcomer.run("verify", "--all").code == 0
    (newcomer.workspace / "report.md").unlink()
    again = ("run", "checker", "Check data/orders.csv against rules.md", "--output", "text")
    assert newcomer.run(*again).code == 3  # the recording that the definition names answers for nobody
    result = newcomer.run(*again, "--recording", "tests/orders.json")
    assert (result.code, "3 of 8" in result.out) == (0, True)
    assert (newcomer.workspace / "report.md").is_file()


def test_a_folder_that_is_there_is_left_alone(newcomer: Terminal) -> None:
    (newcomer.workspace / "f").mkdir()
    result = newcomer.run("demo", "--to", "f")
    assert (result.code, result.err) == (2, "error: --to f exists already: name a new folder\n")
    (newcomer.workspace / "file").touch()
    nowhere = newcomer.run("demo", "--to", "file/f")
    assert (nowhere.code, "cannot be created: not a directory; name another folder" in nowhere.err) == (2, True)


def test_ctrl_c_ends_it_and_leaves_nothing(newcomer: Terminal) -> None:
    with tmux(newcomer) as window:
        window.type(f"{PERSTACK} demo; echo ended $?")
        window.sees("readTextFile")
        window.press("C-c")
        window.sees("ended 130")
        assert "resume" not in window.screen()
    assert not list((newcomer.workspace.parent / "tmp").glob("perstack-demo-*"))
