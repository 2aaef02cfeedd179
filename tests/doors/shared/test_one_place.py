"""Code that doors share is in one place, and each door imports only that and the Host."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT

DOORS = ROOT / "host/perstack/doors"


def _calls(name: str) -> Iterator[str]:
    """Yield the files that call something of this name."""
    for file in sorted(DOORS.rglob("*.py")):
        functions = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
        if any(name in (getattr(function, "attr", ""), getattr(function, "id", "")) for function in functions):
            yield str(file.relative_to(DOORS))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param("add_signal_handler", "shared/signals.py", id="signals that ask to stop"),
        pytest.param("_messages", "shared/stdio.py", id="lines of JSON-RPC over stdin"),
    ],
)
def test_it_is_done_in_one_place(name: str, place: str) -> None:
    assert list(_calls(name)) == [place]


def test_no_door_has_a_table_of_yes_and_no() -> None:
    found: list[str] = []
    for file in _outside_of_the_command_line():
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        headers = {value for node in nodes if isinstance(node, ast.Dict) for value in _header_values(node)}
        found += [
            f"{file.relative_to(DOORS)}:{node.lineno}"
            for node in nodes
            if isinstance(node, ast.Constant) and node.value in ("yes", "no") and node not in headers
        ]
    assert found == [], "perstack.core.jobs.answer_reading has it"


def _header_values(table: ast.Dict) -> list[ast.expr]:
    pairs = zip(table.keys, table.values, strict=True)
    return [value for key, value in pairs if isinstance(key, ast.Constant) and "-" in str(key.value)]


def _outside_of_the_command_line() -> list[Path]:
    return [file for file in sorted(DOORS.rglob("*.py")) if "cli" not in file.relative_to(DOORS).parts]
