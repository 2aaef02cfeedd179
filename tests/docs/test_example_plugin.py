"""docs/example-plugin: a package as an author would write it, installed into a venv of its own and used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pages import fenced, page

import perstack

SOURCE = Path(__file__).parents[2] / "docs" / "example-plugin"
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
    """A copy of the package, and the Python of a fresh venv that it is installed in.

    The venv sees this one's packages, so that nothing has to be fetched: perstack, and what it is built with.
    """
    folder = tmp_path_factory.mktemp("example") / "ledger"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    venv = folder.parent / "venv"
    run(folder, sys.executable, "-m", "venv", "--without-pip", str(venv))
    python = str(venv / "bin" / "python")
    site = run(folder, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    ours = sysconfig.get_path("purelib")
    (Path(site) / "of_the_tests.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    uv = str(Path(sys.executable).parent / "uv")
    run(
        folder,
        *(uv, "pip", "install", "-q", "--offline", "--no-cache", "--python", python),
        *("--no-deps", "--no-build-isolation", "."),
    )
    return folder, python


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
    done = run(folder, python, "-m", "perstack", "run", "bookkeeper", "Lunch", "--provider", "scripted", **script)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    results = [event["contents"][0]["text"] for event in events if event["type"] == "finishToolCall"]
    assert results == ["noted: 12.5 EUR for lunch", "12.5 EUR"]


def test_its_own_tests_pass(installed: tuple[Path, str]) -> None:
    folder, python = installed
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", "/dev/null")
    assert " passed" in run(folder, python, "-m", "pytest", *options, "tests").stdout


def test_an_authors_code_is_typed_through_and_through(installed: tuple[Path, str]) -> None:
    folder, _ = installed
    host = str(Path(perstack.__file__).parents[1])
    options = ("--strict", "--cache-dir", str(folder.parent / "mypy"))
    run(folder, sys.executable, "-m", "mypy", *options, "src", "tests", MYPYPATH=f"src:{host}")


def test_the_page_shows_a_tool_of_it_as_it_is() -> None:
    shown = next(block for block in fenced(page("docs/plugins.md"), "python") if "@kit.tool" in block)
    assert shown.strip() in (SOURCE / "src" / "perstack_ledger" / "tools.py").read_text()
