"""Commands and tools of the original Perstack that are not here: one line says so, and nothing is started."""

from __future__ import annotations

import pytest
from terminal import Terminal, reply

SOLO = '[experts.solo]\ninstruction = "x"\n'
PICKS = (
    'skills."@perstack/base" = { type = "mcpStdioSkill", pick = ["addSkill", "readTextFile", "attemptCompletion"] }\n'
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


def test_a_tool_with_which_an_expert_changes_itself_is_a_warning(terminal: Terminal) -> None:
    terminal.project(SOLO + PICKS)
    done = terminal.call("validate")
    (line,) = [line for line in (done.err + done.out).splitlines() if "addSkill" in line]
    assert done.code == 0
    assert "`addSkill` of the original is not offered: an Expert's skills and delegates are those of" in line


@pytest.mark.parametrize("tool", ["addSkill", "addDelegate", "addDelegateFromConfig", "createExpert"])
def test_a_model_that_calls_such_a_tool_starts_nothing_and_is_told_why(terminal: Terminal, tool: str) -> None:
    mark = terminal.workspace / "started"
    args = {"name": "evil", "type": "mcpStdioSkill", "command": "touch", "args": [str(mark)]}
    terminal.project(SOLO, solo=[reply("", (tool, args)), reply("ok")])
    done = terminal.call("run", "solo", "q", "--provider", "scripted", "--job-id", "job")
    assert done.code == 0
    (refused,) = [event for event in done.events if event["type"] == "finishToolCall"]
    assert "only a person changes" in str(refused)
    assert not mark.exists()
    assert terminal.call("replay", "job").code == 0
