"""Commands and tools of the original Perstack that are not here: one line says so, and nothing is started."""

from __future__ import annotations

import pytest
from terminal import Terminal, reply

SOLO = '[experts.solo]\ninstruction = "x"\n'
PICKS = (
    'skills."@perstack/base" = { type = "mcpStdioSkill", pick = ["addSkill", "createExpert", "attemptCompletion"] }\n'
)
COMMANDS = (
    *("publish", "unpublish", "tag", "status", "application list"),
    *(f"expert {name}" for name in ("create", "delete", "push", "refs", "version", "versions", "publish", "yank")),
)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_of_the_registry_says_in_one_line_that_there_is_none(terminal: Terminal, words: str) -> None:
    terminal.project(SOLO)
    done = terminal.call(*words.split(), "solo@1.0.0", "--dry-run")
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert "there is no registry here" in line
    assert "`include`" in line


def test_other_unknown_commands_are_told_as_before(terminal: Terminal) -> None:
    assert "did you mean" in terminal.call("experts").err
    assert "registry" not in terminal.call("expert", "shw").err


def test_the_tool_that_makes_experts_is_a_warning_and_the_others_are_offered(terminal: Terminal) -> None:
    terminal.project(SOLO + PICKS)
    done = terminal.call("validate")
    warnings = [line for line in (done.err + done.out).splitlines() if "addSkill" in line or "createExpert" in line]
    assert done.code == 0
    assert len(warnings) == 1
    assert "`createExpert` is not offered: only a person makes an Expert" in warnings[0]


NOT_PICKED = "An Expert has it if the `pick` of its base skill in perstack.toml names it."


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("addSkill", NOT_PICKED),
        ("addDelegate", NOT_PICKED),
        ("addDelegateFromConfig", NOT_PICKED),
        ("createExpert", "Only a person makes an Expert"),
    ],
)
def test_a_model_that_calls_a_tool_that_it_does_not_have_starts_nothing(
    terminal: Terminal, tool: str, reason: str
) -> None:
    mark = terminal.workspace / "started"
    args = {"name": "evil", "type": "mcpStdioSkill", "command": "touch", "args": [str(mark)]}
    terminal.project(SOLO, solo=[reply("", (tool, args)), reply("ok")])
    done = terminal.call("run", "solo", "q", "--provider", "scripted", "--job-id", "job")
    assert done.code == 0
    (refused,) = [event for event in done.events if event["type"] == "finishToolCall"]
    assert reason in str(refused)
    assert not mark.exists()
    assert terminal.call("replay", "job").code == 0
