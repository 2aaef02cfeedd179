"""The newcomer's path, from a wheel and an empty folder to an Expert that was run and looked at, with no key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from environments import link_dependencies
from pages import ROOT

SECONDS = 60
UV = str(Path(sys.executable).parent / "uv")
POEM = "Line by line it grows,\nno step is lost in the night.\nThe disk hums to sleep.\n"
SCRIPT = {
    "writer": [
        {"tools": [{"name": "writeTextFile", "input": {"path": "haiku.md", "text": POEM}}]},
        {"text": "The haiku is in haiku.md."},
    ]
}

TEST = """
[[experts.writer.tests]]
name = "a haiku"
query = "A haiku about logs, in haiku.md"
model = "tests/haiku.json"
expect.called = ["writeTextFile(path=haiku.md)"]
expect.files = { "haiku.md" = "sleep" }
"""


def done(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder.parent), **env},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def well(folder: Path, *command: str, **env: str) -> str:
    """Its stdout."""
    ended = done(folder, *command, **env)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def test_the_demo_is_in_the_wheel(perstack: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "3 of 8 rows break a rule" in well(tmp_path / "empty", perstack, "demo")
    assert not list((tmp_path / "empty").iterdir())


@pytest.fixture(scope="module")
def perstack(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command of a fresh venv that a built wheel is installed in.

    What it depends on is taken from this environment, so that nothing has to be fetched; that brings no plugin.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv = folder / "venv"
    well(folder, sys.executable, "-m", "venv", "--without-pip", str(venv))
    python = str(venv / "bin" / "python")
    site = well(folder, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    link_dependencies(Path(site))
    offline = ("--offline", "--no-cache", "--python", python)
    well(folder, UV, "build", "-q", "--wheel", "--no-build-isolation", *offline, "--out-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("perstack-*.whl")
    well(folder, UV, "pip", "install", "-q", "--no-deps", *offline, str(wheel))
    where = well(folder, python, "-c", "import perstack; print(perstack.__file__)")
    assert Path(where.strip()).is_relative_to(venv)
    return str(venv / "bin" / "perstack")


@pytest.mark.timeout(400)  # twenty commands, each of up to SECONDS
def test_the_newcomers_path_in_an_empty_folder_with_no_key(perstack: str, tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()

    # init: a project, and the command to go on with
    said = well(folder, perstack, "init")
    assert said.splitlines()[-1] == 'next: perstack run writer "A haiku about logs, in haiku.md"'
    assert well(folder, perstack, "validate").splitlines()[-1] == "ok: 1 Expert"

    # run: with no key it says what to do, and leaves nothing behind
    asked = ("run", "writer", "A haiku about logs, in haiku.md")
    refused = done(folder, perstack, *asked)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: no model provider is set up: set ANTHROPIC_API_KEY, or ")
    assert "`perstack models` lists the providers" in refused.stderr
    assert not (folder / "perstack").exists()

    # run: on a script in the place of a model
    (tmp_path / "script.json").write_text(
        json.dumps({"experts": {key: {"turns": each} for key, each in SCRIPT.items()}})
    )
    scripted = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": str(tmp_path / "script.json")}
    told = well(folder, perstack, *asked, "--provider", "scripted", "--output", "text", "--job-id", "haiku", **scripted)
    assert told == "The haiku is in haiku.md.\n"
    assert (folder / "haiku.md").read_text() == POEM

    # log: what happened
    assert "writeTextFile" in well(folder, perstack, "log")
    assert [json.loads(line)["id"] for line in well(folder, perstack, "jobs", "--json").splitlines()] == ["haiku"]
    assert "haiku" in well(folder, perstack, "verify", "haiku")

    # record: what the model said plays again with no script and no key, and files are really written
    well(folder, perstack, "record", "haiku", "--to", "tests/haiku.json")
    (folder / "haiku.md").unlink()
    played = ("--recording", "tests/haiku.json", "--output", "text")
    assert well(folder, perstack, *asked, *played) == told
    assert (folder / "haiku.md").read_text() == POEM

    # test: the same recording is the model of a test beside the Expert
    none = done(folder, perstack, "test")
    assert none.returncode == 1
    with (folder / "perstack.toml").open("a") as file:
        file.write(TEST)
    unasked = done(folder, perstack, "test", "writer")
    assert (unasked.returncode, "agree to it with `perstack trust`" in unasked.stderr) == (2, True)
    well(folder, perstack, "trust", "--yes")
    assert "1 of 1 test passed" in well(folder, perstack, "test", "writer")
    definition = folder / "perstack.toml"
    definition.write_text(definition.read_text().replace('"sleep"', '"wake"'))
    assert done(folder, perstack, "test").returncode == 1


def test_what_the_package_ships_besides_code_is_in_the_wheel(perstack: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    definition = '[experts.poet]\ninstruction = "You write poems."\n'
    turns = {
        "create-expert": [{"tools": [{"name": "definition-writer", "input": {"query": "poet"}}]}, {"text": "done"}],
        "definition-writer": [
            {"tools": [{"name": "writeTextFile", "input": {"path": "perstack.toml", "text": definition}}]},
            {"text": "written"},
        ],
    }
    (tmp_path / "script.json").write_text(
        json.dumps({"experts": {key: {"turns": each} for key, each in turns.items()}})
    )
    scripted = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": str(tmp_path / "script.json")}
    well(folder, perstack, "create", "A poet", "--provider", "scripted", **scripted)
    assert (folder / "perstack.toml").read_text() == definition
