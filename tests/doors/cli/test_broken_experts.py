"""An Expert with errors cannot run, nor can Experts that delegate to it; all others can."""

from __future__ import annotations

import json

import pytest
from terminal import Terminal, reply

from perstack.core.definitions.project import Project
from perstack.errors import DefinitionError
from perstack.host import Host

MIXED = """
[experts.well]
instruction = "You are well."
[experts.ill]
description = "no instruction"
[experts.lead]
instruction = "You lead."
delegates = ["ill"]
[experts.above]
instruction = "You lead the lead."
delegates = ["lead", "well"]
"""
SCRIPTED = ("--provider", "scripted")


@pytest.fixture
def mixed(terminal: Terminal) -> Terminal:
    return terminal.project(MIXED, well=[reply("fine")])


def test_its_healthy_neighbours_run_and_a_line_names_it(mixed: Terminal) -> None:
    result = mixed.call("run", "well", "q", *SCRIPTED)
    assert result.code == 0
    assert [line for line in result.err.splitlines() if "cannot be run: ill, lead, above" in line]


@pytest.mark.parametrize(
    ("expert", "lines"), [("ill", [(4, "instruction")]), ("lead", [(8, "delegates[0]"), (4, "instruction")]),
                          ("above", [(11, "delegates[0]"), (8, "delegates[0]"), (4, "instruction")])],
)  # fmt: skip
def test_it_does_not_run_nor_does_what_delegates_to_it_by_any_way(
    mixed: Terminal, expert: str, lines: list[tuple[int, str]]
) -> None:
    result = mixed.call("run", expert, "q", *SCRIPTED)
    assert (result.code, result.out) == (2, "")
    errors = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(lines)
    for error, (line, key) in zip(errors, lines, strict=True):
        assert f"perstack.toml:{line}: experts." in error
        assert key in error
    assert not mixed.jobs().exists()


def test_validate_still_names_every_problem_and_refuses_the_file(mixed: Terminal) -> None:
    result = mixed.call("validate")
    assert (result.code, len(result.lines)) == (2, 2)
    assert ":4: error: experts.ill.instruction" in result.lines[0]


def test_a_storage_that_a_broken_file_names_is_still_looked_into(terminal: Terminal) -> None:
    terminal.project('storage = "file:state"\n' + MIXED, well=[reply("fine")])
    assert terminal.call("run", "well", "q", *SCRIPTED, "--job-id", "job").code == 0
    assert (terminal.workspace / "state/jobs/job").is_dir()
    assert json.loads(terminal.call("jobs", "--json").lines[0])["id"] == "job"


@pytest.mark.parametrize("broken", ["[experts.well", "maxSteps = -1\n" + MIXED, 'include = ["none.toml"]\n' + MIXED])
def test_an_error_of_the_whole_project_stops_every_expert(terminal: Terminal, broken: str) -> None:
    terminal.project(broken, well=[reply("fine")])
    result = terminal.call("run", "well", "q", *SCRIPTED)
    assert (result.code, result.out) == (2, "")


def test_a_file_of_broken_experts_only_is_refused(terminal: Terminal) -> None:
    terminal.project('[experts.ill]\ndescription = "x"\n')
    assert terminal.call("mcp", "--print-config", "zed").code == 0
    result = terminal.call("run", "other", "q", *SCRIPTED)
    assert result.code == 2
    assert "experts.ill.instruction" in result.err


def test_from_python_too(mixed: Terminal) -> None:
    host = Host.open(workspace=mixed.workspace, env=mixed.env)
    assert isinstance(host.project, Project)
    assert set(host.project.experts) == {"well"}
    assert set(host.project.broken) == {"ill", "lead", "above"}
    with pytest.raises(DefinitionError, match=r"experts\.ill\.instruction"):
        host.project.check_broken("lead@1.0.0")
