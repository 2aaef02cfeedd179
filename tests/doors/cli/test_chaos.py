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
    result = terminal.run("chaos", "lead", "--kills", "6", "--seed", "7")
    assert (result.code, result.err) == (0, "")
    number, _, rest = result.out.partition(" ")
    assert int(number) >= 6
    assert rest == "kills, 0 lost, 0 repeated\n"
    assert sorted(path.name for path in terminal.workspace.iterdir()) == ["perstack.toml", "script.json"]


def test_a_script_says_what_its_models_do_and_its_questions_are_answered(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served.")])
    (terminal.workspace / "script.json").rename(terminal.workspace / "mine.json")
    result = terminal.run("chaos", "guest", "--script", "mine.json", "--kills", "2", "--answer", "tea")
    assert result.code == 0, result.err
    assert result.out.endswith("kills, 0 lost, 0 repeated\n")


def test_an_expert_whose_job_does_not_begin_is_refused_in_one_line(terminal: Terminal) -> None:
    terminal.project(TEAM)
    (terminal.workspace / "mine.json").write_text(json.dumps({"experts": {"nobody": {"turns": []}}}))
    for args, words in (
        (("chaos", "stranger"), "there is no Expert 'stranger'"),
        (("chaos", "lead", "--script", "none.json"), "none.json"),
        (("chaos", "lead", "--for", "soon"), "--for"),
        (("chaos", "lead", "--script", "mine.json", "--kills", "1"), "lead"),
    ):
        result = terminal.run(*args)
        assert result.code == 2, (args, result)
        assert words in result.err
        assert len(result.err.splitlines()) == 1


NAMING = """
[permissions]
allow = ["exec(true)"]
[experts.lead]
instruction = "You lead."
[experts.lead.skills.quick]
type = "mcpStdioSkill"
command = "sh"
args = ["-c", "touch {mark}; exit 1"]
required = false
"""


def test_copies_are_agreed_to_as_the_project_is_and_no_longer_than_they_are_worked_on(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state, mark = tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("marks") / "started"
    terminal.as_stranger().env["XDG_STATE_HOME"] = str(state)
    terminal.project(NAMING.format(mark=mark))
    attacked = ("chaos", "lead", "--kills", "2", "--script", "mine.json")
    (terminal.workspace / "script.json").write_text("{}")
    (terminal.workspace / "mine.json").write_text(json.dumps({"experts": {"lead": {"turns": [reply("done")]}}}))
    (terminal.workspace / ".env").write_text("SOME=value\n")
    refused = terminal.run(*attacked)
    assert (refused.code, refused.out) == (2, "")
    assert f"{terminal.workspace / 'perstack.toml'} names what nobody has agreed to: " in refused.err
    assert (len(refused.err.splitlines()), mark.exists(), list(state.rglob("*.json"))) == (1, False, [])
    assert terminal.run("trust", "--yes").code == 0
    done = terminal.run(*attacked)
    assert (done.code, done.out.endswith("kills, 0 lost, 0 repeated\n")) == (0, True), done
    assert mark.exists()
    assert len(list((state / "perstack" / "trust").iterdir())) == 1, "that of the project"
    terminal.env["PERSTACK_TRUST"] = str(terminal.workspace)
    assert terminal.run("trust", "--revoke").code == 0
    assert terminal.run(*attacked).code == 0


def test_a_variables_file_that_nobody_has_agreed_to_is_read_in_no_copy(terminal: Terminal) -> None:
    terminal.as_stranger().project(TEAM)
    (terminal.workspace / ".env").write_text("PERSTACK_PLUGINS=no_such_module\n")
    assert terminal.run("chaos", "lead", "--kills", "1").code == 0
