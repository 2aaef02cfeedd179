"""Where state and workspace are, wherever in a project one stands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import warnings
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.config.settings import Overrides
from perstack.engine.memory import ExecutionMemory
from perstack.host import Host

ONE = '[experts.solo]\ninstruction = "You work alone."\n'
SCRIPTED = ("--provider", "scripted")
WRITE = [reply("", ("writeTextFile", {"path": "made.txt", "text": "x"})), reply("ok")]


def standing_in(terminal: Terminal, folder: Path) -> Terminal:
    """The same command line in another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    there = Terminal(folder)
    there.env = terminal.env
    return there


def ids(terminal: Terminal, *args: str) -> list[str]:
    return [json.loads(line)["id"] for line in terminal.call("jobs", "--json", *args).lines]


@pytest.fixture
def below(terminal: Terminal) -> Terminal:
    terminal.project(ONE, solo=WRITE)
    return standing_in(terminal, terminal.workspace / "src/deep")


def test_below_a_project_state_is_beside_its_perstack_toml_and_files_are_where_one_stands(
    terminal: Terminal, below: Terminal
) -> None:
    assert below.call("run", "solo", "q", *SCRIPTED, "--job-id", "job").code == 0
    assert (terminal.jobs() / "job").is_dir()
    assert (below.workspace / "made.txt").exists()
    assert not (below.workspace / "perstack").exists()
    for one in (terminal, below):
        assert ids(one) == ["job"]
        assert one.call("log", "--job", "job").code == 0
        assert one.call("verify", "job").code == 0
    assert below.call("task", "create", "t").code == 0
    assert terminal.call("task", "get", "t").code == 0
    assert not (below.workspace / "perstack").exists()


def test_a_workspace_that_perstack_toml_names_is_seen_from_that_file(terminal: Terminal, below: Terminal) -> None:
    (terminal.workspace / "out").mkdir()
    terminal.project(f'workspace = "out"\n{ONE}', solo=WRITE)
    assert below.call("run", "solo", "q", *SCRIPTED).code == 0
    assert (terminal.workspace / "out/made.txt").exists()
    assert terminal.jobs().is_dir()
    named = terminal.workspace / "named"
    named.mkdir()
    assert below.call("run", "solo", "q", *SCRIPTED, "--workspace", str(named)).code == 0
    assert (named / "made.txt").exists()
    assert len(ids(terminal)) == 2


def test_a_workspace_that_is_not_there_is_refused_before_anything_is_written(terminal: Terminal) -> None:
    terminal.project(f'workspace = "out"\n{ONE}', solo=WRITE)
    ran = terminal.call("run", "solo", "q", *SCRIPTED)
    assert (ran.code, ran.out) == (2, "")
    assert f"there is no directory {terminal.workspace / 'out'}; make it" in ran.err
    assert not (terminal.workspace / "perstack").exists()
    assert terminal.call("jobs").code == 0


def test_with_a_shared_definition_state_stays_where_one_stands(terminal: Terminal, tmp_path: Path) -> None:
    shared = tmp_path / "shared/team.toml"
    shared.parent.mkdir()
    shared.write_text(ONE)
    terminal.script(solo=WRITE)
    args = ("--config", str(shared))
    assert terminal.call("run", "solo", "q", *SCRIPTED, *args, "--job-id", "job").code == 0
    assert (terminal.jobs() / "job").is_dir()
    assert (terminal.workspace / "made.txt").exists()
    assert not (shared.parent / "perstack").exists()
    assert ids(terminal, *args) == ["job"]


def test_naming_the_definition_that_would_be_found_changes_nothing(terminal: Terminal, below: Terminal) -> None:
    ran = below.call("run", "solo", "q", *SCRIPTED, "--job-id", "job", "--config", "../../perstack.toml")
    assert ran.code == 0
    assert ids(terminal) == ids(below) == ["job"]


def test_a_storage_that_is_named_is_seen_from_where_one_stands(terminal: Terminal, below: Terminal) -> None:
    args = ("--storage", "sqlite:mine.db")
    assert below.call("run", "solo", "q", *SCRIPTED, *args, "--job-id", "job").code == 0
    assert (below.workspace / "mine.db").is_file()
    assert ids(below, *args) == ["job"]
    assert ids(below) == []


def test_state_that_an_older_version_left_is_used_and_the_line_says_how_to_merge_it(
    terminal: Terminal, below: Terminal
) -> None:
    # the older version, to which this folder alone was the place of state
    (below.workspace / "perstack.toml").write_text(ONE)
    assert below.call("run", "solo", "q", *SCRIPTED, "--job-id", "old").code == 0
    assert below.call("task", "create", "t").code == 0
    (below.workspace / "perstack.toml").unlink()
    assert terminal.call("run", "solo", "q", *SCRIPTED, "--job-id", "new").code == 0

    seen = below.call("jobs", "--json")
    assert [json.loads(line)["id"] for line in seen.lines] == ["old"]
    notes = [line for line in seen.err.splitlines() if str(below.workspace / "perstack") in line]
    assert len(notes) == 1
    assert str(terminal.workspace / "perstack") in notes[0]
    merge = re.search(r"to merge them: (.*)$", notes[0])
    assert merge is not None
    subprocess.run(["sh", "-c", merge[1]], check=True)

    merged = below.call("jobs", "--json")
    assert {json.loads(line)["id"] for line in merged.lines} == {"old", "new"}
    assert merged.err == ""
    assert below.call("verify", "old").code == 0
    assert terminal.call("task", "get", "t").code == 0


