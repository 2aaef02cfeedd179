"""Tools of the base skill are chosen by group, and counted before they cost anything."""

from __future__ import annotations

import json

import pytest
from pages import page
from terminal import Terminal, reply

from perstack.core.definitions.skills import BASE_GROUPS

HEAD = """
[experts.solo]
instruction = "You work alone."
[experts.solo.skills."@perstack/base"]
type = "mcpStdioSkill"
"""
OTHERS = ["attemptCompletion", "think", "healthCheck"]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ('pick = ["files"]', [*BASE_GROUPS["files"]]),
        ('pick = ["programs", "todo", "attemptCompletion"]', ["attemptCompletion", "todo", "clearTodo", "exec"]),
        ('omit = ["files", "programs", "todo"]', OTHERS),
        ('pick = ["files"]\nomit = ["*F*", "*e"]', ["listDirectory", "createDirectory", "deleteDirectory"]),
    ],
)  # fmt: skip
def test_a_group_stands_for_its_tools(terminal: Terminal, keys: str, names: list[str]) -> None:
    terminal.project(f"{HEAD}{keys}\n", solo=[reply("ok")])
    document = json.loads(terminal.call("tools", "solo", "--json").out)
    assert [tool["name"] for tool in document["tools"]] == names
    assert terminal.call("validate", "--strict").code == 0


def test_the_group_of_programs_is_agreed_to_and_granted_like_exec(terminal: Terminal) -> None:
    terminal.as_stranger().project(
        f'{HEAD}pick = ["programs"]\n', solo=[reply("", ("exec", {"command": "true"})), reply("ok")]
    )
    assert 'executes: pick = ["exec"]' in terminal.call("trust", "--show").out
    assert terminal.call("run", "solo", "hi", "--provider", "scripted").code == 2
    terminal.call("trust", "--yes")
    assert "exec is not named" not in terminal.call("validate").out
    assert terminal.call("run", "solo", "hi", "--provider", "scripted", "--output", "text").out == "ok\n"


def test_a_group_that_is_misspelt_names_the_nearest(terminal: Terminal) -> None:
    shown = terminal.project(f'{HEAD}pick = ["file"]\n').call("validate")
    assert "`file` matches no tool of this skill; did you mean `files`?" in shown.out


def test_verbose_counts_the_tools_of_each_request_and_says_how_to_choose(terminal: Terminal) -> None:
    server = '[experts.b]\ninstruction = "i"\n[experts.b.skills.s]\ntype = "mcpStdioSkill"\ncommand = "no-such"\n'
    terminal.project(f'{HEAD}pick = ["attemptCompletion"]\n{server}')
    assert "tokens" not in terminal.call("validate").out
    lines = terminal.call("validate", "--verbose").lines
    assert [" ".join(line.split()) for line in lines if line.startswith(("solo", "b "))][2:] == [
        "solo 1 66 @perstack/base 1",
        "b 18 1,334 @perstack/base 18, s ?",
    ]
    assert lines[-1].startswith("note: b: every tool of @perstack/base; to choose, by group or name: skills.")
    document = json.loads(terminal.call("validate", "--verbose", "--json").out)
    assert document["knownTools"]["b"] == {"tokens": 1334, "tools": {"@perstack/base": 18, "s": None}}
    saved = round(1334 - 66, -1)
    assert f"{saved:,} tokens" in page("docs/base-skill.md")
