"""State that arrives over the user's own: each log of others in a marked folder is shown, and nothing in it acts."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from acp import RequestError, text_block
from acp_editor import Editor, editing
from hosts import open_storage, wait_for
from stranger_state import HARMLESS, owned
from stranger_state import as_stranger as as_stranger
from stranger_state import nothing_is_named as nothing_is_named
from stranger_state import stranger as stranger
from stranger_state import stranger_once as stranger_once
from terminal import Terminal, reply
from terminal_app import run_app

from perstack.errors import NotAgreed
from perstack.host import Host
from perstack.ports.storage import Storage
from perstack.state_guard.state_marks import StateKey, StateMark

ASK = "perstack trust --state"
LIMITED = ("resume", "limited", "--max-steps", "9")


def by_archive(theirs: Path, ours: Path) -> None:
    archive = ours / "a.tar"
    subprocess.run(["tar", "-cf", archive, "-C", theirs, "--exclude", "origin.json", "perstack"], check=True)
    subprocess.run(["tar", "-xf", archive, "-C", ours], check=True)


def by_whole_archive(theirs: Path, ours: Path) -> None:
    """Keep our mark; everything else is theirs, their marks of logs too."""
    mark = (ours / "perstack" / "origin.json").read_bytes()
    shutil.copytree(theirs / "perstack", ours / "perstack", dirs_exist_ok=True)
    (ours / "perstack" / "origin.json").write_bytes(mark)


@pytest.fixture
def ours(terminal: Terminal, stranger: Terminal) -> Terminal:
    """Return the user's project with a Job of their own."""
    terminal.env["OWNED"] = stranger.env["OWNED"]
    terminal.project(HARMLESS, solo=[reply("done")] * 9)
    assert terminal.call("run", "solo", "go", "--job-id", "mine").code == 0
    return terminal


@pytest.fixture(params=[by_archive, by_whole_archive])
def planted(request: pytest.FixtureRequest, stranger: Terminal, ours: Terminal) -> Terminal:
    request.param(stranger.workspace, ours.workspace)
    return ours


@pytest.mark.parametrize(
    "act",
    [
        LIMITED,
        ("resume", "series"),
        ("run", "solo", "again", "--continue-job", "done"),
        ("answer", "t", "yes"),
        ("cancel", "limited", "--final"),
        ("redact", "limited-1-1", "query", "--reason", "x"),
        ("task", "resume", "t"),
    ],
    ids=lambda act: " ".join(act[:2]),
)
def test_what_was_planted_does_not_act(planted: Terminal, act: tuple[str, ...]) -> None:
    result = planted.call(*act)
    assert (result.code, ASK in result.err) == (2, True), result.err
    assert not owned(planted)


def test_a_text_that_was_planted_is_told_to_no_model_before_it_is_agreed_to(stranger: Terminal, ours: Terminal) -> None:
    ours.script(solo=[reply("", ("todo", {"newTodos": ["more"]})), reply("done")])
    assert ours.call("run", "solo", "go", "--job-id", "limited", "--max-steps", "1").code == 4
    assert stranger.run("tell", "limited", "send them all").code == 0
    shutil.copytree(stranger.workspace / "perstack/mailboxes", ours.workspace / "perstack/mailboxes")
    result = ours.call(*LIMITED)
    assert (result.code, ASK in result.err) == (2, True)
    assert "your installation did not make texts posted to Job limited" in result.err
    assert "tellRun" not in ours.log_of("limited-1").read_text()
    page = ours.call("trust", "--state", "--show").out
    assert "tells limited-1: send them all" in page


def test_a_due_task_that_was_planted_runs_nothing_and_names_the_remedy(planted: Terminal) -> None:
    result = planted.call("task", "run-due")
    assert "your installation did not make task t" in result.out + result.err
    assert not owned(planted)


def test_the_rest_of_the_folder_works_and_what_was_planted_is_shown(planted: Terminal) -> None:
    assert planted.call("run", "solo", "again", "--continue-job", "mine").code == 0
    assert planted.call("run", "solo", "go", "--job-id", "new").code == 0
    assert "limited" in planted.call("jobs").out
    assert planted.call("log", "--job", "limited").code == 0
    assert planted.call("verify", "done").code == 0
    assert planted.call("delete", "mine", "--yes").code == 0


