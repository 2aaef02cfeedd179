"""`perstack` without a command: where to begin, the state of this folder, and the next step."""

from __future__ import annotations

import pytest
from terminal import ASKING, TEAM, Terminal, reply

COMMANDS = ["init", "run", "start", "jobs", "log", "inbox"]


def overview_lines(terminal: Terminal) -> tuple[str, str]:
    """Return the line about this folder, and the next step."""
    result = terminal.run()
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.lines[2:8]] == COMMANDS
    assert result.lines[-1] == "All commands: perstack --help"
    assert max(map(len, result.lines[:8])) <= 80
    return result.lines[-3], result.lines[-2].removeprefix("Next: ")


def test_an_empty_folder(terminal: Terminal) -> None:
    assert overview_lines(terminal) == (
        "There is no perstack.toml here.",
        "perstack init, or perstack demo to watch Experts at work",
    )
    assert not list(terminal.workspace.glob("perstack*"))


def test_experts_and_questions_are_counted(terminal: Terminal) -> None:
    terminal.project(ASKING + TEAM, guest=[reply("", ("askUser", {"question": "Tea?"}))])
    state, step = overview_lines(terminal)
    assert state.endswith("perstack.toml declares 3 Experts; nothing waits for you.")
    assert step == "perstack start, or perstack run EXPERT QUERY"
    assert terminal.run("run", "guest", "go", "--provider", "scripted").code == 3
    state, step = overview_lines(terminal)
    assert state.endswith("declares 3 Experts; 1 question waits for you.")
    assert step == "perstack inbox"


@pytest.mark.parametrize(
    ("toml", "words", "step"),
    [
        ("x = ", "perstack.toml has 1 problem.", "perstack validate"),
        (
            f'storage = "postgresql://u@h.example/x"\n{TEAM}',
            "2 Experts; its Jobs cannot be read: ",
            "perstack doctor",
        ),
    ],
)
def test_what_cannot_be_read_is_named(terminal: Terminal, toml: str, words: str, step: str) -> None:
    terminal.project(toml)
    state, next_step = overview_lines(terminal)
    assert words in state
    assert next_step == step
