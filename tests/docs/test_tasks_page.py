"""docs/tasks.md: its tables are those of the code, and its examples do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from pages import commands, fenced, first_cells, page, rows, run_line, section

from perstack.core.definitions.job_status import PauseReason
from perstack.definition_files import load_project
from perstack.doors.shared.next_step_phrases import BASE
from perstack.memory import ExecutionMemory
from perstack.tasks.arguments import MAX_STATE_BYTES
from perstack.tasks.events import TaskConfig
from perstack.tasks.operation_table import OPERATIONS
from perstack.tasks.state import ALLOWED, TaskStatus

PAGE = page("docs/tasks.md")


def _tables() -> tuple[str, str]:
    life = section(PAGE, "## A task's life")
    return life[: life.index("| pause reason")], life[life.index("| pause reason") :]


def test_what_may_be_done_in_each_status_is_what_the_code_allows() -> None:
    table = {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[1])) for row in rows(_tables()[0])}
    assert table == ALLOWED
    assert tuple(table) == get_args(TaskStatus)


def test_every_operation_is_a_method() -> None:
    assert all(callable(getattr(ExecutionMemory, one)) for each in ALLOWED.values() for one in each)


def test_the_pause_reasons_are_those_of_the_code() -> None:
    assert first_cells(_tables()[1]) == list(get_args(PauseReason))


def test_the_config_is_that_of_the_code_with_its_defaults() -> None:
    table = rows(section(PAGE, "## State and checkpoints"))
    named = {row[0].strip("`"): row[2].strip("`") for row in table}
    fields = TaskConfig.model_fields
    assert named == {one.alias: str(one.default).replace("None", "none") for one in fields.values()}
    assert MAX_STATE_BYTES == 1 << 20


def test_the_requests_are_the_operations() -> None:
    table = [(row[0].strip("`"), row[1]) for row in rows(section(PAGE, "## Over MCP and HTTP"))]
    assert table == [(f"{one.method} {BASE}{one.path}", one.name) for one in OPERATIONS]


def test_the_commands_on_the_page_work_in_their_order(tmp_path: Path) -> None:
    for line in commands(PAGE):
        done = run_line(line, tmp_path, {})
        assert done.returncode == 0, done.stderr


def test_the_example_in_python_prints_what_the_page_says(tmp_path: Path) -> None:
    (code,) = fenced(PAGE, "python")
    (prints,) = fenced(PAGE, "text")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (prints, "")


def test_the_experts_declaration_is_one_that_loads(tmp_path: Path) -> None:
    (declared,) = fenced(PAGE, "toml")
    (tmp_path / "perstack.toml").write_text(declared)
    project = load_project(tmp_path / "perstack.toml").project
    assert project.experts["fixer"].skills[0].type == "pluginSkill"
