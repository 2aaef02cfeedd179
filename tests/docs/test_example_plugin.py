"""docs/example-plugin: a package as an author would write it, installed into a venv of its own and used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pages import ROOT, fenced, page, section

SOURCE = ROOT / "docs" / "example-plugin"
SECONDS = 100


def run(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A copy of the package, and the Python of a fresh venv that it and perstack are installed in.

    What the two depend on is taken from this environment, so that nothing has to be fetched.
    """
    folder = tmp_path_factory.mktemp("example") / "ledger"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    venv = folder.parent / "venv"
    run(folder, sys.executable, "-m", "venv", "--without-pip", str(venv))
    python = str(venv / "bin" / "python")
    site = run(folder, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    uv = str(Path(sys.executable).parent / "uv")
    run(
        folder,
        *(uv, "pip", "install", "-q", "--offline", "--no-cache", "--python", python),
        *("--no-deps", "--no-build-isolation", str(ROOT), "."),
    )
    return folder, python


def test_perstack_is_the_one_that_was_built(installed: tuple[Path, str]) -> None:
    folder, python = installed
    where = run(
        folder, python, "-c", "import perstack, perstack_base; print(perstack.__file__, perstack_base.__file__)"
    )
    assert all(Path(one).is_relative_to(folder.parent / "venv") for one in where.stdout.split())


def test_the_plugin_is_there_and_its_expert_uses_it(installed: tuple[Path, str]) -> None:
    folder, python = installed
    plugins = run(folder, python, "-m", "perstack", "plugins", "--json").stdout
    assert '"perstack-ledger"' in plugins
    turns = [
        {"tools": [{"name": "add_expense", "input": {"amount": 12.5, "what": "lunch"}}]},
        {"tools": [{"name": "total_expenses"}]},
        {"text": "12.50 EUR"},
    ]
    (folder / "script.json").write_text(json.dumps({"experts": {"bookkeeper": {"turns": turns}}}))
    script = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}
    run(folder, python, "-m", "perstack", "trust", "--yes")
    done = run(folder, python, "-m", "perstack", "run", "bookkeeper", "Lunch", "--provider", "scripted", **script)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    results = [event["contents"][0]["text"] for event in events if event["type"] == "finishToolCall"]
    assert results == ["noted: 12.5 EUR for lunch", "12.5 EUR"]


def test_its_own_tests_pass(installed: tuple[Path, str]) -> None:
    folder, python = installed
    # A basetemp of its own: otherwise it deletes what earlier whole runs left, which can take minutes.
    basetemp = str(folder.parent / "basetemp")
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", "/dev/null", "--basetemp", basetemp)
    assert " passed" in run(folder, python, "-m", "pytest", *options, "tests").stdout


def test_an_authors_code_passes_mypy_strict(installed: tuple[Path, str]) -> None:
    folder, python = installed
    run(folder, python, "-m", "mypy", "--strict", "--cache-dir", str(folder.parent / "mypy"), "src", "tests")


def test_an_authors_code_passes_pyright_strict(installed: tuple[Path, str]) -> None:
    folder, _ = installed
    settings = {"typeCheckingMode": "strict", "venvPath": "..", "venv": "venv", "include": ["src", "tests"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    pyright = str(Path(sys.executable).parent / "pyright")
    assert "0 errors" in run(folder, pyright).stdout


def test_the_page_shows_parts_of_it_as_they_are() -> None:
    shown = fenced(section(page("docs/plugins.md"), "### Tools from functions"), "python")
    source = (SOURCE / "src" / "perstack_ledger" / "tools.py").read_text()
    assert any("@kit.tool" in block for block in shown)
    assert [block for block in shown if block not in source] == []
