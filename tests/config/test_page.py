"""docs/perstack-toml.md says of each key what the core's definitions say."""

from __future__ import annotations

import builtins
import re
import textwrap
import types
import typing
from pathlib import Path
from typing import get_args, get_origin

import pytest
from pages import keep_part

from perstack.core.definitions.experts import (
    Expert,
    FileSearchOptions,
    Iterate,
    ProviderToolOptions,
    WebToolOptions,
)
from perstack.core.definitions.keys import InText, Rule
from perstack.core.definitions.models import Price, ProviderLimits
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Audit, Project, Retention, Schedule
from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.settings import Budget, ProviderSetting
from perstack.core.definitions.skills import (
    AgentSkill,
    InteractiveSkill,
    InteractiveTool,
    McpSseSkill,
    McpStdioSkill,
    McpTool,
    OAuth,
    PluginSkill,
)
from perstack.definition_files import load_project
from perstack.doors.shared.text import describe_problems
from perstack.errors import DefinitionError
from perstack.expert_tests.models import Expected, ExpertTest
from perstack.toml_reader.tables import IGNORED, READ_SEPARATELY, keys_of

PAGE = (Path(__file__).parents[2] / "docs" / "perstack-toml.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def takes(annotation):
    """A type in words, as the page has it."""
    match get_origin(annotation), get_args(annotation):
        case (typing.Annotated, (inner, *_)):
            return takes(inner)
        case (typing.Literal, words):
            return f"{'one of ' * (len(words) > 1)}{', '.join(f'`{word}`' for word in words)}"
        case (typing.Union | types.UnionType, parts):
            *some, last = dict.fromkeys(takes(part) for part in parts if part is not types.NoneType)
            return " or ".join([*([", ".join(some)] if some else []), last])
        case (builtins.tuple, _) if takes(get_args(annotation)[0]) == "text":
            return "list of texts"
        case _:
            return {str: "text", bool: "true or false", int: "whole number", float: "number"}.get(annotation, "table")


def rows(model):
    """What can be written in a table; what has no effect comes last."""
    fields = {field.alias: field for field in model.model_fields.values()}
    written = [row(name, key, fields[key.field]) for name, key in keys_of(model).items()]
    written += [f"| `{name}` | tables | {meaning} |" for name, meaning in READ_SEPARATELY.get(model, {}).items()]
    return [*written, *(f"| `{name}` | any | no effect: {why} |" for name, why in IGNORED.get(model, {}).items())]


def row(name, key, field):
    is_text = any(isinstance(one, InText) for one in field.metadata)
    limits = [f"; {one.limit}" for one in field.metadata if isinstance(one, Rule) and one.limit]
    meaning = f"{'**required**; ' * key.is_required}{key.meaning}{''.join(limits)}"
    return f"| `{name}` | {'text' if is_text else takes(field.annotation)} | {meaning} |"


OF_SKILLS = [
    one
    for one in rows(McpStdioSkill)
    if all(one in rows(skill) for skill in (McpSseSkill, InteractiveSkill, PluginSkill))
]
"""Rows of all skills but `agentSkill`, which have a table of their own."""


def key_of(printed):
    return re.match(r"\| `(\w+)`", printed)[1]


@pytest.mark.parametrize(
    ("sentence", "model", "also"),
    [
        ("These keys of the [top of the file]", Expert, rows(Project)),
        ("As for an `mcpStdioSkill`: ", McpSseSkill, [one for one in rows(McpStdioSkill) if one not in OF_SKILLS]),
    ],
)
def test_keys_that_two_tables_have_are_described_once_and_named_in_the_other(sentence, model, also):
    printed = PAGE[PAGE.index(f"\n{sentence}") :].strip().partition("\n\n")[0]
    before, _, said = printed.partition(": ")
    *some, last = [f"`{key_of(one)}`" for one in rows(model) if one in also]
    wanted = textwrap.fill(f"{before}: {', '.join(some)} and {last}.", 120, break_on_hyphens=False)
    said = keep_part("docs/perstack-toml.md", printed, wanted).partition(": ")[2]
    assert re.findall(r"`\w+`", said) == [*some, last]


def test_the_keys_of_all_skills_have_a_table():
    after = PAGE[PAGE.index("\n## Skills: ") :]
    assert re.findall(r"^\| `.*$", after[: after.index("\n### ")], re.MULTILINE) == OF_SKILLS


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## Top of the file", Project),
        ("## `[provider]`", ProviderSetting),
        ("## `[budget]`", Budget),
        ("## `[prices]`", Price),
        ("## `[limits]`", ProviderLimits),
        ("## `[audit]`", Audit),
        ("## `[retention]`", Retention),
        ("## `[schedules.NAME]`", Schedule),
        ("## `[permissions]`", Permissions),
        ("## `[sandbox]`", Sandbox),
        ("## `[experts.NAME]`", Expert),
        ("### `[experts.NAME.providerToolOptions]`", ProviderToolOptions),
        ("`webSearch` and `webFetch` have", WebToolOptions),
        ("`fileSearch` needs its key", FileSearchOptions),
        ("### `[experts.NAME.iterate]`", Iterate),
        ("### `[[experts.NAME.tests]]`", ExpertTest),
        ("`expect` is a table of its own", Expected),
        ("### `mcpStdioSkill`", McpStdioSkill),
        ("### `mcpSseSkill`", McpSseSkill),
        ("### `interactiveSkill`", InteractiveSkill),
        ("### `pluginSkill`", PluginSkill),
        ("### `agentSkill`", AgentSkill),
        ("Each tool is a table of its own", InteractiveTool),
        ("`[experts.NAME.skills.SKILL.oauth]`", OAuth),
        ("### `tools` of an MCP server", McpTool),
    ],
)
def test_each_table_of_the_page_lists_every_known_key_with_its_meaning(heading, model):
    after = PAGE[PAGE.index(f"\n{heading}") :]
    printed = re.findall(r"^\| `.*$", after[: after.index("\n\n", after.index("\n| `"))], re.MULTILINE)
    elsewhere = {Expert: [*rows(Project)], McpSseSkill: [*OF_SKILLS, *rows(McpStdioSkill)]}.get(model, OF_SKILLS)
    wanted = [one for one in rows(model) if one not in elsewhere or key_of(one) == "type"]
    assert keep_part("docs/perstack-toml.md", "\n".join(printed), "\n".join(wanted)).split("\n") == wanted


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
