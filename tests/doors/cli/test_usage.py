"""Errors in a command line are one line: the place, the mistake, and a correction."""

from __future__ import annotations

import pytest
from terminal import Terminal

MISTAKES = {
    "rnu writer x": "perstack: there is no command rnu; did you mean run?",
    "zzz": "perstack: there is no command zzz; `perstack --help` lists them",
    "--foo": "perstack: there is no option --foo; `perstack --help` lists them",
    "expert lst": "perstack expert: there is no command lst; did you mean list?",
    "task foo": "perstack task: there is no command foo; `perstack task --help` lists them",
    "run": "perstack run: EXPERT is missing; write it as: perstack run [OPTIONS] EXPERT [QUERY]",
    "signal": "perstack signal: JOB|TASK is missing; write it as: perstack signal [OPTIONS] JOB|TASK",
    "run w x --max-step 3": "perstack run: there is no option --max-step; did you mean --max-steps?",
    "jobs --take abc": "perstack jobs: --take: 'abc' is not a whole number; `perstack jobs --help` says more",
    "run w x --max-steps -1": "perstack run: --max-steps: -1 must be at least 0; `perstack run --help` says more",
    "run w x --max-cost 0": "perstack run: --max-cost: 0.0 must be more than 0; `perstack run --help` says more",
    "run w x --max-cost": "perstack run: --max-cost needs a value; `perstack run --help` says more",
    "run w x --no-input=3": "perstack run: --no-input takes no value; `perstack run --help` says more",
    "run w x --output xml": (
        "perstack run: --output: 'xml' is not one of 'human', 'jsonl', 'text'; `perstack run --help` says more"
    ),
    "run w a haiku": 'perstack run: unexpected arguments: haiku; put QUERY in quotes: perstack run EXPERT "QUERY"',
    "init a b c": "perstack init: unexpected arguments: b c; write it as: perstack init [OPTIONS] [FOLDER]",
    "completion csh": (
        "perstack completion: SHELL: 'csh' is not one of 'bash', 'zsh', 'fish'; `perstack completion --help` says more"
    ),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_it_names_the_command_what_is_wrong_with_it_and_what_to_write(terminal: Terminal, line: str) -> None:
    result = terminal.call(*line.split())
    assert (result.code, result.out, result.err) == (2, "", f"error: {MISTAKES[line]}\n")


def test_what_was_typed_is_no_more_than_text(terminal: Terminal) -> None:
    result = terminal.call("a\x1b[2J\nb")
    assert result.err.count("\n") == 1
    assert "\x1b" not in result.err


def test_a_group_without_a_command_shows_its_help(terminal: Terminal) -> None:
    result = terminal.call("task")
    assert result.code == 2
    assert "Usage: perstack task [OPTIONS] COMMAND" in result.out + result.err
