"""A two-line definition whose model writes a hostile script: at every door it asks, or is kept inside the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from acp.helpers import text_block
from acp_editor import Editor as AcpEditor
from acp_editor import editing
from editor import attached
from hosts import wait_for
from mcp_types import ElicitRequestParams, ElicitResult
from plain_person import begin_person
from postgres_server import PostgresServer
from terminal import Terminal, reply
from worker_processes import worker

from perstack.definition_files import load_project
from perstack.host import Host
from perstack.system.clock import SYSTEM

TWO_LINES = '[experts.a]\ninstruction = "x"\n'


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file outside the project's folder, which the script creates if nothing stops it."""
    return tmp_path_factory.mktemp("outside") / "file"


@pytest.fixture
def hostile(terminal: Terminal, outside: Path) -> Terminal:
    script = f"echo x > {outside}; rm -rf {outside.parent}/*; touch {outside}"
    (terminal.workspace / "perstack.toml").write_text(TWO_LINES)
    return terminal.script(a=[reply("", ("exec", {"command": "sh", "args": ["-c", script]})), reply("done")])


@pytest.mark.parametrize("options", [(), ("--unattended",), ("--no-input",), ("--quiet", "--output", "text")])
def test_in_a_pipe_it_never_waits_and_stays_inside(hostile: Terminal, outside: Path, options: tuple[str, ...]) -> None:
    result = hostile.run("run", "a", "go", "--provider", "scripted", *options)
    assert result.code == 0, result.err
    assert not outside.exists()


def test_at_a_terminal_it_asks(hostile: Terminal, outside: Path) -> None:
    seen = hostile.look("run", "a", "go", "--provider", "scripted", types="no\n")
    assert "a wants to call exec of skill @perstack/base" in seen
    assert str(outside) in seen.replace("\n", "")
    assert not outside.exists()


def test_with_no_input_at_a_terminal_nobody_is_asked(hostile: Terminal, outside: Path) -> None:
    seen = hostile.look("run", "a", "go", "--provider", "scripted", "--no-input")
    assert "approve?" not in seen
    assert not outside.exists()


@pytest.mark.parametrize("how", ["option", "default"])
def test_the_old_behaviour_is_announced(hostile: Terminal, outside: Path, how: str) -> None:
    definition = hostile.workspace / "perstack.toml"
    definition.write_text(TWO_LINES + ('[permissions]\ndefault = "allow"\n' if how == "default" else ""))
    result = hostile.run("run", "a", "go", "--provider", "scripted", *(["--open"] if how == "option" else []))
    assert result.code == 0
    assert result.err.startswith("note: programs run without a question and outside a sandbox: ")
    assert outside.exists()


def test_a_later_command_announces_what_the_job_was_begun_with(hostile: Terminal, outside: Path) -> None:
    note = "note: programs run without a question and outside a sandbox: as when the Job began\n"
    begun = hostile.run("run", "a", "go", "--provider", "scripted", "--open", "--job-id", "job", "--max-steps", "1")
    assert begun.err.startswith("note: programs run without a question and outside a sandbox: as an option says\n")
    resumed = hostile.run("resume", "job", "--max-steps", "9")
    assert (resumed.code, resumed.err.count("note: programs")) == (0, 1)
    assert note in resumed.err
    again = ("run", "a", "again", "--continue-job", "job", "--provider", "scripted")
    assert note in hostile.run(*again).err
    assert "note: programs" not in hostile.run(*again, "--quiet").err
    assert hostile.run(*again, "--open").err.count("note: programs") == 1
    other = hostile.run("run", "a", "go", "--provider", "scripted", "--job-id", "other", "--max-steps", "1")
    assert "note: programs" not in other.err + hostile.run("resume", "other", "--max-steps", "9").err


def test_the_terminal_program_announces_it_when_the_job_is_opened(hostile: Terminal) -> None:
    for job_id, option in (("wide", ("--open",)), ("narrow", ())):
        hostile.run("run", "a", "go", "--provider", "scripted", *option, "--job-id", job_id)

    async def person() -> None:
        host = Host.open(workspace=hostile.workspace, env=hostile.env, is_attended=lambda: True)
        async with begin_person(host, job_id="wide") as one:
            await one.sees("note: programs run without a question and outside a sandbox: as when the Job")
            assert "note: programs" not in await one.types("/open narrow", "a follow-up")

    wait_for(person(), 60)


