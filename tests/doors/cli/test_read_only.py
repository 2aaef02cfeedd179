"""A read-only store can be read and verified, and reading leaves no files behind."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import warm
from terminal import Terminal, reply

_DROP = 24  # PR_CAPBSET_DROP of prctl(2)
_RIGHTS_OF_ROOT = (1, 2, 3)  # to write to, read and change what the mode of a file forbids


def bound_by_modes() -> None:
    """Drop root's capabilities, so that file modes restrict the next program's access even as root."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None)
        for right in _RIGHTS_OF_ROOT:
            libc.prctl(_DROP, right, 0, 0, 0)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    paths = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def state_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in (folder, *sorted(folder.rglob("*")))
    }


def run_bounded(terminal: Terminal, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perstack", *args],
        cwd=terminal.workspace,
        env={**terminal.env, "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=bound_by_modes,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("storage", ["file:perstack", "sqlite:perstack/state.db"])
def test_a_store_without_write_access_is_read_and_verified_and_nothing_is_made(
    own_team: Terminal, storage: str
) -> None:
    terminal = own_team
    if storage.startswith("sqlite"):
        where = ("--storage", storage)
        done = terminal.call("run", "lead", "Do both parts", "--provider", "scripted", "--job-id", "team", *where)
        assert done.code == 0, done.err
    where = ("--storage", storage)
    assert terminal.call("task", "create", "chore", *where).code == 0
    state = terminal.workspace / "perstack"
    with read_only(state):
        before = state_of(state)
        for args in (
            ("jobs",),
            ("log",),
            ("log", "--json", "--job", "team"),
            ("verify",),
            ("verify", "--all"),
            ("replay",),
            ("task", "list"),
            ("task", "get", "chore"),
            ("iterations",),
            ("export", "team", "--format", "json"),
        ):
            done = run_bounded(terminal, *args, *where)
            assert (done.returncode, done.stderr) == (0, ""), (args, done)
        assert state_of(state) == before
        refused = run_bounded(terminal, "run", "lead", "more", "--continue", "--provider", "scripted", *where)
        assert refused.returncode == 1
        assert "Traceback" not in refused.stderr
        assert state_of(state) == before


def test_a_sqlite_file_that_a_killed_process_left_is_not_read_without_what_it_had_not_moved(own_team: Terminal) -> None:
    """Where the log beside the file cannot be taken in, an error is better than an old state."""
    terminal, where = own_team, ("--storage", "sqlite:perstack/state.db")
    assert terminal.call("run", "lead", "x", "--provider", "scripted", "--job-id", "team", *where).code == 0
    state = terminal.workspace / "perstack"
    (state / "state.db-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(28))
    with read_only(state):
        done = run_bounded(terminal, "jobs", *where)
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or str(state / "state.db") in done.stderr


def test_verify_all_checks_jobs_tasks_and_series_and_goes_on_after_a_damaged_one(own_team: Terminal) -> None:
    assert own_team.call("task", "create", "chore", "--start").code == 0
    assert own_team.call("task", "complete", "chore").code == 0
    result = own_team.call("verify", "--all")
    assert result.code == 0, result.out
    assert result.lines[-1].endswith(": 1 Job, 1 task, 0 series, 0 findings")
    log = own_team.workspace / "perstack" / "tasks" / "chore" / "runs" / "chore-1" / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    own_team.log_of("team-3").write_bytes(b"{}\n")
    result = own_team.call("verify", "--all")
    assert result.code == 1
    assert any(line.startswith("Task chore: the log ends at 2, ") for line in result.lines), result.out
    assert any("team-3" in line for line in result.lines)
    reports = own_team.call("verify", "--all", "--json").events
    seen = [(report["kind"], report["jobId"], report["ok"]) for report in reports]
    assert seen == [("job", "team", False), ("task", "chore", False)]
    assert own_team.call("verify", "chore").code == 1
    assert own_team.call("verify", "chore", "--all").code == 2


def test_a_task_whose_log_was_cut_is_damaged_and_never_at_work_again(own_team: Terminal) -> None:
    assert own_team.call("task", "create", "chore", "--start").code == 0
    assert own_team.call("task", "complete", "chore").code == 0
    log = own_team.workspace / "perstack" / "tasks" / "chore" / "runs" / "chore-1" / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    for args in (("task", "get", "chore"), ("task", "checkpoint", "chore"), ("task", "fail", "chore", "x")):
        result = own_team.call(*args)
        assert result.code == 1, (args, result)
        assert "its log has 2 events, but its entry says it had 3" in result.err


def test_what_a_killed_driver_had_recorded_is_vouched_for_by_job_json(terminal: Terminal) -> None:
    terminal.project(
        '[experts.slow]\ninstruction = "You work."\n',
        slow=[reply("", ("think", {"thought": "a"})), {**reply("late"), "delayMs": 600_000}],
    )
    process = warm.perstack(
        *("run", "slow", "go", "--provider", "scripted", "--job-id", "slow"),
        cwd=terminal.workspace,
        env=terminal.env,
        stdout=subprocess.DEVNULL,
    )
    job, log = terminal.jobs() / "slow" / "job.json", terminal.log_of("slow-1")
    try:
        for _ in range(600):
            lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
            kept = json.loads(job.read_bytes())["runs"] if job.exists() else []
            is_waiting = lines and lines[-1].startswith(b'{"type":"startGeneration"')
            if is_waiting and kept and kept[0].get("headSeq") == len(lines):
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"job.json stays behind: {kept}, {len(lines)} events")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert terminal.call("verify").code == 0
    log.write_bytes(b"".join(lines[:-1]))
    result = terminal.call("verify")
    assert result.code == 1
    assert f"a head kept elsewhere says it had {len(lines)} events" in result.out
