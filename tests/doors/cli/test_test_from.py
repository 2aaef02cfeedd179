"""`perstack test --from JOB`: a test and its recording, written beside the definition; and what such tests catch."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm
from terminal import Terminal, reply

EXEC = {"command": "wc", "args": ["-w", "haiku.md"], "env": {}, "cwd": ".", "stdout": True, "stderr": True}
TEAM = """
# the team: comments stay
[experts.lead] # of the team
instruction = "[[lead]] has haiku written and read."
delegates = ["writer", "critic"]
maxSteps = 20
output = '{"type": "object", "properties": {"words": {"type": "integer"}}, "required": ["words"]}'

[experts.lead.skills.person]
type = "interactiveSkill"
[experts.lead.skills.person.tools.askUser]
inputJsonSchema = '{"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}'

[experts.writer]
instruction = "[[writer]] writes haiku."
[experts.writer.skills."@perstack/base"]
type = "mcpStdioSkill"
command = "npx"
packageName = "@perstack/base"
pick = ["attemptCompletion", "writeTextFile", "exec"]

[experts.critic]
instruction = "[[critic]] reads haiku."
"""
SAYS: dict[str, list[dict[str, Any]]] = {
    "lead": [
        reply("", ("askUser", {"question": "About what?"})),
        reply("", ("writer", {"query": "a haiku about logs"})),
        reply("", ("critic", {"query": "is it good?"})),
        reply('{"words": 4}', usage=(100, 10)),
    ],
    "writer": [
        reply("", ("writeTextFile", {"path": "haiku.md", "text": "Each step written down.\n"}), usage=(50, 5)),
        reply("", ("exec", EXEC)),
        reply("Written."),
    ],
    "critic": [reply("It is.")],
}


@pytest.fixture
def team(terminal: Terminal) -> Terminal:
    """Return a project with a Job `haiku` of three Experts."""
    terminal.project(TEAM, **SAYS)
    stopped = terminal.call("run", "lead", "A haiku", "--provider", "scripted", "--job-id", "haiku")
    assert stopped.code == 3, stopped.err
    result = terminal.call("answer", "haiku", "Logs", "--provider", "scripted")
    assert result.code == 0, result.err
    return terminal


@pytest.fixture
def tested_team(team: Terminal) -> Terminal:
    """Return the project of `team` with a test made of the Job."""
    result = team.call("test", "--from", "haiku", "--name", "a haiku")
    assert result.code == 0, result.err
    return team


def test_a_test_of_a_job_is_written_beside_the_definition_whose_text_stays(tested_team: Terminal) -> None:
    written = (tested_team.workspace / "perstack.toml").read_text()
    assert written.startswith(TEAM)
    assert (
        written.removeprefix(TEAM)
        == """
[[experts.lead.tests]]
name = "a haiku"
query = "A haiku"
model = "tests/lead-a-haiku.json"

