"""A perstack.toml written for one test, and what loading it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from perstack.errors import DefinitionError, Problem
from perstack.trust.definition_files import load_project

Write = Callable[..., Path]
Problems = Callable[..., list[tuple[str, int | None, str | None, str]]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a definition file, `perstack.toml` if no name is given, and returns its path."""

    def write_file(text: str, name: str = "perstack.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write_file


def found_in(path: Path) -> tuple[Problem, ...]:
    """Every problem that loading this file reports."""
    try:
        return load_project(path).warnings
    except DefinitionError as error:
        return error.problems


@pytest.fixture
def problems(write: Write) -> Problems:
    """What is wrong in a text: severity, line, key and message of each, with the file checked on the way."""

    def problems_of(text: str) -> list[tuple[str, int | None, str | None, str]]:
        path = write(text)
        found = found_in(path)
        assert {problem.file for problem in found} <= {str(path)}
        return [(problem.severity, problem.line, problem.key, problem.message) for problem in found]

    return problems_of
