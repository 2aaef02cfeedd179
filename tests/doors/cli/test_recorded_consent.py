"""A recording answers for a person only if the caller names it: a definition does not bring its own consent."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal import Terminal, reply

RULES = '[permissions]\nask = ["exec", "writeTextFile"]\n'
EXPERT = '[experts.a]\ninstruction = "You work."\n'
ASKING = """
[experts.a.skills.people]
type = "interactiveSkill"
[experts.a.skills.people.tools.ask]
description = "Ask."
inputJsonSchema = '{"type": "object", "properties": {"question": {"type": "string"}}}'
"""
RECORDED = '[provider]\nproviderName = "recorded"\nsetting = {{ recording = "demo.json"{more} }}\n'
LIVE = ', tools = "live"'
PROGRAM = ("exec", {"command": "touch", "args": ["made"]})
FILE = ("writeTextFile", {"path": "made", "text": "x"})


def recorded_job(tmp_path: Path, call, *, rules: str = RULES, answer: str = "yes", more: str = "") -> Terminal:
    """Record a Job whose call a person answered, and name the recording in the definition, in a new state."""
    terminal = Terminal(tmp_path).project(rules + EXPERT + ASKING, a=[reply("", call), reply("done")])
    asked = terminal.call("run", "a", "q", "--job-id", "first", attended=True)
    assert asked.code == 3, asked.err
    (item,) = terminal.call("inbox", "--json").events
    assert terminal.call("answer", item["id"], answer).code == 0
    assert terminal.call("record", "first", "--to", "demo.json").code == 0
    terminal.call("delete", "first", "--yes")
    (tmp_path / "made").unlink(missing_ok=True)
    definition = tmp_path / "perstack.toml"
    definition.write_text(RECORDED.format(more=more) + rules + EXPERT + ASKING)
    return terminal


@pytest.mark.parametrize("more", ["", LIVE, ', tools = {{ "*" = "live" }}'.replace("{{", "{").replace("}}", "}")])
@pytest.mark.parametrize("call", [PROGRAM, FILE], ids=["program", "file"])
def test_a_definition_that_plays_a_recording_asks_a_person_for_real(tmp_path: Path, call, more: str) -> None:
    terminal = recorded_job(tmp_path, call, more=more)
    stopped = terminal.call("run", "a", "q", "--job-id", "second", attended=True)
    assert stopped.code == 3, stopped.err
    assert [event for event in stopped.events if event["type"] == "decideApproval"] == []
    resumed = terminal.call("resume", "second")
    assert resumed.code != 0
    assert not (tmp_path / "made").exists()


def test_with_nobody_there_what_the_recording_approves_is_denied(tmp_path: Path) -> None:
    terminal = recorded_job(tmp_path, FILE)
    done = terminal.call("run", "a", "q", "--unattended")
    (decided,) = [event for event in done.events if event["type"] == "decideApproval"]
    assert (decided["decision"], decided["by"]["door"]) == ("no", "unattended")
    assert not (tmp_path / "made").exists()


def test_a_models_question_is_asked_for_real_too(tmp_path: Path) -> None:
    terminal = recorded_job(tmp_path, ("ask", {"question": "Which?"}), answer="this one")
    stopped = terminal.call("run", "a", "q")
    assert (stopped.code, "this one" in stopped.out) == (3, False)


def test_no_program_of_a_recording_runs_because_the_definition_says_live(tmp_path: Path) -> None:
    allowed = RULES.replace("ask", "allow")
    terminal = Terminal(tmp_path).project(allowed + EXPERT, a=[reply("", PROGRAM), reply("done")])
    assert terminal.call("run", "a", "q", "--job-id", "first").code == 0
    assert terminal.call("record", "first", "--to", "demo.json").code == 0
    (tmp_path / "made").unlink()
    (tmp_path / "perstack.toml").write_text(RECORDED.format(more=LIVE) + allowed + EXPERT)
    assert terminal.call("run", "a", "q").code == 0
    assert not (tmp_path / "made").exists()
    named = terminal.call("run", "a", "q", "--recording", "demo.json")
    assert named.code == 0, named.err
    assert (tmp_path / "made").exists()


def test_a_recording_that_the_caller_names_answers(tmp_path: Path) -> None:
    terminal = recorded_job(tmp_path, FILE)
    done = terminal.call("run", "a", "q", "--recording", "demo.json")
    assert done.code == 0, done.err
    (decided,) = [event for event in done.events if event["type"] == "decideApproval"]
    assert (decided["decision"], decided["by"]["door"]) == ("once", "recording")
    assert (tmp_path / "made").read_text() == "x"