[experts.lead.tests.expect]
status = "completed"
called = ["askUser", "delegate/writer", "delegate/critic", "writeTextFile(path=haiku.md)", "exec"]
files."haiku.md" = "Each step written down."
"""
    )
    assert (tested_team.workspace / "tests" / "lead-a-haiku.json").is_file()


def test_it_passes_where_there_is_no_key_no_script_and_nobody_to_answer(tested_team: Terminal) -> None:
    result = tested_team.call("test", env={"PERSTACK_PLUGINS": "", "PERSTACK_SCRIPT": ""})
    assert (result.code, result.err) == (0, ""), result.out
    assert result.lines[-1].startswith("1 of 1 test passed")


MUTATIONS: dict[str, tuple[str, str]] = {
    "a tool is withdrawn": ('"writeTextFile", "exec"]', '"exec"]'),
    "a delegate is removed": ('delegates = ["writer", "critic"]', 'delegates = ["writer"]'),
    "a rule denies a call": ("# the team: comments stay", '[permissions]\ndeny = ["exec(wc *)"]'),
    "a rule asks about a call": ("# the team: comments stay", '[permissions]\nask = ["writeTextFile"]'),
    "fewer steps are allowed": ("maxSteps = 20", "maxSteps = 3"),
    "the result has to fit another schema": ('{"type": "integer"}', '{"type": "string"}'),
    "a question can no longer be asked": ("person.tools.askUser]", "person.tools.askBoss]"),
    "a question has other arguments": ('"required": ["question"]', '"required": ["question", "why"]'),
    "calls have a budget": ("# the team: comments stay", "[budget]\nmaxToolCalls = 1"),
    "tokens have a budget": ("maxSteps = 20", "budget = { maxTokens = 1 }"),
    "an instruction is another": ("[[writer]] writes haiku.", "[[writer]] writes limericks."),
    "a delegate's result has to fit a schema": (
        'instruction = "[[critic]] reads haiku."',
        'instruction = "[[critic]] reads haiku."\nreturns = \'{"type": "object", "required": ["good"]}\'',
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_recorded_test_catches_a_definition_in_which(tested_team: Terminal, mutation: str) -> None:
    path = tested_team.workspace / "perstack.toml"
    before, after = MUTATIONS[mutation]
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    result = tested_team.call("test", env={"PERSTACK_PLUGINS": "", "PERSTACK_SCRIPT": ""})
    assert result.code == 1, result.out + result.err
    assert "FAILED lead: a haiku" in result.out


def test_a_name_is_given_once_and_nothing_is_changed_when_it_is_refused(tested_team: Terminal) -> None:
    path = tested_team.workspace / "perstack.toml"
    before = path.read_bytes()
    for args, words in (
        (("--name", "a haiku"), "Expert `lead` already has a test `a haiku`: choose another --name"),
        (("--name", "a\nb"), "--name must be one line"),
        ((), "--from makes one test: give it a --name"),
    ):
        result = tested_team.call("test", "--from", "haiku", *args)
        assert (result.code, words in result.err) == (2, True), result.err
    assert tested_team.call("test", "--name", "x").code == 2
    assert path.read_bytes() == before
    assert [path.name for path in (tested_team.workspace / "tests").iterdir()] == ["lead-a-haiku.json"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_tests_follow_whatever_the_file_ends_with(team: Terminal, ending: str) -> None:
    path = team.workspace / "perstack.toml"
    text = TEAM.rstrip("\n").replace("\n", "\r\n" if ending == "\r\n" else "\n") + ending
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    path.chmod(0o640)
    for name in ("one", "two"):
        result = team.call("test", "--from", "haiku", "--name", name)
        assert result.code == 0, result.err
    assert path.read_bytes().startswith(b"\xef\xbb\xbf" + text.encode())
    assert path.stat().st_mode & 0o777 == 0o640
    assert b"\n" not in path.read_bytes().replace(b"\r\n", b"") or ending != "\r\n"
    assert team.call("validate").code == 0


def test_two_at_once_lose_nothing(team: Terminal) -> None:
    adding = [
        warm.perstack(
            *("test", "--from", "haiku", "--name", name),
            cwd=team.workspace,
            env={**team.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in ("one", "two", "three")
    ]
    for process in adding:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
    assert (team.workspace / "perstack.toml").read_text().count("[[experts.lead.tests]]") == 3


def test_tests_that_are_a_list_in_brackets_are_left_as_they_are(team: Terminal) -> None:
    path = team.workspace / "perstack.toml"
    written = TEAM.replace("maxSteps = 20", 'maxSteps = 20\ntests = [{ name = "n", query = "q" }]')
    path.write_text(written)
    result = team.call("test", "--from", "haiku", "--name", "one")
    assert result.code == 2
    assert "no test can be added to Expert `lead`" in result.err
    assert path.read_text() == written
    assert list((team.workspace / "tests").iterdir()) == []


def test_a_job_that_needs_files_names_a_folder_that_has_them(terminal: Terminal, tmp_path: Path) -> None:
    edit = {"path": "notes.md", "oldText": "old", "newText": "new"}
    terminal.project(
        '[experts.editor]\ninstruction = "[[editor]]"', editor=[reply("", ("editTextFile", edit)), reply("Edited.")]
    )
    (terminal.workspace / "notes.md").write_text("old words")
    assert terminal.call("run", "editor", "go", "--provider", "scripted", "--job-id", "e").code == 0
    refused = terminal.call("test", "--from", "e", "--name", "edits")
    assert refused.code == 2
    assert "name a folder that has them with --files" in refused.err
    fixture = terminal.workspace / "tests" / "notes"
    fixture.mkdir(parents=True)
    (fixture / "notes.md").write_text("old words")
    result = terminal.call("test", "--from", "e", "--name", "edits", "--files", "tests/notes")
    assert result.code == 0, result.err
    assert 'workspace = "tests/notes"' in (terminal.workspace / "perstack.toml").read_text()
    assert 'files."notes.md" = "new words"' in (terminal.workspace / "perstack.toml").read_text()
    assert terminal.call("test").code == 0
    assert (fixture / "notes.md").read_text() == "old words"
