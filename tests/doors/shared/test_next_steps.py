"""Next steps are data; each door phrases them in its own terms."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from pages import ROOT

from perstack.doors.shared import next_step_phrases as acp
from perstack.doors.shared import next_step_phrases as cli
from perstack.doors.shared import next_step_phrases as http
from perstack.doors.shared import next_step_phrases as mcp
from perstack.errors import NotFound, PerstackError, UsageError
from perstack.next_steps import (
    IN_WORDS,
    Act,
    AnswerEarlier,
    Continue,
    Decide,
    GiveAnswer,
    Inspect,
    Install,
    Kind,
    Listing,
    LogIn,
    NextStep,
    Option,
    Resume,
    ResumeWithoutDependencies,
    SetOption,
    Start,
    Trust,
    TryAgain,
    WriteDefinition,
    in_words,
    phrase_name,
)

STEPS: tuple[NextStep, ...] = (
    GiveAnswer("tea"),
    AnswerEarlier("tea"),
    Resume("tea"),
    Resume("tea", needs="max_steps"),
    Resume("tea", "task"),
    Resume("tea", "series"),
    TryAgain("tea"),
    ResumeWithoutDependencies("tea"),
    Continue("tea"),
    Continue("tea", "guest"),
    Start(),
    Start("tea"),
    *(Inspect(place, "tea") for place in get_args(Listing)),
    *(SetOption(option) for option in get_args(Option)),
    WriteDefinition(),
    Install(),
    LogIn("tracker"),
    Trust(),
    Trust("/there"),
    Trust(is_state=True),
    Trust(is_state=True, storage="file:there"),
    *(Decide(act, "tea", "with milk", (("only", "*.md"),)) for act in get_args(Act)),
)
PHRASES = (cli.cli_phrase, mcp.mcp_phrase, http.http_phrase, acp.acp_phrase, acp.tui_phrase, acp.plain_phrase, in_words)
COMMAND = re.compile(r"\bperstack [a-z]+|(?<![\w-])--[a-z][a-z-]*|leave out")
COMMAND_NAME = re.compile(
    r"\bperstack (login|logout|init|models|run|resume|answer|install|task|trust|jobs|inbox|log|verify)\b"
)
NAMES = ("perstack serves", "this perstack reads", "update perstack", "is out of date")
BELOW_THE_DOORS = ("core", "engine", "ports", "config", "lockfile", "trust", "host.py", "errors.py", "next_steps.py")
WRITTEN_FOR_PEOPLE = {
    "lockfile/lock.py": "# What the skills offer; written by `perstack install`, and read by every run.\n",
}
"""Modules with such a text, and that text: the first line of a file, which says who wrote it."""
TABLES = ("core/permissions/programs.py", "core/secrets/recognition.py", "core/definitions/options.py")
"""Modules that name the options of other programs, or declare options of the command line with their help."""


def test_every_step_is_tried() -> None:
    assert {type(step) for step in STEPS} == set(get_args(NextStep))


@pytest.mark.parametrize("said", PHRASES)
def test_each_door_has_words_for_each_step(said: object) -> None:
    assert callable(said)
    for step in STEPS:
        words = said(step)
        assert isinstance(words, str)
        assert words == words.strip() != ""
        assert "\n" not in words
        assert "None" not in words


@pytest.mark.parametrize(
    "phrases", [IN_WORDS, acp.ACP, cli.CLI, cli.COMMANDS, mcp.MCP, http.HTTP, acp.TUI, acp.LINEAR_TUI]
)
def test_each_phrase_is_of_a_step(phrases: Mapping[str, str]) -> None:
    resumed = (Resume("tea", kind, needs) for kind in get_args(Kind) for needs in (None, *get_args(Option)))
    others = (
        *(GiveAnswer("tea", is_approval=True, is_shown=shown) for shown in (False, True)),
        *(Inspect(place) for place in get_args(Listing)),
    )
    names = [phrase_name(step) for step in (*STEPS, *resumed, *others)]
    assert [phrase for phrase in phrases if not any(f"{name} ".startswith(f"{phrase} ") for name in names)] == []


def test_an_error_is_said_in_the_words_of_the_door() -> None:
    error = UsageError("Job tea waits for an answer", next_steps=(GiveAnswer("tea"),))
    assert str(error) == "Job tea waits for an answer; give the answer to tea"
    assert error.text_for(cli.cli_phrase) == 'Job tea waits for an answer; answer with: perstack answer tea "ANSWER"'
    assert "the tool answer (job tea)" in error.text_for(mcp.mcp_phrase)
    assert error.text_for(acp.acp_phrase) == "Job tea waits for an answer; answer in the next prompt"
    task = NotFound("there is no task tea", next_steps=(Inspect("tasks"),))
    assert task.text_for(http.http_phrase) == "there is no task tea; GET /v1/execution lists them"
    assert (error.message, error.next_steps) == ("Job tea waits for an answer", (GiveAnswer("tea"),))


def test_an_error_without_steps_is_its_message_alone() -> None:
    assert (
        str(PerstackError("it is broken")) == PerstackError("it is broken").text_for(cli.cli_phrase) == "it is broken"
    )
    assert str(PerstackError()) == ""


def test_no_text_below_the_doors_names_a_command_or_an_option() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.value!r}"
        for file in _files()
        if str(file.relative_to(ROOT / "host/perstack")) not in TABLES
        for node in _texts(file)
        if COMMAND.search(_without_names(node.value))
        and WRITTEN_FOR_PEOPLE.get(str(file.relative_to(ROOT / "host/perstack"))) != node.value
    ]
    assert found == []


def test_no_plugin_but_a_door_names_a_command() -> None:
    doors = {"perstack_tui", "perstack_server", "perstack_studio", "perstack_acp"}
    files = [file for file in sorted((ROOT / "plugins").rglob("*.py")) if doors.isdisjoint(file.parts)]
    assert [f"{file}: {node.value}" for file in files for node in _texts(file) if COMMAND_NAME.search(node.value)] == []


def _without_names(text: str) -> str:
    for name in NAMES:
        text = text.replace(name, "")
    return text


class Text(NamedTuple):
    """A string constant that is not a docstring."""

    value: str
    lineno: int


def _files() -> list[Path]:
    places = [ROOT / "host/perstack" / name for name in BELOW_THE_DOORS]
    return [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*.py")))]


def _texts(file: Path) -> list[Text]:
    tree = ast.parse(file.read_text())
    documented = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Key":
            documented |= {id(arg) for arg in node.args}  # the words of a page of the docs
    return [
        Text(node.value, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
    ]