class _TwoMinutesAgo:
    """A clock that is two minutes slow."""

    def now(self) -> int:
        return SYSTEM.now() - 120_000


def test_the_job_of_a_schedule_stays_inside(hostile: Terminal, outside: Path) -> None:
    with (hostile.workspace / "perstack.toml").open("a") as file:
        file.write('[schedules.s]\ncron = "* * * * *"\nexpert = "a"\nquery = "go"\n')
    project = load_project(hostile.workspace / "perstack.toml").project

    async def seen_long_ago() -> None:
        async with Host(project, workspace=hostile.workspace, env=hostile.env, clock=_TwoMinutesAgo()) as host:
            assert await host.schedules.once() == ()

    wait_for(seen_long_ago())
    result = hostile.call("task", "run-due", "--provider", "scripted")
    assert result.code == 0, result.err
    (job,) = hostile.call("jobs", "--json").events
    assert (job["status"], job["labels"]) == ("completed", {"schedule": "s"})
    assert count_of_calls(hostile, job["id"]) == 1
    assert not outside.exists()


def count_of_calls(terminal: Terminal, job_id: str) -> int:
    """Return the number of calls of `exec` that have a result, of a Job that did not wait for a person."""
    kinds = [event["type"] for event in terminal.call("log", job_id, "--json").events]
    assert "stopRunByInteractiveTool" not in kinds
    return kinds.count("finishToolCall")


def test_a_worker_stays_inside(hostile: Terminal, outside: Path, postgres: PostgresServer) -> None:
    definition = f'storage = "{postgres.address()}"\n[provider]\nproviderName = "scripted"\n{TWO_LINES}'
    (hostile.workspace / "perstack.toml").write_text(definition)
    submitted = hostile.call("submit", "a", "go", "--job-id", "job")
    assert submitted.code == 0, submitted.err
    with worker(hostile) as process:
        assert process.until_event("ended")["status"] == "completed"
    assert count_of_calls(hostile, "job") == 1
    assert not outside.exists()


def test_the_terminal_program_asks(hostile: Terminal, outside: Path) -> None:
    async def person() -> None:
        host = Host.open(workspace=hostile.workspace, env=hostile.env, is_attended=lambda: True)
        async with begin_person(host, expert="a") as one:
            await one.types("go", "wants to call exec")
            await one.types("n", "done")

    wait_for(person(), 60)
    assert not outside.exists()


@pytest.mark.parametrize("has_forms", [True, False])
def test_mcp_asks_by_a_form_or_stays_inside(hostile: Terminal, outside: Path, *, has_forms: bool) -> None:
    asked: list[str] = []

    def fill(form: ElicitRequestParams) -> ElicitResult:
        asked.append(form.message)
        return ElicitResult(action="accept", content={"answer": "no"})

    async def work() -> None:
        async with attached(hostile, era="handshake", fill=fill if has_forms else None) as editor:
            result = await editor.call("a", query="go")
            assert not result.is_error

    wait_for(work(), 60)
    assert [message.startswith("a wants to call exec") for message in asked] == [True] * has_forms
    assert not outside.exists()


def test_editors_are_asked(hostile: Terminal, outside: Path) -> None:
    editor = AcpEditor("no")

    async def work() -> None:
        async with editing(hostile, editor) as agent:
            session = await agent.new_session(cwd=str(hostile.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("go")])

    wait_for(work(), 60)
    assert ["exec" in title for title, _ in editor.asked] == [True]
    assert not outside.exists()


def test_python_without_a_listener_that_answers_stays_inside(hostile: Terminal, outside: Path) -> None:
    async def work() -> None:
        async with Host.open(workspace=hostile.workspace, env=hostile.env) as host:
            job = await host.run("a", "go")
            assert job.status == "completed"

    wait_for(work(), 60)
    assert not outside.exists()


def test_what_asks_is_listed_by_validate_and_doctor(hostile: Terminal) -> None:
    words = "a: exec is not named, so each program needs a person's yes, or a sandbox; to let programs run:"
    assert words in hostile.call("validate").out
    assert words in hostile.call("doctor").out
    (hostile.workspace / "perstack.toml").write_text(f'{TWO_LINES}[permissions]\nallow = ["exec"]\n')
    assert "exec is not named" not in hostile.call("validate").out + hostile.call("doctor").out
