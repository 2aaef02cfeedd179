"""The process of `perstack acp`: its streams, signals, folders, and a definition that changes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm
from acp import PROTOCOL_VERSION, RequestError
from acp.helpers import text_block
from acp_editor import Editor, editing, run, spawned
from processes import wait_until
from terminal import SECONDS, TEAM, Terminal, reply


def test_sessions_in_different_folders_run_at_once_and_see_nothing_of_each_other(
    terminal: Terminal, tmp_path: Path
) -> None:
    names = ("red", "blue")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "perstack.toml").write_text(f'[experts.{name}]\ninstruction = "[[{name}]]"\n')
    terminal.script(
        **{
            f"[[{name}]]": [reply("", ("writeTextFile", {"path": "who.txt", "text": name})), reply(f"I am {name}.")]
            for name in names
        }
    )

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            sessions = {name: await agent.new_session(cwd=str(tmp_path / name), mcp_servers=[]) for name in names}
            ids = {name: session.session_id for name, session in sessions.items()}
            assert [session.modes.current_mode_id for session in sessions.values()] == list(names)
            prompts = (agent.prompt(session_id=ids[name], prompt=[text_block("Who?")]) for name in names)
            assert {done.stop_reason for done in await asyncio.gather(*prompts)} == {"end_turn"}
            for name in names:
                assert (tmp_path / name / "who.txt").read_text() == name
                assert editor.texts(session_id=ids[name]) == f"I am {name}."
                listed = await agent.list_sessions(cwd=str(tmp_path / name))
                assert [session.session_id for session in listed.sessions] == [ids[name]]
            with pytest.raises(RequestError, match=ids["red"]):
                async with editing(terminal, Editor()) as other:
                    await other.load_session(cwd=str(tmp_path / "blue"), session_id=ids["red"], mcp_servers=[])

    run(work())


def test_stdout_carries_the_protocol_and_nothing_else(terminal: Terminal) -> None:
    (terminal.workspace / "chatty.py").write_text(
        "import os\n"
        "from perstack.ports.hooks import hookimpl\n"
        "print('a plugin prints')\n"
        "class Listener:\n"
        "    def on_event(self, event, line):\n"
        "        os.system('echo a child prints; cat')\n"
        "@hookimpl\n"
        "def perstack_listeners():\n"
        "    return [Listener()]\n"
    )
    terminal.env |= {"PERSTACK_PLUGINS": "perstack.testing.plugin,chatty", "PYTHONPATH": str(terminal.workspace)}
    terminal.project(TEAM, helper=[reply("Done.")])
    messages: list[tuple[str, dict[str, object]]] = [
        ("initialize", {"protocolVersion": PROTOCOL_VERSION}),
        ("session/new", {"cwd": str(terminal.workspace), "mcpServers": []}),
        ("session/prompt", {"prompt": [{"type": "text", "text": "Go"}]}),
    ]
    answer: dict[str, Any] = {}
    with warm.perstack(
        *("acp", "--provider", "scripted", "--expert", "helper"),
        env=terminal.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, (method, params) in enumerate(messages):
            named = params | ({"sessionId": answer["result"]["sessionId"]} if method == "session/prompt" else {})
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": named}) + "\n")
            process.stdin.flush()
            while (answer := json.loads(process.stdout.readline())).get("id") != number:
                assert answer["jsonrpc"] == "2.0"
        assert answer["result"]["stopReason"] == "end_turn"
        out, err = process.communicate(timeout=SECONDS)
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in out.splitlines())
    assert all(words in err for words in ("a plugin prints", "a child prints"))
    assert process.returncode == 0


def test_stdin_may_be_dev_null_and_stdout_a_pipe_or_a_file(terminal: Terminal, tmp_path: Path) -> None:
    terminal.project(TEAM)
    with (tmp_path / "out").open("wb") as file:
        for out in (subprocess.PIPE, file):
            with warm.perstack(
                *("acp", "--provider", "scripted"),
                env=terminal.env,
                cwd=terminal.workspace,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                said, err = process.communicate(timeout=SECONDS)
            assert (process.returncode, said or "", err) == (0, "", "")


def test_a_file_may_hold_what_the_agent_says(terminal: Terminal, tmp_path: Path) -> None:
    terminal.project(TEAM)
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": PROTOCOL_VERSION}}
    command = ("acp", "--provider", "scripted")
    out = tmp_path / "out"
    with (
        out.open("wb") as file,
        warm.perstack(*command, env=terminal.env, cwd=terminal.workspace, stdin=subprocess.PIPE, stdout=file) as agent,
    ):
        assert agent.stdin is not None
        agent.stdin.write(json.dumps(hello).encode() + b"\nno message\n")
        agent.stdin.flush()
        wait_until(lambda: out.read_bytes().endswith(b"\n"), "the agent's answer")
        agent.stdin.close()
        assert agent.wait(SECONDS) == 0
    assert json.loads(out.read_text())["result"]["protocolVersion"] == 1


def test_in_a_folder_of_a_project_sessions_are_the_projects_and_files_are_there(terminal: Terminal) -> None:
    deep = terminal.workspace / "src/deep"
    deep.mkdir(parents=True)
    write = ("writeTextFile", {"path": "made.txt", "text": "x"})
    terminal.project(TEAM, lead=[reply("", write), reply("done")])

    async def work() -> None:
        async with editing(terminal, Editor()) as agent:
            session = await agent.new_session(cwd=str(deep), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Go")])
            for folder in (deep, terminal.workspace):
                listed = await agent.list_sessions(cwd=str(folder))
                assert [session.session_id for session in listed.sessions] == [session.session_id]

    run(work())
    assert (deep / "made.txt").exists()
    assert terminal.jobs().is_dir()
    assert not (deep / "perstack").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_after_its_jobs_are_recorded_as_interrupted(
    terminal: Terminal, number: signal.Signals
) -> None:
    call = ("exec", {"command": "sh", "args": ["-c", "touch begun; sleep 300"], "timeout": 200_000})
    terminal.project(TEAM, lead=[reply("", call), reply("end")])

    async def work() -> None:
        async with asyncio.timeout(SECONDS), spawned(terminal, Editor()) as (agent, process):
            await agent.initialize(protocol_version=PROTOCOL_VERSION)
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            prompt = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=[text_block("Do it")]))
            await asyncio.to_thread(wait_until, (terminal.workspace / "begun").exists, "the command to begin")
            process.send_signal(number)
            await asyncio.to_thread(process.wait, SECONDS)
            await asyncio.wait({prompt})
            prompt.exception()

    run(work())
    (job,) = terminal.run("jobs", "--json").events
    assert job["status"] == "stoppedByInterrupt"
    assert '"stopRunByInterrupt"' in terminal.log_of(f"{job['id']}-1").read_text()


EVIL = '\n[experts.guest.skills.evil]\ntype = "mcpStdioSkill"\ncommand = "sh"\nargs = ["-c", "touch ran"]\n'


@pytest.mark.parametrize("choice", [None, "no", "yes"])
def test_a_definition_that_has_something_else_executed_holds_once_a_person_agrees(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory, choice: str | None
) -> None:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    guest = '[experts.guest]\ninstruction = "[[{}]] You serve."\n'
    terminal.project(guest.format("old"), **{f"[[{name}]]": [reply(name)] * 3 for name in ("old", "words", "new")})
    path = terminal.workspace / "ran"

    async def work() -> None:
        editor = Editor(choose=choice)

        async def prompt_reply() -> str:
            before = len(editor.texts())
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Serve")])
            return editor.texts()[before:]

        async with editing(terminal, editor) as agent:
            assert await prompt_reply() == "old"
            terminal.workspace.joinpath("perstack.toml").write_text(guest.format("words"))
            assert await prompt_reply() == "words"
            assert editor.asked == []
            terminal.workspace.joinpath("perstack.toml").write_text(guest.format("new") + EVIL)
            first = await prompt_reply()
            ((title, options),) = editor.asked
            assert '+ executes: command = "sh", args = ["-c", "touch ran"] (experts.guest.skills.evil)' in title
            assert options == ["yes", "no"]
            assert first.endswith("new" if choice == "yes" else "words")
            assert ("perstack trust" in first) == (choice != "yes")
            assert await prompt_reply() == ("new" if choice == "yes" else "words")
            assert len(editor.asked) == 1
            assert path.exists() == (choice == "yes")

    run(work())


def test_a_changed_definition_that_a_dialog_does_not_show_whole_is_not_asked_about(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    terminal.env["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    guest = '[experts.guest]\ninstruction = "[[{}]] You serve."\n'
    terminal.project(guest.format("old"), **{f"[[{name}]]": [reply(name)] * 3 for name in ("old", "new")})

    async def work() -> None:
        editor = Editor(choose="yes")
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            hiding = EVIL.replace('"touch ran"', '"' + "echo a; " * 600 + 'touch ran"')
            terminal.workspace.joinpath("perstack.toml").write_text(guest.format("new") + hiding)
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Serve")])
            assert editor.asked == []
            assert "it cannot be approved here; to see all of it: perstack trust" in editor.texts()
            assert editor.texts().endswith("old")

    run(work())
    assert not (terminal.workspace / "ran").exists()


def test_sessions_that_an_editor_never_closes_are_given_up_and_can_be_loaded_again(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Hello.")])

    async def scenario(editor: Editor) -> None:
        async with editing(terminal, editor) as agent:
            first = (await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])).session_id
            await agent.prompt(session_id=first, prompt=[text_block("Hi")])
            for _ in range(210):
                await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            with pytest.raises(RequestError, match="is not open here: load it first"):
                await agent.prompt(session_id=first, prompt=[text_block("Hi")])
            await agent.load_session(cwd=str(terminal.workspace), session_id=first, mcp_servers=[])
            assert editor.texts(session_id=first).endswith("Hello.")

    run(scenario(Editor()))
