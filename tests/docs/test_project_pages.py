"""CONTRIBUTING, CHANGELOG and docs/speed.md say what is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pages import ROOT, commands, fenced, first_cells, page, rows, section

from perstack.version import VERSION

TARGETS = set(re.findall(r"^([a-z][a-z-]*):", page("Makefile"), re.M))


def test_every_make_target_of_the_pages_is_there() -> None:
    for name in ("CONTRIBUTING.md", "docs/speed.md"):
        text = page(name)
        named = {line.split()[1] for line in commands(text) if line.startswith("make ")} | set(
            re.findall(r"`make ([a-z-]+)", text)
        )
        assert named
        assert named <= TARGETS


def test_every_folder_of_the_layout_is_there() -> None:
    layout = rows(section(page("CONTRIBUTING.md"), "## Where things are"))
    folders = [name for row in layout for name in re.findall(r"`([\w/]+/)`", row[0])]
    assert len(folders) >= len(layout)
    assert [name for name in folders if not (ROOT / name).is_dir()] == []


def test_the_example_of_a_test_passes_on_both_storages(tmp_path: Path) -> None:
    (example,) = fenced(page("CONTRIBUTING.md"), "python")
    (tmp_path / "test_example.py").write_text(example)
    (tmp_path / "conftest.py").write_text(
        "from bench_fixture import bench, closed_hosts, leave_out_storages as pytest_collection_modifyitems\n"
    )
    options = [
        f"--rootdir={tmp_path}",
        "-o",
        f"pythonpath={ROOT / 'tests/support'}",
        "-p",
        "no:cacheprovider",
        "-k",
        "file or sqlite",
    ]
    # A basetemp of its own: otherwise it deletes what earlier whole runs left, which can take minutes.
    options.append(f"--basetemp={tmp_path / 'basetemp'}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PERSTACK_STORAGES": "all"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_changelog_has_this_version() -> None:
    assert re.search(rf"^## {re.escape(VERSION)}\b", page("CHANGELOG.md"), re.M)


def test_the_figures_that_are_explained_are_the_columns_that_the_benchmark_prints() -> None:
    (head,) = re.findall(r'print\("(\| steps \|.*?)"\)', page("bench/bench.py"))
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    assert ["steps", *first_cells(section(page("docs/speed.md"), "## How it is measured"))] == columns


def test_the_option_of_the_benchmark_that_is_named_is_there() -> None:
    assert '"--steps"' in page("bench/bench.py")
