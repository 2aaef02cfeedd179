"""The tools as they are offered, and the page that lists them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from subprocess import run
from typing import Any

import jsonschema
import pytest

from perstack.core.definitions.skills import BASE_GROUPS, BASE_SKILL, LEGAL_TOOL_NAME, McpSseSkill, McpStdioSkill
from perstack.errors import SkillError
from perstack.ports.environment import INHERITED
from perstack.ports.skill import SkillContext
from perstack_base import directories, reading, writing
from perstack_base import exec as output
from perstack_base import reading as media
from perstack_base.plugin import perstack_skills
from perstack_base.tools import SPECS

PAGE = Path(__file__).parents[3] / "docs/base-skill.md"

ORIGINAL = {
    "attemptCompletion": (set(), set()),
    "todo": (set(), {"newTodos", "completedTodos"}),
    "clearTodo": (set(), set()),
    "exec": ({"command"}, {"args", "env", "cwd", "stdout", "stderr", "timeout"}),
    "getFileInfo": ({"path"}, set()),
    "healthCheck": (set(), set()),
    "readTextFile": ({"path"}, {"from", "to"}),
    "readImageFile": ({"path"}, set()),
    "readPdfFile": ({"path"}, set()),
    "writeTextFile": ({"path", "text"}, set()),
    "appendTextFile": ({"path", "text"}, set()),
    "editTextFile": ({"path", "newText", "oldText"}, set()),
    "moveFile": ({"source", "destination"}, set()),
    "deleteFile": ({"path"}, set()),
    "listDirectory": ({"path"}, set()),
    "createDirectory": ({"path"}, set()),
    "deleteDirectory": ({"path"}, {"recursive"}),
}
"""Names and arguments of the original's tools, required and not. Only exec's are required less often here."""

ADDED = {"think": ({"thought"}, set()), "attemptCompletion": (set(), {"result"})}


def arguments(schema: dict[str, Any]) -> tuple[set[str], set[str]]:
    required = set(schema.get("required", []))
    return required, set(schema["properties"]) - required


def test_names_and_arguments_are_those_of_the_original() -> None:
    assert {spec.name: arguments(spec.input_schema) for spec in SPECS} == {**ORIGINAL, **ADDED}


def test_the_groups_have_each_tool_that_is_about_files_programs_or_todos_once() -> None:
    groups = {
        "files": [spec.name for spec in SPECS if spec.subject is not None and spec.subject.paths],
        "programs": [spec.name for spec in SPECS if spec.subject is not None and spec.subject.program],
        "todo": [spec.name for spec in SPECS if spec.kind in ("todo", "clearTodo")],
    }
    assert {name: [*tools] for name, tools in BASE_GROUPS.items()} == groups
    grouped = {name for tools in groups.values() for name in tools}
    assert [spec.name for spec in SPECS if spec.name not in grouped] == ["attemptCompletion", "think", "healthCheck"]


def test_every_schema_is_valid_and_every_name_legal() -> None:
    for spec in SPECS:
        jsonschema.Draft202012Validator.check_schema(spec.input_schema)
        assert LEGAL_TOOL_NAME.fullmatch(spec.name)
        assert spec.skill_name == BASE_SKILL


def test_what_the_model_pays_for_the_tools_stays_small() -> None:
    words = json.dumps([[spec.name, spec.description, spec.input_schema] for spec in SPECS])
    assert len(words) < 6000


def test_only_tools_that_change_nothing_may_be_repeated_without_thought() -> None:
    effects = {spec.name: spec.effect for spec in SPECS}
    assert {name for name, effect in effects.items() if effect == "idempotent"} == {"writeTextFile", "createDirectory"}
    assert {name for name, effect in effects.items() if effect == "sideEffect"} == {
        "exec",
        "appendTextFile",
        "editTextFile",
        "moveFile",
        "deleteFile",
        "deleteDirectory",
    }


def test_the_loops_own_tools_are_declared_as_such_and_not_answered_here(tools: Any) -> None:
    kinds = {spec.name: spec.kind for spec in SPECS if spec.kind != "tool"}
    assert kinds == {"attemptCompletion": "attemptCompletion", "todo": "todo", "clearTodo": "clearTodo"}
    for name in kinds:
        assert "not a tool of this skill" in tools(name).error


def test_think_and_health_check_answer(tools: Any, workspace: Path) -> None:
    assert tools("think", thought="hm").json == {}
    health = tools("healthCheck").json
    assert (health["status"], health["workspace"]) == ("ok", str(workspace))


@pytest.mark.parametrize(
    ("definition", "is_handled"),
    [
        (McpStdioSkill(name=BASE_SKILL), True),
        (McpStdioSkill(name="base", package_name=BASE_SKILL), True),
        (McpStdioSkill(name="other", package_name="other"), False),
        (McpSseSkill(name=BASE_SKILL, endpoint="https://example.com"), False),
    ],
)
def test_the_usual_declaration_means_this_skill(definition: Any, is_handled: bool) -> None:
    factory, *_ = perstack_skills()
    assert factory.name == BASE_SKILL
    assert factory.handles(definition) is is_handled


def test_a_workspace_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    factory, *_ = perstack_skills()
    context = SkillContext(workspace=tmp_path / "nowhere", job_id="job", env={})
    with pytest.raises(SkillError, match="nowhere cannot be opened"):
        asyncio.run(factory.open(McpStdioSkill(name=BASE_SKILL), context))


def test_registering_imports_nothing_of_the_tools() -> None:
    program = "import sys, perstack_base.plugin as p; p.perstack_skills(); print(*sys.modules)"
    loaded = run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith("perstack_base.")] == ["perstack_base.plugin"]


def test_the_page_lists_the_tools_as_they_are() -> None:
    rows = ["| tool | arguments | effect | what |", "| --- | --- | --- | --- |"]
    for spec in SPECS:
        required, _ = arguments(spec.input_schema)
        properties = spec.input_schema["properties"]
        assert isinstance(properties, dict)
        names = ", ".join(f"`{name}`" if name in required else f"`{name}`?" for name in properties)
        effect = spec.effect if spec.kind == "tool" else "the loop's own"
        rows.append(f"| `{spec.name}` | {names} | {effect} | {spec.description} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(), f"docs/base-skill.md should have this table:\n{table}"


def test_the_page_names_the_limits_and_variables_that_the_code_has() -> None:
    page = PAGE.read_text()
    megabyte = 1024 * 1024
    for limit in (
        f"sees | {output.MAX_SHOWN_BYTES:,} bytes",
        f"kept | {output.MAX_KEPT_BYTES // megabyte} MiB",
        f"`readTextFile` | {reading.MAX_READ_BYTES:,} bytes",
        f"`listDirectory` | {directories.MAX_ENTRIES} |",
        f"PDF | {media.IMAGE.max_bytes // megabyte} MiB · {media.PDF.max_bytes // megabyte} MiB",
        f"`editTextFile` | {writing.MAX_EDITED_BYTES // megabyte} MiB",
    ):
        assert limit in page
    assert {name for name in INHERITED if f"`{name}`" not in page} == set()
