"""What needs Linux is looked for before it is used: the rest works where a Python looks like one of macOS.

tests/support/macos_emulation makes it look so, by hiding what Linux alone has. It is no Mac.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

from perstack.system import files

AS_MACOS = ROOT / "tests" / "support" / "macos_emulation"
EVERY_MODULE = """
import importlib, pkgutil, sys, tomllib
from pathlib import Path
assert sys.platform == "darwin"
for name in tomllib.loads(Path("pyproject.toml").read_text())["tool"]["mypy"]["packages"]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith(("__main__", ".bridge")) and ".starters." not in module.name:
            importlib.import_module(module.name)
"""


def on_macos(*command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", *command],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(AS_MACOS), **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_module_can_be_imported_without_what_linux_alone_has() -> None:
    done = on_macos("-c", EVERY_MODULE, folder=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:state.db"])
def test_a_job_is_run_stopped_resumed_and_verified(tmp_path: Path, storage: str) -> None:
    (tmp_path / "perstack.toml").write_text(f'storage = "{storage}"\n[experts.writer]\ninstruction = "Write."\n')
    tools = [
        {"name": "writeTextFile", "input": {"path": "a.txt", "text": "a"}},
        {"name": "exec", "input": {"command": "cat", "args": ["a.txt"]}},
    ]
    turns = [*({"tools": [tool]} for tool in tools), {"text": "Done."}]
    (tmp_path / "script.json").write_text(json.dumps({"experts": {"writer": {"turns": turns}}}))
    env = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}
    for status, command in (
        (4, ["run", "writer", "go", "--job-id", "a", "--max-steps", "1"]),
        (0, ["resume", "a", "--max-steps", "9", "--output", "text"]),
        (0, ["verify", "a"]),
        (0, ["replay", "a"]),
        (0, ["log", "a"]),
        (0, ["delete", "a", "--yes"]),
    ):
        done = on_macos("-m", "perstack", *command, folder=tmp_path, **env)
        assert done.returncode == status, (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (["run", "writer", "go", "--runtime", "bubblewrap"], "the runtime bubblewrap needs Linux: use another runtime"),
        (["mcp", "--http", "unix:here"], "only Linux reports which user connects to a socket: write HOST:PORT"),
    ],
)
def test_what_needs_linux_says_so_in_one_line(tmp_path: Path, command: list[str], refusal: str) -> None:
    (tmp_path / "perstack.toml").write_text('[experts.writer]\ninstruction = "Write."\n')
    env = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": "script.json"}
    (tmp_path / "script.json").write_text('{"experts": {"writer": {"turns": [{"text": "Done."}]}}}')
    done = on_macos("-m", "perstack", *command, folder=tmp_path, **env)
    assert done.returncode == 2
    assert refusal in done.stderr
    assert "Traceback" not in done.stderr


SYNCING = """
import fcntl, os, sys
from perstack.system import files as durable
asked = []
fcntl.fcntl = lambda fd, command, argument=0: asked.append(command)
os.fsync = lambda fd: asked.append("fsync")
durable.sync(0); durable.sync_data(0)
print(asked == [fcntl.F_FULLFSYNC] * 2)
def refused(fd, command, argument=0): raise OSError(int(sys.argv[1]), "no")
fcntl.fcntl = refused
asked.clear()
durable.sync(0)
print(asked)
"""


def test_a_sync_reaches_the_medium_where_fsync_alone_does_not(tmp_path: Path) -> None:
    done = on_macos("-c", SYNCING, str(errno.ENOTSUP), folder=tmp_path)
    assert done.stdout == "True\n['fsync']\n", done.stderr
    failed = on_macos("-c", SYNCING, str(errno.EIO), folder=tmp_path)
    assert "OSError: [Errno 5]" in failed.stderr, "an error of the disk is no missing command"


def test_nothing_is_synced_past_the_one_place_that_knows_how() -> None:
    modules = [file for top in ("host", "plugins") for file in (ROOT / top).rglob("*.py")]
    found = {file.name for file in modules if re.search(r"os\.f(?:data)?sync\(", file.read_text())}
    assert found == {"files.py"}


@pytest.mark.linux
def test_on_linux_a_sync_is_the_systems_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: asked.append("fsync"))
    monkeypatch.setattr(os, "fdatasync", lambda fd: asked.append("fdatasync"))
    files.sync(0)
    files.sync_data(0)
    assert asked == ["fsync", "fdatasync"]
    assert not hasattr(fcntl, "F_FULLFSYNC")
