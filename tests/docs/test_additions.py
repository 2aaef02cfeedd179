"""docs/architecture.md, "How to add": example patches touch few files, and what they add works.

Each file of `patches/` adds one imaginary thing together with its own test, which is run in a copy of the sources.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pages import ROOT, page, rows, section

PATCHES = Path(__file__).parent / "patches"


@dataclass(frozen=True)
class Addition:
    """What a patch adds, and how it is shown to work besides by the patch's own test."""

    most_files: int  # that the patch touches, with its test
    folders: tuple[str, ...] = ()  # what else the tests need
    tests: tuple[str, ...] = ()  # arguments of tests of the project, which may write pages anew
    written: Mapping[str, str] = field(default_factory=dict[str, str])  # a part of each page that they write


ADDITIONS = {
    "an event": Addition(
        4,
        tests=(
            *("tests/docs/test_events.py", "tests/docs/test_architecture.py"),
            *("-k", "part_of_the_page or transitions_is_the"),
        ),
        written={
            "docs/events.md": "### postponeRun\n\nA person's decision",
            "docs/architecture.md": "| `postponeRun` | any |",
        },
    ),
    "a setting of Runs": Addition(3),
    "a field of a Job that its caller gives": Addition(6),
    "an operation on Jobs over MCP or HTTP": Addition(2),
    "a stage that may deny a call, or have a person asked": Addition(3),
    "an endpoint that speaks OpenAI's formats": Addition(
        2,
        folders=("plugins/perstack_openai", "tests/plugins/providers", "tests/http_providers"),
        tests=(
            *("tests/plugins/providers/test_profiles.py", "tests/http_providers/test_page.py"),
            *("-k", "teahouse or table_is_the_one"),
        ),
        written={"docs/providers.md": "| `teahouse` | `https://api.teahouse.example/v1` |"},
    ),
}
"""Additions by the name of their row on the page."""


def test_each_patch_is_of_a_row_of_the_page() -> None:
    places = {row[0]: row[1] for row in rows(section(page("docs/architecture.md"), "## How to add"))}
    named = [name for row in places.values() for name in re.findall(r"tests/docs/patches/[\w-]+\.patch", row)]
    assert sorted(named) == sorted(f"tests/docs/patches/{one.name}" for one in PATCHES.glob("*.patch"))
    assert {what for what, row in places.items() if ".patch" in row} == set(ADDITIONS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ADDITIONS)
def test_what_is_added_touches_few_files_and_works(what: str, tmp_path: Path) -> None:
    places = {row[0]: row[1] for row in rows(section(page("docs/architecture.md"), "## How to add"))}
    (patch,) = re.findall(r"tests/docs/patches/[\w-]+\.patch", places[what])
    touched = re.findall(r"^\+\+\+ b/(.+)$", (ROOT / patch).read_text(), re.M)
    addition = ADDITIONS[what]
    assert len(touched) <= addition.most_files
    for name in ("host/perstack", "tests/support", "tests/docs", "docs", *addition.folders):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "CHANGELOG.md", "tests/conftest.py", *touched):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    subprocess.run(["git", "apply", str(ROOT / patch)], cwd=tmp_path, check=True, timeout=60)
    _run_tests([name for name in touched if name.startswith("tests/")], tmp_path)
    if addition.tests:
        _run_tests(addition.tests, tmp_path, PERSTACK_KEEP_SCREENS="1")
    for name, part in addition.written.items():
        assert part in (tmp_path / name).read_text()


def _run_tests(arguments: list[str] | tuple[str, ...], folder: Path, **variables: str) -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'host'}:{folder / 'plugins'}", **variables}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
