"""docs/architecture.md, «How to add»: example patches touch few files, and what they add works.

Each file of `patches/` adds one imaginary thing together with its own test, which is run in a copy of the sources.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, page, rows, section

PATCHES = Path(__file__).parent / "patches"
MOST_FILES = {
    "an event": 3,
    "a setting of Runs": 3,
    "an operation on Jobs over MCP or HTTP": 2,
    "a stage that may deny a call, or have a person asked": 3,
}
"""Most files that a patch touches, with its test: what is added, as the page says, to number."""
WRITTEN = {
    "an event": (
        (
            "tests/docs/test_events.py",
            "tests/docs/test_architecture.py",
            "-k",
            "part_of_the_page or transitions_is_the",
        ),
        {"docs/events.md": "### postponeRun\n\nA person's decision", "docs/architecture.md": "| `postponeRun` | any |"},
    )
}
"""What tests of the documentation write on request: their arguments, and parts of the pages."""


def test_each_patch_is_of_a_row_of_the_page() -> None:
    places = {row[0]: row[1] for row in rows(section(page("docs/architecture.md"), "## How to add"))}
    named = [name for row in places.values() for name in re.findall(r"tests/docs/patches/[\w-]+\.patch", row)]
    assert sorted(named) == sorted(f"tests/docs/patches/{one.name}" for one in PATCHES.glob("*.patch"))
    assert {what for what, row in places.items() if ".patch" in row} == set(MOST_FILES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", MOST_FILES)
def test_what_is_added_touches_few_files_and_works(what: str, tmp_path: Path) -> None:
    places = {row[0]: row[1] for row in rows(section(page("docs/architecture.md"), "## How to add"))}
    (patch,) = re.findall(r"tests/docs/patches/[\w-]+\.patch", places[what])
    touched = re.findall(r"^\+\+\+ b/(.+)$", (ROOT / patch).read_text(), re.M)
    assert len(touched) <= MOST_FILES[what]
    for name in ("host/perstack", "tests/support", "tests/docs", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("pyproject.toml", "CHANGELOG.md", "tests/conftest.py", *touched):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    subprocess.run(["git", "apply", str(ROOT / patch)], cwd=tmp_path, check=True, timeout=60)
    _run_tests([name for name in touched if name.startswith("tests/")], tmp_path)
    arguments, parts = WRITTEN.get(what, ((), {}))
    if arguments:
        _run_tests(arguments, tmp_path, PERSTACK_KEEP_SCREENS="1")
    for name, part in parts.items():
        assert part in (tmp_path / name).read_text()


def _run_tests(arguments: list[str] | tuple[str, ...], folder: Path, **variables: str) -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder / "host"), **variables}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
