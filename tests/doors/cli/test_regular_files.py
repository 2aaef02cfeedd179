"""A pipe, device or link in the place of one of perstack's files blocks no command; each error is one line."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.system.files import FileTooLarge, NotRegular, open_regular, read_below, read_regular

PROJECT = """
include = ["more.toml"]
agentsMd = true
[experts.solo]
instruction = "You work alone."
agentSkills = ["skills/tidy"]
"""
KINDS = ("pipe", "zero", "link to a pipe", "socket", "folder", "loop")


def put(path: Path, kind: str) -> None:
    """Replace a file by something else."""
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "link to a pipe":
            pipe = Path(tempfile.mkdtemp(dir=path.parent.parent)) / "pipe"
            os.mkfifo(pipe)
            path.symlink_to(pipe)
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(os.path.relpath(path))
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)


@pytest.fixture
def project(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(terminal.workspace)  # the address of a socket is short
    terminal.project(PROJECT, solo=[reply("done")])
    (terminal.workspace / "more.toml").write_text('[experts.other]\ninstruction = "You wait."\n')
    skill = terminal.workspace / "skills" / "tidy" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: tidy\ndescription: Tidies.\n---\nTidy.\n")
    return terminal


FILES = ("perstack.toml", "more.toml", ".env", ".env.local", "perstack.lock", "AGENTS.md", "skills/tidy/SKILL.md")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_no_command_waits_for_what_has_the_name_of_a_file_of_the_project(
    project: Terminal, name: str, kind: str
) -> None:
    put(project.workspace / name, kind)
    others = (("validate",), ("doctor",), ("install",)) if kind == "pipe" else ()
    for words in (("run", "solo", "go", "--provider", "scripted"), *others):
        result = project.call(*words)
        assert "Traceback" not in result.err, result.err
        if words[0] == "run" and name == "perstack.lock":
            assert result.code == 2, result.err
            assert result.err.startswith("error: ")
            assert "perstack.lock cannot be read: " in result.err
            assert len(result.err.splitlines()) == 1, result.err


@pytest.mark.parametrize("kind", KINDS)
def test_no_command_waits_for_a_file_that_is_named(project: Terminal, kind: str) -> None:
    put(project.workspace / "named", kind)
    for words in (
        ("run", "solo", "go", "--provider", "scripted", "--attach", "named"),
        ("run", "solo", "go", "--config", "named"),
        ("run", "solo", "go", "--env-path", "named", "--provider", "scripted"),
        ("run", "solo", "go", "--recording", "named"),
        ("run", "solo", "go", "--provider", "scripted", "--permissions", "named"),
        ("permissions", "backtest", "--rules", "named"),
        ("resume", "x", "--permissions", "named"),
        ("record", "x", "--to", "named"),
        ("jobs", "--storage", "sqlite:named"),
        ("run", "solo", "go", "--provider", "scripted", "--storage", "sqlite:named"),
        ("jobs", "--storage", "file:named"),
    ):
        result = project.call(*words)
        assert result.code != 0 or words[0] in ("run", "jobs"), words
        assert "Traceback" not in result.err + result.out, (words, result.err)
        assert "no such option" not in result.err.lower(), result.err


def files_below(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


COMMANDS = (
    ("jobs",),
    ("log", "--job", "j"),
    ("verify", "j"),
    ("verify", "--all"),
    ("inbox",),
    ("cost",),
    ("doctor",),
    ("resume", "j", "--provider", "scripted"),
    ("run", "solo", "again", "--provider", "scripted", "--continue-job", "j"),
    ("task", "list"),
    ("task", "run-due", "--provider", "scripted"),
    ("prune", "--dry-run"),
    ("delete", "j", "--yes"),
)


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:store/state.db"])
def test_no_command_waits_for_what_has_the_name_of_a_file_of_the_state(terminal: Terminal, storage: str) -> None:
    terminal.project(
        f'storage = "{storage}"\n[experts.solo]\ninstruction = "x"\n', solo=[reply("", ("think", {"thought": "a"}))] * 9
    )
    result = terminal.run("run", "solo", "go", "--provider", "scripted", "--job-id", "j", "--max-steps", "2")
    assert result.code == 4, result.err
    assert terminal.run("task", "create", "t", "--start").code == 0
    state = terminal.workspace / storage.partition(":")[2].partition("/")[0]
    kept = state.with_name("kept")
    state.rename(kept)
    for path in files_below(kept):
        shutil.copytree(kept, state)
        put(state / path.relative_to(kept), "pipe")
        for words in COMMANDS:
            done = terminal.call(*words)
            assert "Traceback" not in done.err + done.out, (path.name, words, done.err)
            assert "no such option" not in done.err.lower(), done.err
        shutil.rmtree(state)


def test_only_a_regular_file_is_opened_and_read_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("pipe", "zero", "socket", "folder", "link to a pipe"):
        put(tmp_path / kind, kind)
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT):
            with pytest.raises(NotRegular, match="not a regular file"):
                open_regular(tmp_path / kind, flags, follow=True)
        with pytest.raises(NotRegular):
            read_regular(tmp_path / kind, 10)
        with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
            read_below(tmp_path, kind, 10)
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 10) == b"0123456789"
    with pytest.raises(FileTooLarge, match="more than 9 bytes"):
        read_regular(tmp_path / "link", 9)
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "link")
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    for _ in range(50):
        with pytest.raises(NotRegular):
            open_regular(tmp_path / "pipe")
    assert not before or len(list(Path("/proc/self/fd").iterdir())) == before
