"""The key of marks and the marks themselves: made once, read with bounds, and with one clear line where they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from stranger_state import as_stranger as as_stranger
from stranger_state import nothing_is_named as nothing_is_named
from terminal import Terminal, reply

from perstack.core.files.file_names import checked_path
from perstack.errors import StorageError
from perstack.ports.environment import STATE_KEY, Environment
from perstack.ports.storage import LocalState, Storage
from perstack.snapshots.rewind_journal import Journal
from perstack.state_guard.guarded_state import GuardedStorage
from perstack.state_guard.state_marks import StateKey, StateMark

ALONE = '[experts.solo]\ninstruction = "You work alone."\n'
CREATE = """
import sys
from pathlib import Path
from perstack.state_guard.state_marks import StateKey
sys.stdin.readline()
print(StateKey(Path(sys.argv[1])).read_or_create().decode())
"""
needs_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


@pytest.fixture
def fresh(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a project of a user who has no key yet."""
    terminal.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("home"))
    return terminal.project(ALONE, solo=[reply("done")] * 3)


def key_of(terminal: Terminal) -> Path:
    return Path(terminal.env["XDG_STATE_HOME"], "perstack", "state.key")


def test_processes_that_create_the_key_at_once_get_the_same(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.key"
    command = [sys.executable, "-c", CREATE, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(6)]  # type: ignore[call-overload]
    with ThreadPoolExecutor(6) as pool:
        keys = set(pool.map(lambda process: process.communicate("\n", timeout=60)[0], processes))
    assert keys == {path.read_text()}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["state.key"]


def test_the_first_run_makes_the_key_and_the_mark(fresh: Terminal) -> None:
    assert fresh.call("run", "solo", "go", "--job-id", "j").code == 0
    assert key_of(fresh).stat().st_mode & 0o777 == 0o600
    assert fresh.call("delete", "j", "--yes").code == 0


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/s.db", "sqlite:s.db"])
def test_a_process_killed_while_it_made_the_state_left_none(fresh: Terminal, storage: str) -> None:
    fresh.project(f'storage = "{storage}"\n{ALONE}', solo=[reply("done")])
    path = fresh.workspace / storage.partition(":")[2]
    path.parent.mkdir(exist_ok=True)
    if path.suffix:
        path.touch()
        path.with_name(".s.db-origin.json.new").write_text("{")
    else:
        path.mkdir()
        (path / ".gitignore").write_text("*\n")
        (path / ".origin.json.new").write_text("{")
    assert fresh.call("run", "solo", "go").code == 0


def test_a_key_in_a_folder_that_is_none_is_one_clear_line(fresh: Terminal) -> None:
    Path(fresh.env["XDG_STATE_HOME"], "perstack").write_text("a file")
    result = fresh.call("run", "solo", "go")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert STATE_KEY in result.err
    assert not (fresh.workspace / "perstack").exists()


@needs_user
def test_a_folder_that_cannot_be_written_is_one_clear_line(fresh: Terminal) -> None:
    home = Path(fresh.env["XDG_STATE_HOME"])
    home.chmod(0o500)
    result = fresh.call("run", "solo", "go")
    assert (result.code, len(result.err.splitlines())) == (1, 1)


def test_a_full_disk_is_one_clear_line_and_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="no space left on device") as raised:
        StateKey(tmp_path / "state.key").read_or_create()
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "short\n", "x" * 5000])
def test_an_unusable_key_is_named(fresh: Terminal, content: str) -> None:
    key_of(fresh).parent.mkdir()
    key_of(fresh).write_text(content)
    key_of(fresh).chmod(0o600)
    result = fresh.call("run", "solo", "go")
    assert result.code == 1
    assert str(key_of(fresh)) in result.err
    assert "Traceback" not in result.err


def test_state_can_be_read_without_its_key(fresh: Terminal) -> None:
    assert fresh.call("run", "solo", "go", "--job-id", "j").code == 0
    key_of(fresh).chmod(0o644)
    assert fresh.call("jobs").code == 0
    assert "chmod 600" in fresh.call("delete", "j", "--yes").err


