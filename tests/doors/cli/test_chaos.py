"""`perstack chaos`: its output for an Expert that keeps its promises, and for one that cannot be attacked."""

from __future__ import annotations

import json

import pytest
from terminal import ASKING, TEAM, Terminal, reply


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/state.db"])
def test_an_expert_and_its_delegates_are_killed_and_nothing_is_lost_or_repeated(
    terminal: Terminal, storage: str
) -> None:
    terminal.project(f'storage = "{storage}"\n{TEAM}')
    done = terminal.run("chaos", "lead", "--kills", "6", "--seed", "7")
    assert (done.code, done.err) == (0, "")
    number, _, rest = done.out.partition(" ")
    assert int(number) >= 6
    assert rest == "kills, 0 lost, 0 repeated\n"
    assert sorted(path.name for path in terminal.workspace.iterdir()) == ["perstack.toml", "script.json"]


def test_a_script_says_what_its_models_do_and_its_questions_are_answered(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served.")])
    (terminal.workspace / "script.json").rename(terminal.workspace / "mine.json")
    done = terminal.run("chaos", "guest", "--script", "mine.json", "--kills", "2", "--answer", "tea")
    assert done.code == 0, done.err
    assert done.out.endswith("kills, 0 lost, 0 repeated\n")


def test_an_expert_whose_job_does_not_begin_is_refused_in_one_line(terminal: Terminal) -> None:
    terminal.project(TEAM)
    (terminal.workspace / "mine.json").write_text(json.dumps({"experts": {"nobody": {"turns": []}}}))
    for args, words in (
        (("chaos", "stranger"), "there is no Expert 'stranger'"),
        (("chaos", "lead", "--script", "none.json"), "none.json"),
        (("chaos", "lead", "--for", "soon"), "--for"),
        (("chaos", "lead", "--script", "mine.json", "--kills", "1"), "lead"),
    ):
        done = terminal.run(*args)
        assert done.code == 2, (args, done)
        assert words in done.err
        assert len(done.err.splitlines()) == 1