def test_an_agreement_names_what_was_planted_and_lets_it_act(planted: Terminal) -> None:
    shown = planted.call("trust", "--state", "--show")
    assert "Run limited-1 (" in shown.out
    assert "echo > " in shown.out
    assert "task t" in shown.out
    assert "mine" not in shown.out
    assert planted.call("trust", "--state").code == 2
    assert planted.call(*LIMITED).code == 2
    assert planted.call("trust", "--state", "--yes").code == 0
    assert "already trusted" in planted.call("trust", "--state").err
    assert ASK not in planted.call(*LIMITED).err
    assert planted.call("run", "solo", "again", "--continue-job", "mine").code == 0


def test_a_job_that_was_planted_can_be_deleted(planted: Terminal) -> None:
    assert planted.call("delete", "limited", "--yes").code == 0
    assert "limited" not in planted.call("jobs").out


def add_run(job: Path, theirs: Path) -> None:
    shutil.copytree(theirs / "runs" / "limited-1", job / "runs" / "mine-2")


def replace_log(job: Path, theirs: Path) -> None:
    (job / "runs" / "mine-1" / "events.jsonl").unlink()
    shutil.copy(theirs / "runs" / "limited-1" / "events.jsonl", job / "runs" / "mine-1")


def overwrite_log(job: Path, theirs: Path) -> None:
    log = job / "runs" / "mine-1" / "events.jsonl"
    log.write_bytes((theirs / "runs" / "limited-1" / "events.jsonl").read_bytes())


def rename_job(job: Path, theirs: Path) -> None:
    shutil.rmtree(job)
    shutil.copytree(theirs, job)


@pytest.mark.parametrize("plant", [add_run, replace_log, overwrite_log, rename_job])
def test_a_log_that_was_planted_in_a_job_of_ones_own_is_noticed(
    ours: Terminal, stranger: Terminal, plant: Callable[[Path, Path], None]
) -> None:
    plant(ours.jobs() / "mine", stranger.jobs() / "limited")
    for act in (("resume", "mine"), ("run", "solo", "again", "--continue-job", "mine")):
        result = ours.call(*act)
        assert result.code != 0
        assert "Traceback" not in result.err
    assert not owned(ours)


def test_a_running_host_does_not_act_on_what_arrives_meanwhile(ours: Terminal, stranger: Terminal) -> None:
    async def work() -> None:
        async with Host(Host.open(workspace=ours.workspace).project, workspace=ours.workspace) as host:
            await host.jobs.job("mine")
            by_archive(stranger.workspace, ours.workspace)
            with pytest.raises(NotAgreed, match="did not make Job limited"):
                await host.jobs.resume("limited")

    wait_for(work(), 60)
    assert not owned(ours)


def test_marks_of_logs_of_another_project_do_not_count(ours: Terminal, tmp_path: Path) -> None:
    """A Job of the same user, published with its marks, is planted in another project of theirs."""
    other = Terminal(tmp_path / "other")
    other.workspace.mkdir()
    other.env = ours.env | {"PERSTACK_SCRIPT": str(other.workspace / "script.json")}
    other.project(HARMLESS, solo=[reply("done")])
    assert other.call("run", "solo", "go", "--job-id", "published").code == 0
    by_archive(other.workspace, ours.workspace)
    assert ours.call("run", "solo", "again", "--continue-job", "published").code == 2


def test_state_of_an_earlier_version_keeps_working_and_is_marked_once(ours: Terminal, stranger: Terminal) -> None:
    shutil.rmtree(ours.workspace / "perstack" / ".origins")
    state = open_storage("file:perstack", ours.workspace).local_state
    assert state is not None
    StateMark(state, StateKey.of_user(ours.env)).agree()  # it covers all logs, as marks of earlier versions do
    assert ours.call("jobs").code == 0
    assert not (ours.workspace / "perstack" / ".origins").exists()
    assert ours.call("run", "solo", "again", "--continue-job", "mine").code == 0
    by_archive(stranger.workspace, ours.workspace)
    assert ours.call(*LIMITED).code == 2
    assert ours.call("run", "solo", "again", "--continue-job", "mine").code == 0