@pytest.mark.parametrize("plant", ["mode", "link", "pipe", "folder"])
def test_a_key_that_others_could_know_is_not_used(fresh: Terminal, plant: str) -> None:
    path = key_of(fresh)
    path.parent.mkdir()
    match plant:
        case "mode":
            path.write_text("x" * 64)
            path.chmod(0o644)
        case "link":
            (path.parent / "other").write_text("x" * 64)
            (path.parent / "other").chmod(0o600)
            path.symlink_to("other")
        case "pipe":
            os.mkfifo(path, 0o600)
        case _:
            path.mkdir()
    result = fresh.call("run", "solo", "go")
    assert result.code == 1
    assert not (fresh.workspace / "perstack" / "jobs").exists()


def test_a_secret_brings_the_key_from_container_to_container(
    fresh: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = {STATE_KEY: "k" * 32}
    assert fresh.call("run", "solo", "go", "--job-id", "j", env=secret).code == 0
    assert not key_of(fresh).exists()
    fresh.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("another-home"))
    assert fresh.call("cancel", "j", "--final", env={STATE_KEY: "l" * 32}).code == 2
    assert fresh.call("delete", "j", "--yes").code == 2
    (fresh.workspace / ".env").write_text(f"{STATE_KEY}={'k' * 32}\n")
    assert fresh.call("delete", "j", "--yes").code == 2
    assert fresh.call("delete", "j", "--yes", env={STATE_KEY: "short"}).code == 1
    assert fresh.call("delete", "j", "--yes", env=secret).code == 0


def test_no_program_gets_the_key(fresh: Terminal) -> None:
    tell = ("exec", {"command": "sh", "args": ["-c", f"echo [${STATE_KEY}]"]})
    fresh.project(
        f'[permissions]\nallow = ["exec"]\n[sandbox]\nenv = ["{STATE_KEY}"]\n{ALONE}',
        solo=[reply("", tell), reply("x")],
    )
    result = fresh.run("run", "solo", "go", "--output", "jsonl", env={STATE_KEY: "k" * 32})
    assert "k" * 32 not in result.out
    assert STATE_KEY not in Environment({STATE_KEY: "k" * 32, "A": "b"})


def test_a_home_that_is_missing_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(StorageError, match="set HOME"):
        StateKey.of_user({})
    assert StateKey.of_user({STATE_KEY: "k" * 32}).read() == b"k" * 32


def test_a_mark_holds_for_one_key_and_one_folder(tmp_path: Path) -> None:
    keys = [StateKey(tmp_path / name) for name in ("one", "two")]
    states = [LocalState(tmp_path / name) for name in ("a", "b")]
    first, second = (StateMark(state, keys[0]) for state in states)
    assert first.claim()
    assert second.claim()
    assert not StateMark(states[0], keys[1]).validate()
    states[1].mark.write_bytes(states[0].mark.read_bytes())
    assert first.validate()
    assert not second.validate()


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "..", "../x", "a/../../x", "a//b", "./a", "a/.", "a\0b", "a\\x00b", ".git/hooks/post-commit",
     "a/.GIT/config", ".env", ".perstack-rewind-000000000000/x", "x" * 300, "a\\b", "/".join("x" * 2100)],
)  # fmt: skip
def test_a_path_that_no_writer_records_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"path|spelling of a file name"):
        checked_path(path)
    step = {"act": "put", "path": path, "number": 0}
    journal = {
        "workspace": "/w",
        "storage": "/w/perstack",
        "staging": ".perstack-rewind-0123456789ab",
        "phase": "forward",
    }
    with pytest.raises(ValueError, match=r"path|spelling of a file name"):
        Journal.model_validate({**journal, "steps": [step]})


@pytest.mark.parametrize(
    "staging", ["../../Documents", "/tmp", ".", ".git", "s", ".perstack-rewind-", ".perstack-rewind-a/.."]
)
def test_a_staging_folder_that_no_rewind_makes_is_refused(staging: str) -> None:
    with pytest.raises(ValueError, match=r"not the name of a rewind.s folder"):
        Journal.model_validate({"workspace": "/w", "storage": "s", "staging": staging, "phase": "clearing"})


def test_the_wrapper_of_guarded_state_decides_about_every_method_of_the_port() -> None:
    methods = {name for name in vars(Storage) if not name.startswith("_")} - {"keeps_copies"}
    assert methods <= vars(GuardedStorage).keys()
