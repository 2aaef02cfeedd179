"""A two-line definition whose model writes a hostile script: at every door it asks, or is kept inside the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from acp.helpers import text_block
from acp_editor import Editor as AcpEditor
from acp_editor import editing
from editor import attached
from hosting import wait_for
from mcp_types import ElicitRequestParams, ElicitResult
from plain_person import begun
from terminal import Terminal, reply

from perstack.host import Host

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
    done = hostile.run("run", "a", "go", "--provider", "scripted", *options)
    assert done.code == 0, done.err
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
    done = hostile.run("run", "a", "go", "--provider", "scripted", *(["--open"] if how == "option" else []))
    assert done.code == 0
    assert done.err.startswith("note: programs run without a question and outside a sandbox: ")
    assert outside.exists()


def test_the_terminal_program_asks(hostile: Terminal, outside: Path) -> None:
    async def person() -> None:
        host = Host.open(workspace=hostile.workspace, env=hostile.env, is_attended=lambda: True)
        async with begun(host, expert="a") as one:
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
    words = "a: exec is not named, so each program asks a person, or runs in a sandbox; to have it run:"
    assert words in hostile.call("validate").out
    assert words in hostile.call("doctor").out
    (hostile.workspace / "perstack.toml").write_text(f'{TWO_LINES}[permissions]\nallow = ["exec"]\n')
    assert "exec is not named" not in hostile.call("validate").out + hostile.call("doctor").out