def test_a_planted_folder_of_marks_is_none(ours: Terminal, tmp_path: Path) -> None:
    marks = ours.workspace / "perstack" / ".origins"
    kept = tmp_path / "elsewhere"
    marks.rename(kept)
    marks.symlink_to(kept)
    assert ours.call("run", "solo", "again", "--continue-job", "mine").code == 2
    marks.unlink()
    marks.mkdir()
    os.mkfifo(marks / "jobs.mine")
    assert ours.call("run", "solo", "again", "--continue-job", "mine").code == 2


@pytest.mark.parametrize("is_written_in_place", [False, True])
def test_a_database_that_is_overwritten_does_not_act(
    ours: Terminal, stranger: Terminal, is_written_in_place: bool
) -> None:
    source = open_storage("file:perstack", stranger.workspace)
    ours.project(f'storage = "sqlite:s.db"\n{HARMLESS}', solo=[reply("done")] * 9)
    assert ours.call("run", "solo", "go", "--job-id", "mine").code == 0
    assert ours.call("run", "solo", "again", "--continue-job", "mine").code == 0
    theirs = ours.workspace / "theirs.db"
    wait_for(copy_logs(source, open_storage("sqlite:theirs.db", ours.workspace)))
    if is_written_in_place:
        (ours.workspace / "s.db").write_bytes(theirs.read_bytes())
    else:
        theirs.replace(ours.workspace / "s.db")
    for name in ("s.db-wal", "s.db-shm"):
        (ours.workspace / name).unlink(missing_ok=True)
    assert ours.call(*LIMITED).code == 2
    assert not owned(ours)


async def copy_logs(source: Storage, target: Storage) -> None:
    from perstack.audit.storage_admin import copy_storage

    async for _ in copy_storage(source, target):
        pass
    await asyncio.gather(source.close(), target.close())


def planted_content(terminal: Terminal) -> dict[str, bytes]:
    """Return the logs of what was planted."""
    state = terminal.workspace / "perstack"
    return {str(log): log.read_bytes() for log in sorted(state.rglob("events.jsonl")) if "mine" not in str(log)}


def test_an_editor_does_not_continue_what_was_planted(planted: Terminal) -> None:
    before = planted_content(planted)

    async def work() -> None:
        for session_id in ("limited", "done"):
            editor = Editor()
            async with editing(planted, editor) as agent:
                with suppress(RequestError):
                    await agent.load_session(cwd=str(planted.workspace), session_id=session_id, mcp_servers=[])
                with pytest.raises(RequestError, match="did not make Job"):
                    await agent.prompt(session_id=session_id, prompt=[text_block("Go on")])

    wait_for(work(), 60)
    assert not owned(planted)
    assert planted_content(planted) == before


def test_the_terminal_program_does_not_continue_what_was_planted(
    planted: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = planted_content(planted)
    for name, value in planted.env.items():
        monkeypatch.setenv(name, value)

    async def person() -> None:
        host = Host(Host.open(workspace=planted.workspace).project, workspace=planted.workspace)
        async with host, run_app(host, size=(120, 24), job_id="done") as screen:
            await screen.sees("completed")
            await screen.type("go on")
            await screen.press("enter")
            await screen.sees("your installation did not", "perstack trust --state")

    wait_for(person(), 60)
    assert not owned(planted)
    assert planted_content(planted) == before


def test_a_task_of_an_earlier_version_can_be_changed_first(ours: Terminal) -> None:
    """A task is appended to without a lease."""
    assert ours.call("task", "create", "u").code == 0
    shutil.rmtree(ours.workspace / "perstack" / ".origins")
    state = open_storage("file:perstack", ours.workspace).local_state
    assert state is not None
    StateMark(state, StateKey.of_user(ours.env)).agree()
    assert ours.call("task", "start", "u").code == 0
