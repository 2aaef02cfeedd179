"""`perstack create`: Experts that write, check and try a definition, from a wish in plain words."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from pathlib import Path

import pytest
from pages import ROOT
from terminal import Result, Terminal, reply
from tmux import PERSTACK, tmux

from perstack.core.definitions.project import Project
from perstack.core.definitions.settings import Overrides
from perstack.definition_files import load_project, read_definition
from perstack.doors.create import COORDINATOR, TrialBudget, Trials, team, tools_for, validate_definition
from perstack.ports.environment import Environment

SHIPPED = ROOT / "host" / "perstack" / "experts" / "create-expert" / "perstack.toml"
GOOD = """maxSteps = 20

[experts.lister]
description = "Turns notes into tasks"
instruction = "Read the notes in the query and write a list of tasks to tasks.md."
"""
BAD = GOOD.replace("instruction", "instructions")
OWN_TOML = """# mine
model = "scripted"
provider.providerName = "scripted"

[experts.writer]
instruction = "You write."
"""
CREATE = ("create", "Tasks from notes", "--provider", "scripted")


def write(path: str, text: str):
    return reply("", ("writeTextFile", {"path": path, "text": text}))


def validate(text: str = ""):
    return reply("", ("validateDefinition", {"text": text}))


def edit(old: str, new: str):
    return reply("", ("editTextFile", {"path": "perstack.toml", "oldText": old, "newText": new}))


TO_WRITER = reply("", ("definition-writer", {"query": "An Expert lister that writes tasks.md"}))
TO_TESTER = reply("", ("definition-tester", {"query": "Try lister on: Ann calls Bob. There must be a tasks.md"}))
TRY = reply("", ("tryExpert", {"expert": "lister", "query": "Ann calls Bob"}))
GOOD_SO = (TRY, reply("good"))
DONE = reply("There is an Expert lister now.")


def team_that(terminal: Terminal, *writer, tester=GOOD_SO, lister=None, lead=None) -> Terminal:
    """Write a script for the team in which `definition-writer` takes these turns."""
    turns = {
        COORDINATOR: lead or [TO_WRITER, TO_TESTER, DONE],
        "definition-writer": [*writer, reply("written")],
        "definition-tester": [*tester],
        "lister": lister or [write("tasks.md", "- Ann calls Bob\n"), reply("It is in tasks.md.")],
    }
    return terminal.script(**{key: [_costing(turn) for turn in each] for key, each in turns.items()})


def _costing(turn):
    return turn if any(turn["usage"].values()) else {**turn, "usage": {"inputTokens": 10, "outputTokens": 1}}


def results(done: Result, tool: str) -> list[str]:
    return [
        event["contents"][0]["text"]
        for event in done.events
        if event["type"] == "finishToolCall" and event["toolName"] == tool
    ]


def definition(terminal: Terminal) -> str:
    return (terminal.workspace / "perstack.toml").read_text()


@pytest.fixture
def empty(terminal: Terminal) -> Terminal:
    """Return a terminal in an empty folder; the script is in another one."""
    (terminal.workspace / "here").mkdir()
    script = terminal.workspace / "script.json"
    inner = Terminal(terminal.workspace / "here")
    inner.env["PERSTACK_SCRIPT"] = str(script)
    inner.script = terminal.script  # type: ignore[method-assign]
    return inner


def test_in_a_new_folder_a_definition_is_written_checked_and_tried(empty: Terminal) -> None:
    team_that(empty, validate(GOOD), write("perstack.toml", GOOD), validate())
    done = empty.call(*CREATE, "--output", "human", attended=True)
    assert done.code == 0, done.err
    assert definition(empty) == GOOD
    assert "There is an Expert lister now." in done.out
    assert "wrote perstack.toml" in done.err
    assert "next: perstack run lister 'Ann calls Bob'" in done.err
    assert sorted(path.name for path in empty.workspace.iterdir()) == ["perstack", "perstack.toml"]
    result = empty.call("validate")
    assert (result.code, result.lines[-1]) == (0, "ok: 1 Expert")


def test_a_test_that_it_writes_is_the_next_command_and_what_it_starts_is_named(empty: Terminal) -> None:
    case = '[[experts.lister.tests]]\nname = "a"\nquery = "q"\nexpect.command = "touch judged"\n'
    team_that(empty.as_stranger(), validate(GOOD + case), write("perstack.toml", GOOD + case))
    result = empty.call(*CREATE, "--output", "human", attended=True)
    assert result.code == 0, result.err
    assert result.err.splitlines()[-2:] == ["next: perstack run lister 'Ann calls Bob'", "next: perstack test lister"]
    assert 'executes: expect.command = "touch judged"' in result.err


def test_what_it_writes_can_be_run_by_the_command_that_it_names(empty: Terminal) -> None:
    team_that(empty, write("perstack.toml", GOOD))
    assert empty.call(*CREATE).code == 0
    result = empty.call("run", "lister", "Ann calls Bob", "--provider", "scripted", "--output", "text")
    assert (result.code, result.out) == (0, "It is in tasks.md.\n")
    assert (empty.workspace / "tasks.md").read_text() == "- Ann calls Bob\n"


def test_a_try_says_what_came_of_it_and_leaves_the_folder_alone(empty: Terminal) -> None:
    team_that(empty, write("perstack.toml", GOOD))
    (told,) = results(empty.call(*CREATE), "tryExpert")
    assert told.startswith("completed, 2 steps, ")
    assert "called: lister: writeTextFile (1 time)" in told
    assert "answered:\nIt is in tasks.md." in told
    assert told.endswith("wrote tasks.md:\n- Ann calls Bob\n")
    assert not (empty.workspace / "tasks.md").exists()


def test_an_invalid_text_comes_back_with_its_lines_and_is_mended(empty: Terminal) -> None:
    team_that(empty, validate(BAD), validate(GOOD), write("perstack.toml", GOOD))
    first, second = results(empty.call(*CREATE), "validateDefinition")
    assert "perstack.toml:5: error: experts.lister.instructions: unknown key" in first
    assert "did you mean `instruction`?" in first
    assert "error: experts.lister.instruction: is missing" in first
    assert second == "ok: 1 Expert: lister"
    assert definition(empty) == GOOD


def test_a_definition_that_is_left_invalid_is_a_failure(empty: Terminal) -> None:
    team_that(empty, write("perstack.toml", BAD), tester=(TRY, reply("it cannot be read")))
    result = empty.call(*CREATE)
    assert result.code == 1
    assert "perstack.toml has errors" in result.err
    assert "instruction" in results(result, "tryExpert")[0]


@pytest.mark.parametrize(
    "path", [".env", ".env.local", "../perstack.toml", "/tmp/outside.toml", "perstack/jobs/x", ".git/hooks/pre-commit"]
)
@pytest.mark.parametrize("options", [(), ("--yes",)], ids=["", "yes"])
def test_what_is_not_its_business_cannot_be_written(empty: Terminal, path: str, options: tuple[str, ...]) -> None:
    team_that(empty, write(path, "KEY=1"), write("perstack.toml", GOOD))
    result = empty.call(*CREATE, *options)
    assert result.code == 0, result.err
    refused = next(event for event in result.events if event["type"] == "finishToolCall")
    assert refused["isError"]
    assert not (empty.workspace / path).exists()
    assert not any(path.name.startswith(".env") for path in empty.workspace.parent.rglob("*"))


def test_no_program_can_be_started_by_the_team_or_in_a_try(empty: Terminal) -> None:
    run = ("exec", {"command": "touch", "args": ["x"], "cwd": "", "env": {}, "stdout": True, "stderr": True})
    team_that(empty, reply("", run), write("perstack.toml", GOOD), lister=[reply("", run), reply("tried")])
    result = empty.call(*CREATE)
    assert result.code == 0, result.err
    assert "exec" in results(result, "exec")[0]
    assert "called: lister: exec" in results(result, "tryExpert")[0]
    assert not (empty.workspace / "x").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('[experts.lister.skills.s]\ntype = "mcpStdioSkill"\ncommand = "touch"\nargs = ["x"]\n', 'command = "touch"'),
        ('[experts.lister.provider]\nproviderName = "openai"\nsetting.baseUrl = "http://a.example"\n', "a.example"),
        ('[experts.lister.skills.s]\ntype = "mcpSseSkill"\nendpoint = "https://a.example"\n', "a.example"),
    ],
)
def test_a_try_starts_nothing_and_sends_no_key_anywhere_that_nobody_has_agreed_to(
    empty: Terminal, more: str, says: str
) -> None:
    team_that(empty.as_stranger(), write("perstack.toml", GOOD + more))
    result = empty.call(*CREATE)
    assert result.code == 0, result.err
    (told,) = results(result, "tryExpert")
    assert told.startswith("lister cannot be tried before a person agrees")
    assert says in told
    assert "perstack.toml does none of this before you agree:" in result.err
    assert says in result.err.partition("before you agree:")[2]
    assert "not agreed; to see it again: perstack trust" in result.err


def test_an_existing_definition_is_changed_only_after_the_difference_was_shown(terminal: Terminal) -> None:
    terminal.project(OWN_TOML)
    better = edit('instruction = "You write."', 'instruction = "You write, in French."')
    team_that(terminal, better, lead=[TO_WRITER, DONE])
    seen = terminal.look("create", "In French, please", types="yes\n")
    assert '-instruction = "You write."' in seen
    assert '+instruction = "You write, in French."' in seen
    assert definition(terminal) == OWN_TOML.replace("You write.", "You write, in French.")
    assert "next: perstack run writer QUERY" in seen


def test_a_no_leaves_the_definition_as_it_was(terminal: Terminal) -> None:
    terminal.project(OWN_TOML)
    team_that(terminal, write("perstack.toml", GOOD), lead=[TO_WRITER, DONE])
    seen = terminal.look("create", "Another one", types="no\n")
    assert definition(terminal) == OWN_TOML
    assert "nothing was changed" in seen


def test_with_nobody_to_ask_an_existing_definition_needs_a_yes(terminal: Terminal) -> None:
    terminal.project(OWN_TOML)
    team_that(terminal, edit("You write.", "You sing."), lead=[TO_WRITER, DONE])
    refused = terminal.call("create", "Singing")
    assert refused.code == 2
    assert "give --yes" in refused.err
    assert not (terminal.workspace / "perstack").exists()
    result = terminal.call("create", "Singing", "--yes")
    assert result.code == 0, result.err
    assert "You sing." in definition(terminal)


def test_other_files_that_are_there_are_asked_about_too(terminal: Terminal) -> None:
    (terminal.workspace / "notes.md").write_text("mine\n")
    team_that(terminal, write("perstack.toml", GOOD), write("notes.md", "yours\n"))
    result = terminal.call(*CREATE)
    assert result.code == 3
    assert definition(terminal) == GOOD
    assert (terminal.workspace / "notes.md").read_text() == "mine\n"


def test_it_uses_the_settings_and_rules_of_the_definition_that_is_there(terminal: Terminal) -> None:
    terminal.project(OWN_TOML + '[permissions]\ndeny = ["validateDefinition"]\n')
    team_that(terminal, validate(), lead=[TO_WRITER, DONE])
    result = terminal.call("create", "Look", "--yes")
    assert result.code == 0, result.err
    assert "Not run: the rule validateDefinition" in results(result, "validateDefinition")[0]


def test_a_definition_that_does_not_read_can_be_mended(terminal: Terminal) -> None:
    terminal.project("[experts.writer\n")
    team_that(terminal, validate(), write("perstack.toml", GOOD), lead=[TO_WRITER, DONE])
    result = terminal.call(*CREATE, "--yes")
    assert result.code == 0, result.err
    assert "has errors, so its settings are not used" in result.err
    assert "perstack.toml:1: error: is not TOML" in results(result, "validateDefinition")[0]
    assert definition(terminal) == GOOD


def test_what_is_left_for_later_continues_by_the_command_that_it_names(terminal: Terminal) -> None:
    terminal.project(OWN_TOML)
    team_that(terminal, edit("You write.", "You sing."), lead=[TO_WRITER, DONE])
    seen = " ".join(terminal.look("create", "Singing", types="\n", columns=200).split())
    match = re.search(r"perstack (create --resume \S+)", seen)
    assert match, seen
    assert definition(terminal) == OWN_TOML
    seen = terminal.look(*match[1].split(), types="yes\n")
    assert "You sing." in definition(terminal)
    assert "wrote perstack.toml" in seen


def test_ctrl_c_leaves_no_half_of_a_definition_and_the_job_continues(empty: Terminal) -> None:
    slow = {**reply("It is in tasks.md."), "delayMs": 60_000}
    team_that(empty, write("perstack.toml", GOOD), lister=[slow])
    room = empty.workspace.parent / "room"
    room.mkdir()
    empty.env["TMPDIR"] = str(room)
    with tmux(empty) as window:
        window.type(f'{PERSTACK} create "Tasks from notes" --provider scripted')
        window.sees("calls: tryExpert")
        window.press("C-c")
        window.sees("perstack create --resume")
    assert definition(empty) == GOOD
    assert list(room.iterdir()) == []
    team_that(empty, write("perstack.toml", GOOD))
    job = empty.call("jobs", "--json").events[0]["id"]
    result = empty.call("create", "--resume", job, "--provider", "scripted")
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("create", "A poet"), "no model provider is set up: set ANTHROPIC_API_KEY, or set"),
        (("create", ""), "QUERY is empty"),
        (("create", "A poet", "--resume", "x"), "leave QUERY out"),
        (("create", "--resume", "other"), "other"),
        (("create", "A poet", "--config", "x.toml"), "x.toml"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_writes_nothing(
    terminal: Terminal, args: tuple[str, ...], says: str
) -> None:
    home = str(terminal.workspace / "home")
    result = terminal.run(*args, env={"PERSTACK_PLUGINS": "", "HOME": home})
    assert result.code in (1, 2)
    assert says in result.err
    assert "Traceback" not in result.err
    assert not (terminal.workspace / "perstack.toml").exists()
    assert not (terminal.workspace / "perstack").exists()


def test_half_of_what_may_be_spent_is_for_trials(empty: Terminal) -> None:
    many = [{**write("tasks.md", "x"), "usage": {"inputTokens": 25_000, "outputTokens": 0}}] * 9
    tester = (TRY, TRY, TRY, reply("no"))
    team_that(empty, write("perstack.toml", GOOD), tester=tester, lister=many)
    result = empty.call(*CREATE, "--max-tokens", "120000")
    assert result.code in (0, 4), result.err
    tries = results(result, "tryExpert")
    assert "stoppedByBudget" in tries[0]
    assert "may spend 60,000 tokens" in tries[0]
    assert [attempt.partition(":")[0] for attempt in tries[1:]] == ["the budget for trials is used up"] * 2


def test_what_a_try_costs_is_not_for_the_definition_to_say(terminal: Terminal) -> None:
    terminal.project(OWN_TOML + '[prices."scripted/scripted"]\ninput = 1000\noutput = 1000\n')
    tester = (reply("", ("tryExpert", {"expert": "writer", "query": "x"})), reply("good"))
    team_that(terminal, edit("= 1000\noutput = 1000", "= 0\noutput = 0"), tester=tester)
    script = json.loads((terminal.workspace / "script.json").read_text())
    script["experts"]["writer"] = {"turns": [_costing(reply("tried"))]}
    (terminal.workspace / "script.json").write_text(json.dumps(script))
    result = terminal.call("create", "Cheaper", "--yes", "--max-cost", "50")
    assert result.code == 0, result.err
    assert "output = 0" in definition(terminal)
    assert results(result, "tryExpert")[0].startswith("completed, 1 step, 11 tokens, $0.0110")


def test_its_own_definition_has_no_problem(tmp_path: Path) -> None:
    env = Environment({})
    trials = Trials(tmp_path, env, Overrides(), (), Project(), TrialBudget())
    kit = tools_for(tmp_path, env, (), trials, lambda *one: None)
    project, problems = asyncio.run(validate_definition(read_definition(SHIPPED), env, [kit]))
    assert project is not None
    assert problems == ()
    assert set(team().experts) == {COORDINATOR, "definition-writer", "definition-tester"}


def test_each_example_that_the_writer_sees_is_a_good_definition(tmp_path: Path) -> None:
    shown = tomllib.loads(SHIPPED.read_text())["experts"]["definition-writer"]["instruction"]
    examples = re.findall(r"```toml\n(.*?)```", shown, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        (tmp_path / "perstack.toml").write_text(example)
        assert load_project(tmp_path / "perstack.toml").warnings == ()
