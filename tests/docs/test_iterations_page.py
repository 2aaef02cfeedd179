"""docs/iterations.md: its tables are those of the code, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pages import fenced, page, rows, section

from perstack.definition_files import load_project
from perstack.doors.cli.exit_statuses import EXIT_CODES
from perstack.iterations.state import SeriesEvent, StoredSeriesEvent, measurement_in, measurement_of
from perstack.ports.evaluator import Artifact

PAGE = page("docs/iterations.md")
HIDDEN = {"type", "invalid_answer", *SeriesEvent.model_fields}


def test_the_facts_are_those_of_the_log_with_their_fields() -> None:
    told = PAGE[PAGE.index("| event |") :]
    found = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in rows(told)}
    kinds = {kind.model_fields["type"].default: kind for kind in get_args(StoredSeriesEvent)}
    assert list(found) == list(kinds)
    for name, kind in kinds.items():
        fields = {field.alias for key, field in kind.model_fields.items() if key not in HIDDEN}
        assert fields <= found[name], name


def test_the_example_of_a_definition_loads(tmp_path: Path) -> None:
    (tmp_path / "perstack.toml").write_text(fenced(PAGE, "toml")[0])
    assert load_project(tmp_path / "perstack.toml").warnings == ()


@pytest.mark.parametrize("evaluator", [row[0] for row in rows(section(PAGE, "## Evaluators"))])
def test_each_kind_of_evaluator_loads(evaluator: str, tmp_path: Path) -> None:
    text = f'[experts.judge]\ninstruction = "x"\n[experts.judge.iterate]\nevaluator = {evaluator.strip("`")}\n'
    (tmp_path / "perstack.toml").write_text(text)
    assert load_project(tmp_path / "perstack.toml").warnings == ()


def test_the_answer_is_one_that_is_read() -> None:
    measured = measurement_in(fenced(PAGE, "json")[0])
    assert (measured.metrics, measured.cases[0].passed) == ({"passed": 0.5}, False)


def test_the_function_measures() -> None:
    names: dict[str, object] = {}
    exec(fenced(PAGE, "python")[0], names)
    brevity = names["brevity"]
    assert callable(brevity)
    assert measurement_of(brevity(Artifact("four", "q", 1, Path()))).metrics == {"score": -4}


def test_the_exit_statuses_are_those_of_the_program() -> None:
    assert {int(row[2]) for row in rows(section(PAGE, "## Stopping and continuing"))} <= set(EXIT_CODES)
