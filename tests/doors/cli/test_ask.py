"""`ask = true`: a Coordinator asks with options; the answer is a number, an option's text or another text."""

from __future__ import annotations

import json

import pytest
from terminal import Terminal, reply

ASKS = """
[experts.guest]
instruction = "x"
ask = true
delegates = ["hand"]
[experts.hand]
instruction = "y"
ask = true
"""
PICKS = """
[experts.a]
instruction = "x"
[experts.a.skills."@perstack/base"]
type = "mcpStdioSkill"
command = "npx"
packageName = "@perstack/base"
pick = ["askUser", "attemptCompletion"]
"""
TWICE = """
[experts.a]
instruction = "x"
ask = true
[experts.a.skills.p]
type = "interactiveSkill"
[experts.a.skills.p.tools.askUser]
inputJsonSchema = "{}"
"""
DRINKS = ["Tea", {"label": "Coffee", "description": "freshly made"}]


def ask_in_terminal(terminal: Terminal, typed: str, **more: object) -> tuple[str, str]:
    """Return what the terminal shows for a question, and the answer that the model gets."""
    call = ("askUser", {"question": "What to drink?", "options": DRINKS, **more})
    terminal.project(ASKS, guest=[reply("", call), reply("Served.")])
    seen = terminal.look("run", "guest", "q", "--provider", "scripted", "--job-id", "job", types=f"{typed}\n")
    lines = terminal.call("log", "job", "--type", "finishToolCall", "--json").lines
    return seen, json.loads(lines[0])["contents"][0]["text"] if lines else ""


@pytest.mark.parametrize(("typed", "answer"), [("2", "Coffee"), ("tea", "Tea"), ("water", "water")])
def test_one_option_or_other_words_are_an_answer(terminal: Terminal, typed: str, answer: str) -> None:
    seen, said = ask_in_terminal(terminal, typed)
    assert "guest asks: What to drink?\n  1. Tea\n  2. Coffee: freshly made\n" in seen
    assert said == answer


@pytest.mark.parametrize(
    ("typed", "answer"), [("2", '["Coffee"]'), ("1, 2", '["Tea", "Coffee"]'), ("tea, water", '["Tea", "water"]')]
)
def test_several_are_a_list(terminal: Terminal, typed: str, answer: str) -> None:
    seen, said = ask_in_terminal(terminal, typed, several=True)
    assert "answer? (give numbers, or say any of these, with commas between" in seen.replace("\n", " ")
    assert said == answer


def test_without_other_words_it_is_asked_until_it_fits(terminal: Terminal) -> None:
    seen, said = ask_in_terminal(terminal, "water\n1", allowOther=False)
    assert "the answer does not fit: say one of: Tea, Coffee" in seen
    assert said == "Tea"


def test_only_the_coordinator_has_the_tool(terminal: Terminal) -> None:
    turns = {"guest": [reply("", ("hand", {"query": "go"})), reply("ok")], "hand": [reply("done")]}
    terminal.project(ASKS, **turns)
    result = terminal.call("run", "guest", "q", "--provider", "scripted", "--job-id", "job")
    assert result.code == 0
    assert "askUser" in terminal.call("expert", "show", "guest").out
    assert "askUser" not in terminal.call("expert", "show", "hand", "--as-delegate").out


def test_a_pick_of_the_base_skill_offers_it_too(terminal: Terminal) -> None:
    terminal.project(PICKS, a=[reply("ok")])
    checked = terminal.call("validate", "--strict")
    assert checked.code == 0, checked.out
    assert "askUser" in terminal.call("expert", "show", "a").out


def test_a_second_tool_of_the_name_is_an_error(terminal: Terminal) -> None:
    terminal.project(TWICE, a=[reply("ok")])
    checked = terminal.call("validate")
    assert (checked.code, "interactive tool of that name already" in checked.out) == (2, True)
