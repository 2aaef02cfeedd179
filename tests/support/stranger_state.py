"""A folder of another user with state of every kind, and the ways on which it arrives in ours."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from terminal import Terminal, reply

PROJECT = """
[permissions]
allow = ["exec"]
[experts.solo]
instruction = "You work alone."
[experts.solo.iterate]
evaluator = ["sh", "-c", "echo '{\\"score\\": 1}'"]
maxIterations = 2
"""
HARMLESS = '[experts.solo]\ninstruction = "You work alone."\n'
ASKED = '[permissions]\nask = ["exec"]\n' + HARMLESS
SCHEDULED = (
    '[schedules.now]\ncron = "* * * * *"\ntimezone = "Europe/Berlin"\nexpert = "solo"\nquery = "go"\n' + HARMLESS
)


@pytest.fixture(autouse=True)
def nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no PERSTACK_TRUST agree to anything, as `tmp_path` does for other tests."""
    monkeypatch.delenv("PERSTACK_TRUST")


@pytest.fixture(name="terminal")
def as_stranger(terminal: Terminal) -> Terminal:
    """Return a project of a user who has agreed to nothing."""
    return terminal.as_stranger()


@pytest.fixture
def stranger(stranger_once: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a project of another user with state of every kind, each of which would write OWNED."""
    theirs = Terminal(tmp_path_factory.mktemp("theirs"))
    theirs.env |= {name: stranger_once.env[name] for name in ("XDG_STATE_HOME", "OWNED")}
    by_copy(stranger_once.workspace, theirs.workspace)
    Path(theirs.env["OWNED"]).unlink(missing_ok=True)
    return theirs


@pytest.fixture(scope="session")
def stranger_once(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return what `stranger` copies."""
    theirs = Terminal(tmp_path_factory.mktemp("theirs"))
    theirs.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("their-home"))
    owned = tmp_path_factory.mktemp("owned") / "OWNED"
    theirs.env["OWNED"] = str(owned)
    script = ("exec", {"command": "sh", "args": ["-c", f"echo > {owned}"]})
    theirs.project(PROJECT, solo=[reply("", script), reply("done")] * 4)
    assert theirs.run("run", "solo", "go", "--job-id", "limited", "--max-steps", "1").code == 4
    assert theirs.run("run", "solo", "go", "--job-id", "done").code == 0
    assert theirs.run("iterate", "solo", "go", "--id", "series", "--max-iterations", "1", "--max-steps", "1").code == 4
    assert theirs.run("task", "create", "t", "--start").code == 0
    paused = ("task", "pause", "t", "--reason", "external_dependency", "--command", f"echo > {owned}")
    assert theirs.run(*paused).code == 0
    owned.unlink(missing_ok=True)
    log = theirs.log_of("limited-1")
    # cut just before the decided call, as after a crash
    lines = log.read_bytes().splitlines(keepends=True)
    kept = next(number for number, line in enumerate(lines) if b'"type":"callTools"' in line)
    log.write_bytes(b"".join(line.replace(b',"batch":2', b"") for line in lines[:kept]))
    for cache in ("job.json", "checkpoints"):
        path = theirs.jobs() / "limited" / cache
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (theirs.workspace / "perstack.toml").write_text(HARMLESS)
    return theirs


def by_clone(theirs: Path, ours: Path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(theirs))
    for words in (("init", "-q", "."), ("add", "-Af", "."), ("commit", "-qm", "x"), ("clone", "-q", ".", str(ours))):
        subprocess.run([*git, *words], check=True, capture_output=True)


def by_copy(theirs: Path, ours: Path) -> None:
    subprocess.run(["cp", "-a", f"{theirs}/.", str(ours)], check=True)


def by_archive(theirs: Path, ours: Path) -> None:
    archive = theirs.with_suffix(".tar")
    subprocess.run(["tar", "-cf", str(archive), "-C", str(theirs), "."], check=True)
    ours.mkdir(exist_ok=True)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(ours)], check=True)


def owned(terminal: Terminal) -> bool:
    return Path(terminal.env["OWNED"]).exists()


def tree(folder: Path) -> dict[str, object]:
    """Return everything below a folder, with contents and times."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a folder of another user, whose own programs write OWNED."""
    theirs = Terminal(tmp_path_factory.mktemp("theirs"))
    theirs.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("their-home"))
    theirs.env["OWNED"] = str(tmp_path_factory.mktemp("owned") / "OWNED")
    return theirs


def arrived(theirs: Terminal, ours: Terminal, toml: str) -> Terminal:
    """Return our folder with everything of theirs, and a definition that we have agreed to."""
    by_copy(theirs.workspace, ours.workspace)
    ours.env["OWNED"] = theirs.env["OWNED"]
    ours.env["PERSTACK_SCRIPT"] = str(ours.workspace / "script.json")
    (ours.workspace / "perstack.toml").write_text(toml)
    assert ours.call("trust", "--yes").code == 0
    return ours


def writing_owned(theirs: Terminal) -> tuple[str, dict[str, object]]:
    return ("exec", {"command": "sh", "args": ["-c", f"echo > {theirs.env['OWNED']}"]})
