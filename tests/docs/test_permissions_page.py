"""docs/permissions.md: its example loads, and its rules and command lines are decided as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import fenced, first_cells, page, rows, section

from perstack.core.definitions.permissions import Permissions, RuleSet, rule_problem
from perstack.core.permissions.decide_call import decide_call
from perstack.core.permissions.policy_calls import policy_call
from perstack.definition_files import load_project
from perstack_base.tools import SPECS

PAGE = page("docs/permissions.md")
(EXEC,) = [spec for spec in SPECS if spec.name == "exec"]
LINES = [line for row in rows(section(PAGE, "## Shells")) for line in re.findall(r"`([^`]+)`", row[1])]


def test_the_example_loads_with_nothing_to_say(tmp_path: Path) -> None:
    path = tmp_path / "perstack.toml"
    path.write_text(fenced(PAGE, "toml")[0])
    loaded = load_project(path)
    assert loaded.warnings == ()
    assert loaded.project.permissions is not None
    assert loaded.project.experts["deployer"].permissions == Permissions(deny=("write",))


def test_every_rule_that_is_shown_can_be_read() -> None:
    shown = [cell.strip("`") for cell in first_cells(section(PAGE, "## Rules"))]
    assert len(shown) >= 6
    assert [rule for rule in shown if rule_problem(rule)] == []


@pytest.mark.parametrize("line", [one for one in LINES if one not in ("CI", "LANG")])
def test_the_lines_that_are_named_are_asked_about(line: str) -> None:
    text = line.replace("\\|", "|").replace("…", "a").replace("(a)", "('a')" if "awk" not in line else '("a")')
    rules = RuleSet(source="perstack.toml [permissions]", permissions=Permissions(deny=("exec(nothing)",)))
    call = policy_call(EXEC, "exec", {"command": "bash", "args": ["-c", text]})
    assert decide_call([rules], call).decision == "ask", text
