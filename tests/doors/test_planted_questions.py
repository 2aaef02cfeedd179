"""Questions and schedules of others at the doors of editors and of the terminal program: shown, never acted upon."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from acp import RequestError, text_block
from acp_editor import Editor, editing
from hosts import wait_for
from plain_person import begin_person
from stranger_state import ASKED, HARMLESS, SCHEDULED, by_copy, owned, writing_owned
from stranger_state import as_stranger as as_stranger
from stranger_state import nothing_is_named as nothing_is_named
from stranger_state import room as room
from terminal import Terminal, reply
from terminal_app import run_app

from perstack.host import Host

NOT_MADE = "your installation did not"
ASK = "perstack trust --state"


def add_unmarked(theirs: Path, ours: Terminal) -> None:
    """Let the whole folder be theirs."""
    by_copy(theirs, ours.workspace)


def add_to_marked(theirs: Path, ours: Terminal) -> None:
    """Add what is theirs to a folder with a Job of our own."""
    ours.project(HARMLESS, solo=[reply("done")])
    assert ours.run("run", "solo", "go", "--job-id", "mine").code == 0
    mark = (ours.workspace / "perstack" / "origin.json").read_bytes()
    shutil.copytree(theirs, ours.workspace, dirs_exist_ok=True)
    (ours.workspace / "perstack" / "origin.json").write_bytes(mark)


@pytest.fixture(params=[add_unmarked, add_to_marked])
def planted(request: pytest.FixtureRequest, room: Terminal, terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    """Return our folder with an approval, a waiting task and a schedule of others, and a definition we agreed to."""
    room.project(ASKED, solo=[reply("", writing_owned(room)), reply("done")] * 4)
    assert room.run("run", "solo", "go", "--job-id", "asks").code == 3
    room.project(SCHEDULED, solo=[reply("done")] * 4)
    assert room.call("trust", "--yes").code == 0
    assert room.run("task", "run-due").code == 0
    assert (room.workspace / "perstack" / "schedules").is_dir()
    assert room.run("task", "create", "t", "--start").code == 0
    assert room.run("task", "pause", "t", "--reason", "human_approval", "--message", "Ship it?").code == 0
    request.param(room.workspace, terminal)
    terminal.env["OWNED"] = room.env["OWNED"]
    terminal.project(f"{SCHEDULED}\n[permissions]\nask = ['exec']\n", solo=[reply("", writing_owned(room)), reply("x")])
    assert terminal.call("trust", "--yes").code == 0
    for name, value in terminal.env.items():
        monkeypatch.setenv(name, value)
    return terminal


def content(terminal: Terminal) -> dict[str, bytes]:
    """Return the files of the state folder that are not of the user's own Job."""
    state = terminal.workspace / "perstack"
    found = {str(path.relative_to(state)): path.read_bytes() for path in state.rglob("*") if path.is_file()}
    return {path: each for path, each in found.items() if not path.startswith(".origins/jobs.mine")}


def test_an_editor_answers_no_question_of_others(planted: Terminal) -> None:
    before = content(planted)

    async def work(answers: Sequence[str]) -> None:
        editor = Editor(choose="yes")
        async with editing(planted, editor) as agent:
            workspace = str(planted.workspace)
            assert "asks" in [one.session_id for one in (await agent.list_sessions(cwd=workspace)).sessions]
            await agent.load_session(cwd=workspace, session_id="asks", mcp_servers=[])
            assert "exec" in editor.texts()
            for answer in answers:
                with pytest.raises(RequestError, match=NOT_MADE):
                    await agent.prompt(session_id="asks", prompt=[text_block(answer)])
            if not answers:
                await agent.prompt(session_id="asks", prompt=[text_block("yes")])

    wait_for(work(("yes", "always", "no: not this")), 60)
    assert not owned(planted)
    assert content(planted) == before
    assert planted.call("trust", "--state", "--yes").code == 0
    wait_for(work(()), 60)
    assert owned(planted), "the planted question was one that could be answered"


@pytest.mark.parametrize("key", ["y", "a", "n"])
def test_the_inbox_of_the_terminal_program_shows_them_and_takes_no_answer(planted: Terminal, key: str) -> None:
    before = content(planted)

    async def person() -> None:
        host = Host.open(workspace=planted.workspace)
        async with host, run_app(host, size=(120, 30), notices=True) as screen:
            await screen.press("f3")
            await screen.sees("approve exec", "asks ", "Ship it?")
            await screen.press("enter")
            await screen.sees("wants to call exec")
            await screen.press("tab", key)
            if key == "n":
                await screen.sees("why not?")
                await screen.press("enter")
            await screen.sees(NOT_MADE, ASK)
            await screen.press("f3")
            await screen.sees("approve exec")
            await screen.press("end", "enter")
            await screen.sees("perstack answer t ANSWER")

    wait_for(person(), 60)
    assert not owned(planted)
    assert content(planted) == before


def test_the_lines_of_the_terminal_program_take_no_answer_either(planted: Terminal) -> None:
    before = content(planted)

    async def person() -> None:
        host = Host.open(workspace=planted.workspace)
        async with host, begin_person(host) as one:
            await one.types("/inbox", "1. solo", "Ship it?")
            await one.types("/open 1", "wants to call exec", "yes")
            for answer in ("yes", "always", "1", "no: not this"):
                await one.types(answer, NOT_MADE, ASK)

    wait_for(person(), 60)
    assert not owned(planted)
    assert content(planted) == before
