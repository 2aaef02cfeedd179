"""docs/perstack-toml.md says what the schema says, and the schema what the core's definitions say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perstack.config import load_project
from perstack.config.problems import describe_problems
from perstack.config.schema import AUDIT, EXPERT, ITERATE, OAUTH, PROJECT, PROVIDER, SKILLS, TOOL
from perstack.core.definitions import (
    Audit,
    Expert,
    InteractiveSkill,
    InteractiveTool,
    Iterate,
    McpSseSkill,
    McpStdioSkill,
    OAuth,
    PluginSkill,
    Project,
    ProviderSetting,
)
from perstack.errors import DefinitionError

PAGE = (Path(__file__).parents[3] / "docs" / "perstack-toml.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

TAKES = {
    "text": "text",
    "texts": "list of texts",
    "words": "text or list of texts",
    "evaluator": "text, list of texts, or table",
    "decimal": "number",
    "flag": "true or false",
    "number": "whole number",
    "budget": "word or whole number",
    "table": "table",
    "json": "table",
    "domains": "list of texts",
    "choice": "one of",
    "ignored": "any",
}


def row(name, key):
    meaning = f"**required**; {key.meaning}" if key.required else key.meaning
    if key.longest is not None:
        meaning += f"; at most {key.longest:,} characters"
    if key.kind == "ignored":
        meaning = f"no effect: {meaning}"
    takes = " ".join((TAKES[key.kind], ", ".join(f"`{word}`" for word in key.choices))).strip()
    return f"| `{name}` | {takes} | {meaning} |"


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("## Top of the file", PROJECT),
        ("## `[provider]`", PROVIDER),
        ("## `[audit]`", AUDIT),
        ("## `[experts.NAME]`", EXPERT),
        ("### `[experts.NAME.iterate]`", ITERATE),
        *((f"### `{name}`", table) for name, table in SKILLS.items()),
        ("Each tool is a table of its own", TOOL),
        ("`[experts.NAME.skills.SKILL.oauth]`", OAUTH),
    ],
)
def test_each_table_of_the_page_lists_every_known_key_with_its_meaning(heading, table):
    after = PAGE[PAGE.index(f"\n{heading}") :]
    printed = re.findall(r"^\| `.*$", after[: after.index("\n\n", after.index("\n| `"))], re.MULTILINE)
    assert printed == [row(name, key) for name, key in table.items()]


@pytest.mark.parametrize(
    ("model", "table", "only_here", "only_there"),
    [
        (Project, PROJECT, {"include"}, {"path", "broken", "files", "includes"}),
        (ProviderSetting, PROVIDER, set(), set()),
        (Audit, AUDIT, set(), set()),
        (Expert, EXPERT, set(), {"key"}),
        (Iterate, ITERATE, set(), set()),
        (McpStdioSkill, SKILLS["mcpStdioSkill"], set(), {"name"}),
        (McpSseSkill, SKILLS["mcpSseSkill"], set(), {"name"}),
        (InteractiveSkill, SKILLS["interactiveSkill"], set(), {"name"}),
        (PluginSkill, SKILLS["pluginSkill"], set(), {"name"}),
        (OAuth, OAUTH, set(), set()),
        (InteractiveTool, TOOL, {"inputJsonSchema"}, {"name", "inputSchema"}),
    ],
)
def test_the_schema_knows_the_keys_of_the_definitions(model, table, only_here, only_there):
    known = {name for name, key in table.items() if key.kind != "ignored"}
    fields = {field.alias for field in model.model_fields.values()}
    assert known - only_here == fields - only_there


def test_the_example_has_twelve_lines_and_loads_with_nothing_to_say(write):
    lines = EXAMPLES[0].splitlines()
    assert len(lines) == 12
    loaded = load_project(write(EXAMPLES[0]))
    assert loaded.warnings == ()
    assert list(loaded.project.experts) == ["reviewer"]


def test_the_other_examples_load_too(write):
    write('[experts.a]\ninstruction = "x"', "experts/a/perstack.toml")
    for text in EXAMPLES[1:-1]:
        assert load_project(write(text)).warnings == ()


def test_the_mistakes_of_the_page_are_told_as_it_says(write):
    path = write(EXAMPLES[-1])
    with pytest.raises(DefinitionError) as caught:
        load_project(path)
    told = "\n".join(describe_problems(caught.value.problems)).replace(str(path), "perstack.toml")
    assert f"```text\n{told}\n```" in PAGE