def test_a_python_package_of_that_name_is_no_state(terminal: Terminal, below: Terminal) -> None:
    package = below.workspace / "perstack"
    (package / "core").mkdir(parents=True)
    (package / "__init__.py").touch()
    ran = below.call("run", "solo", "q", *SCRIPTED, "--job-id", "job")
    assert ran.code == 0
    assert "older version" not in ran.err
    assert ids(terminal) == ["job"]


def test_an_older_sqlite_file_is_used_too(terminal: Terminal, below: Terminal) -> None:
    toml = f'storage = "sqlite:perstack/state.db"\n{ONE}'
    (below.workspace / "perstack.toml").write_text(toml)
    assert below.call("run", "solo", "q", *SCRIPTED, "--job-id", "old").code == 0
    (below.workspace / "perstack.toml").unlink()
    terminal.project(toml, solo=WRITE)
    seen = below.call("jobs", "--json")
    assert [json.loads(line)["id"] for line in seen.lines] == ["old"]
    merge = re.search(r"to move them: (.*)$", seen.err)
    assert merge is not None
    subprocess.run(["sh", "-c", merge[1]], check=True)
    assert ids(terminal) == ids(below) == ["old"]
    assert below.call("jobs").err == ""


@pytest.mark.parametrize("storage", ["file:.state", "sqlite:var/state.db", "file:src/../hidden"])
def test_tools_keep_off_state_in_the_workspace_under_any_name(terminal: Terminal, storage: str) -> None:
    place = os.path.normpath(storage.partition(":")[2])
    tries = ("readTextFile", "writeTextFile", "deleteFile", "getFileInfo")
    calls = [reply("", (tool, {"path": f"{place}", "text": ""})) for tool in tries]
    below = standing_in(terminal, terminal.workspace / "src")
    terminal.project(f'storage = "{storage}"\nworkspace = "."\n{ONE}', solo=[*calls, reply("ok")])
    ran = below.call("run", "solo", "q", *SCRIPTED)
    assert ran.code == 0
    said = [event["contents"][0]["text"] for event in ran.events if event["type"] == "finishToolCall"]
    assert len(said) == len(tries)
    assert all("off limits" in text for text in said), said
    assert below.call("verify").code == 0


def test_from_python_state_is_beside_perstack_toml_too(terminal: Terminal, below: Terminal) -> None:
    async def work() -> None:
        overrides = Overrides(provider="scripted")
        async with Host.open(workspace=below.workspace, overrides=overrides, env=terminal.env) as host:
            assert host.workspace == below.workspace
            assert (await host.run("solo", "q", job_id="job")).status == "completed"
        async with ExecutionMemory.open(workspace=below.workspace) as memory:
            await memory.create("t")

    asyncio.run(work())
    assert ids(terminal) == ["job"]
    assert terminal.call("task", "get", "t").code == 0
    assert not (below.workspace / "perstack").exists()


def test_from_python_older_state_is_warned_of(terminal: Terminal, below: Terminal) -> None:
    (below.workspace / "perstack/jobs/old").mkdir(parents=True)
    with pytest.warns(UserWarning, match="an older version"):
        host = Host.open(workspace=below.workspace, env={})
    assert host.storage.location == str(below.workspace / "perstack")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Host.open(workspace=terminal.workspace, env={})


def test_printed_settings_of_an_editor_find_the_same_state_and_workspace(terminal: Terminal, below: Terminal) -> None:
    def printed(*options: str) -> list[str]:
        shown = json.loads(below.call("mcp", "--print-config", "claude-code", *options).out)
        (server,) = shown["mcpServers"].values()
        return server["args"]

    assert printed()[-2:] == ["--workspace", str(below.workspace)]
    named = printed("--storage", "file:mine")
    assert named[named.index("--storage") + 1] == "file:mine"
    outside = terminal.workspace.parent / "outside"
    outside.mkdir(exist_ok=True)
    terminal.project(f'workspace = "../outside"\n{ONE}')
    args = printed()
    assert args[args.index("--workspace") + 1] == str(outside)
    assert args[args.index("--config") + 1] == str(terminal.workspace / "perstack.toml")
    assert args[args.index("--storage") + 1] == f"file:{terminal.workspace / 'perstack'}"
    args = printed("--storage", "file:mine")
    assert args[args.index("--storage") + 1] == f"file:{below.workspace / 'mine'}"
