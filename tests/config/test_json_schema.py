"""The JSON schema of perstack.toml, which editors read, says of keys what the file is held to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from definition_schema import definition_schema
from pages import ROOT
from terminal import Terminal

from perstack.doors.cli.first_run.templates import templates

SCHEMA = definition_schema()
CHECK = jsonschema.Draft7Validator(SCHEMA)
# hidden folders, such as .venv, hold very many files
FOLDERS = sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
FOUND = [ROOT / "perstack.toml", *(path for folder in FOLDERS for path in sorted(folder.rglob("perstack.toml")))]
FILES = [path for path in FOUND if "starters" not in path.parts]

GOOD = """
model = "m"
[provider]
providerName = "openai"
[provider.setting]
anything = [1, { a = true }]
[experts."maker"]
instruction = "i"
reasoningBudget = 4096
[experts."maker".skills.files]
type = "mcpStdioSkill"
command = "x"
args = ["x"]
env = { A = "b" }
[experts."maker".skills.files.tools.read]
paths = ["path"]
[experts."maker".skills.person]
type = "interactiveSkill"
[experts."maker".skills.person.tools.ask]
inputJsonSchema = '{"type": "object"}'
[experts."maker".iterate]
evaluator = { expert = "c" }
[experts.c]
instruction = "j"
[prices."p/m"]
input = 1.0
output = 2
"""


def complaints(toml: str) -> list[str]:
    return [error.message for error in CHECK.iter_errors(tomllib.loads(toml))]


def keywords(schema: object, *, is_table: bool = False) -> Iterator[str]:
    """Those of a schema and all within it; the names of keys in perstack.toml are none."""
    if isinstance(schema, list):
        for one in schema:
            yield from keywords(one)
    if isinstance(schema, dict):
        for name, value in schema.items():
            if not is_table:
                yield name
            yield from keywords(value, is_table=not is_table and name in ("properties", "definitions"))


def test_it_has_no_keyword_that_the_language_server_of_taplo_passes_over() -> None:
    for_values = {"type", "enum", "const", "required", "properties", "additionalProperties", "items"}
    for_people = {"$schema", "title", "description", "deprecated"}
    assert set(keywords(SCHEMA)) <= {*for_values, *for_people, "allOf", "anyOf", "oneOf", "$ref", "definitions"}


@pytest.fixture
def taplo() -> str:
    """The program that Even Better TOML for VS Code has within it."""
    found = os.environ.get("TAPLO") or shutil.which("taplo")
    if found is None:
        pytest.skip("needs taplo: pip install taplo, or TAPLO=PATH")
    return found


@pytest.mark.parametrize("template", sorted(templates()))
def test_taplo_takes_what_init_writes_by_the_schema_that_its_first_line_names(
    terminal: Terminal, taplo: str, template: str
) -> None:
    assert terminal.call("init", "--template", template).code == 0
    path = terminal.workspace / "perstack.toml"

    def check() -> subprocess.CompletedProcess[str]:
        command = [taplo, "check", "--colors", "never", str(path)]
        return subprocess.run(command, cwd=terminal.workspace, capture_output=True, text=True, timeout=60, check=False)

    good = check()
    assert good.returncode == 0, good.stderr
    path.write_text(path.read_text().replace("maxSteps = 30", 'maxSteps = "many"'))
    wrong = check()
    assert wrong.returncode == 1
    assert '"many" is not of type "integer"' in wrong.stderr


def test_it_is_a_schema_of_draft_7() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_definition_of_this_repository_keeps_it(path: Path) -> None:
    assert complaints(path.read_text()) == []


def test_a_definition_that_uses_many_keys_keeps_it() -> None:
    assert complaints(GOOD) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('model = "m"', "model = 1"),
        ('model = "m"', 'modle = "m"'),
        ('providerName = "openai"', 'name = "p"'),
        ('instruction = "j"', 'instructions = "j"'),
        ("reasoningBudget = 4096", 'reasoningBudget = "much"'),
        ('args = ["x"]', 'args = "x"'),
        ('env = { A = "b" }', "env = { A = 1 }"),
        ('type = "interactiveSkill"', 'type = "interactive"'),
        ("""inputJsonSchema = '{"type": "object"}'""", 'inputJsonSchema = { type = "object" }'),
        ('evaluator = { expert = "c" }', "evaluator = 1"),
    ],
)
def test_a_mistake_in_it_is_found(right: str, wrong: str) -> None:
    assert GOOD.count(right) == 1
    assert complaints(GOOD.replace(right, wrong))


def test_each_key_says_what_it_means(terminal: Terminal) -> None:
    printed: dict[str, Any] = json.loads(terminal.call("validate", "--json-schema").out)
    assert printed == SCHEMA
    tables = [printed, *printed["definitions"].values()]
    keys = {name: key for table in tables for name, key in table.get("properties", {}).items()}
    assert "shows the model" in keys["agentsMd"]["description"] or "AGENTS.md" in keys["agentsMd"]["description"]
    unsaid = [name for name, key in keys.items() if not key.get("description")]
    assert set(unsaid) <= {"expert", "entry"}


def test_experts_are_listed_with_what_each_is_for(terminal: Terminal) -> None:
    (terminal.workspace / "perstack.toml").write_text(GOOD.replace('instruction = "j"', 'instruction = "j\\u001b[2J"'))
    listed = terminal.call("expert", "list")
    assert [line.split() for line in listed.lines] == [
        ["Expert", "what", "it", "is", "for", "delegates"],
        ["maker", "i", "-"],
        ["c", "j", "[2J", "-"],
    ]
    assert [json.loads(line)["key"] for line in terminal.call("expert", "list", "--json").lines] == ["maker", "c"]
