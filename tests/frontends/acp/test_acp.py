"""`perstack acp` in a process of its own, and the protocol's own client."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import tomli_w
from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process
from acp.helpers import text_block
from acp.schema import AllowedOutcome, DeniedOutcome, Implementation, RequestPermissionResponse
from processes import until
from terminal import ASKING, SECONDS, TEAM, Terminal, reply

T = TypeVar("T")


@dataclass
class Editor:
    """A client that keeps what it is shown, and chooses what it is told to."""

    choose: str | None = None
    updates: list[Any] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    """That of each update."""
    asked: list[Any] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        self.sessions.append(session_id)
        self.changed.set()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **kwargs: Any):
        self.asked.append((tool_call.title, [option.option_id for option in options]))
        if self.choose is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=self.choose))

    def on_connect(self, conn: Any) -> None:
        pass

    def kinds(self) -> list[str]:
        return [update.session_update for update in self.updates]

    def texts(self, kind: str = "agent_message_chunk", session_id: str | None = None) -> str:
        updates = zip(self.sessions, self.updates, strict=True)
        of_session = (update for of, update in updates if session_id in (None, of))
        return "".join(update.content.text for update in of_session if update.session_update == kind)

    async def until(self, kind: str) -> None:
        while kind not in self.kinds():
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def editing(terminal: Terminal, editor: Editor, *args: str) -> AsyncIterator[Any]:
    """The connection of an editor to an agent of its own, shaken hands."""
    command = [sys.executable, "-m", "perstack", "acp", "--provider", "scripted", *args]
    async with (
        asyncio.timeout(SECONDS),
        spawn_agent_process(editor, *command, env=terminal.env, cwd=terminal.workspace) as (agent, _),
    ):
        info = Implementation(name="zed", version="1.2")
        hello = await agent.initialize(protocol_version=PROTOCOL_VERSION, client_info=info)
        assert hello.protocol_version == 1
        assert hello.agent_capabilities.load_session
        yield agent


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_a_prompt_is_a_run_with_its_tool_calls_and_its_text(terminal: Terminal) -> None:
    terminal.project(
        TEAM,
        lead=[
            reply("I plan.", ("todo", {"newTodos": ["one"]}), thinking="Hm."),
            reply("", ("helper", {"query": "a part"}), ("listDirectory", {"path": "."})),
            reply("", ("todo", {"completedTodos": [0]})),
            reply("All is done."),
            reply("Again."),
        ],
        helper=[reply("", ("think", {"thought": "hm"})), reply("A part.")],
    )

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            assert session.modes.current_mode_id == "lead", "the one that nobody delegates to"
            assert [mode.id for mode in session.modes.available_modes] == ["lead", "helper"]
            done = await agent.prompt(session_id=session.session_id, prompt=[text_block("Do it")])
            assert done.stop_reason == "end_turn"
            assert editor.texts() == "I plan.All is done."
            assert "Hm." in editor.texts("agent_thought_chunk")
            titles = [update.title for update in editor.updates if update.session_update == "tool_call"]
            assert sorted(titles) == ["helper a part", "helper: think hm", "listDirectory ."]
            statuses = {update.status for update in editor.updates if update.session_update == "tool_call_update"}
            assert statuses == {"completed"}
            plan = [update for update in editor.updates if update.session_update == "plan"]
            assert [entry.status for entry in plan[-1].entries] == ["completed"]
            again = await agent.prompt(session_id=session.session_id, prompt=[text_block("Once more")])
            assert again.stop_reason == "end_turn"
            assert editor.texts().endswith("Again.")
            listed = await agent.list_sessions(cwd=str(terminal.workspace))
            assert [(one.session_id, one.title) for one in listed.sessions] == [(session.session_id, "Do it")]

    run(work())


def test_a_question_without_choices_ends_the_turn_and_the_next_prompt_answers_it(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            first = await agent.prompt(session_id=session.session_id, prompt=[text_block("Serve")])
            assert first.stop_reason == "end_turn"
            assert "Tea or coffee?" in editor.texts()
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Tea")])
            assert editor.texts().endswith("Served.")
            assert not editor.asked

    run(work())


@pytest.mark.parametrize(("choose", "ends"), [("yes", "Paid."), (None, "as in «no: because …»)")])
def test_an_approval_is_a_permission_request(terminal: Terminal, choose: str | None, ends: str) -> None:
    toml = ASKING.replace("tools.askUser]", "tools.askUser]\napproval = true")
    terminal.project(toml, guest=[reply("", ("askUser", {"question": "Pay 5?"})), reply("Paid.")])

    async def work() -> str:
        editor = Editor(choose)
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            done = await agent.prompt(session_id=session.session_id, prompt=[text_block("Pay")])
            assert done.stop_reason == "end_turn"
            assert editor.asked == [("Pay 5?", ["yes", "no"])]
            assert editor.texts().endswith(ends)
            if choose is None:
                with pytest.raises(RequestError, match="say yes or no"):
                    await agent.prompt(session_id=session.session_id, prompt=[text_block("maybe")])
                await agent.prompt(session_id=session.session_id, prompt=[text_block("no: too much")])
            return session.session_id

    session_id = run(work())
    (answer,) = terminal.run("log", "--job", session_id, "--type", "finishToolCall", "--json").events
    assert answer["contents"][0]["text"] == ("yes" if choose else "no: too much")
    assert (answer["by"]["door"], answer["by"]["client"]) == ("acp", "zed 1.2")


def test_a_call_that_a_rule_asks_about_is_a_permission_request(terminal: Terminal) -> None:
    terminal.project(
        '[permissions]\nask = ["writeTextFile"]\n[experts.guest]\ninstruction = "You write."\n',
        guest=[
            reply("", ("writeTextFile", {"path": "a.txt", "text": "new\n"})),
            reply("", ("writeTextFile", {"path": "a.txt", "text": "new\n"})),
            reply("Written."),
        ],
    )
    (terminal.workspace / "a.txt").write_text("old\n")

    async def work() -> str:
        editor = Editor("always")
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Write")])
            ((title, options),) = editor.asked
            assert "guest wants to call writeTextFile" in title
            assert "  -old\n  +new" in title
            assert options == ["yes", "always", "always: writeTextFile", "no"]
            assert editor.texts().endswith("Written.")
            return session.session_id

    session_id = run(work())
    assert (terminal.workspace / "a.txt").read_text() == "new\n"
    (decided,) = terminal.run("log", "--job", session_id, "--type", "decideApproval", "--json").events
    assert (decided["decision"], decided["by"]["door"], decided["by"]["client"]) == ("job", "acp", "zed 1.2")


def test_a_turn_that_is_cancelled_while_a_permission_is_asked_for_ends_as_cancelled(terminal: Terminal) -> None:
    toml = ASKING.replace("tools.askUser]", "tools.askUser]\napproval = true")
    terminal.project(toml, guest=[reply("", ("askUser", {"question": "Pay 5?"})), reply("Paid.")])

    async def work() -> None:
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        class Slow(Editor):
            async def request_permission(self, session_id: str, tool_call: Any, options: Any, **kwargs: Any):
                is_asked.set()
                await may_answer.wait()
                return await super().request_permission(session_id, tool_call, options)

        async with editing(terminal, Slow()) as agent:
            session_id = (await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])).session_id
            turn = asyncio.create_task(agent.prompt(session_id=session_id, prompt=[text_block("Pay")]))
            await is_asked.wait()
            await agent.cancel(session_id=session_id)
            may_answer.set()
            assert (await turn).stop_reason == "cancelled"
            done = await agent.prompt(session_id=session_id, prompt=[text_block("yes")])
            assert done.stop_reason == "end_turn"

    run(work())
    assert terminal.call("jobs", "--json").events[0]["text"] == "Paid."


def test_cancelling_interrupts_the_job_which_a_later_process_loads_and_goes_on_with(terminal: Terminal) -> None:
    slow = {**reply("never"), "delayMs": 60_000}
    terminal.project(TEAM, helper=[reply("First.", ("think", {"thought": "x"})), slow])
    ids: list[str] = []

    async def stopped() -> None:
        editor = Editor()
        async with editing(terminal, editor, "--expert", "helper") as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            ids.append(session.session_id)
            turn = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=[text_block("Go")]))
            await editor.until("tool_call_update")
            await agent.cancel(session_id=session.session_id)
            assert (await turn).stop_reason == "cancelled"

    async def loaded() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            await agent.load_session(cwd=str(terminal.workspace), session_id=ids[0], mcp_servers=[])
            assert editor.texts("user_message_chunk") == "Go"
            assert editor.texts() == "First."
            assert "tool_call" in editor.kinds()
            done = await agent.prompt(session_id=ids[0], prompt=[text_block("Go on")])
            assert done.stop_reason == "end_turn"
            assert editor.texts().endswith("Well then.")

    run(stopped())
    assert terminal.call("jobs", "--json").events[0]["status"] == "stoppedByInterrupt"
    terminal.script(helper=[reply("First.", ("think", {"thought": "x"})), reply("Well then.")])
    run(loaded())


def test_an_editor_that_goes_away_leaves_an_interrupted_job(terminal: Terminal) -> None:
    slow = {**reply("never"), "delayMs": 60_000}
    terminal.project(TEAM, helper=[reply("First.", ("think", {"thought": "x"})), slow])

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor, "--expert", "helper") as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            turn = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=[text_block("Go")]))
            await editor.until("tool_call_update")
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)

    run(work())
    job = terminal.call("jobs", "--json").events[0]
    assert (job["status"], job["totalSteps"]) == ("stoppedByInterrupt", 2)


def test_what_is_wrong_is_told_in_words(terminal: Terminal, tmp_path: Path) -> None:
    terminal.project(TEAM, helper=[reply("ok")])
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    (empty / "perstack.toml").write_text("[experts.a]\n")

    async def work() -> None:
        async with editing(terminal, Editor()) as agent:
            with pytest.raises(RequestError, match="instruction: is missing"):
                await agent.new_session(cwd=str(empty), mcp_servers=[])
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            with pytest.raises(RequestError, match="there is no Expert 'nobody'"):
                await agent.set_session_mode(session_id=session.session_id, mode_id="nobody")
            await agent.set_session_mode(session_id=session.session_id, mode_id="helper")
            with pytest.raises(RequestError, match="not open here"):
                await agent.prompt(session_id="other", prompt=[text_block("x")])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("x")])
            with pytest.raises(RequestError, match="begin a new one"):
                await agent.set_session_mode(session_id=session.session_id, mode_id="lead")

    run(work())


def travelling(terminal: Terminal, *tools: str) -> Terminal:
    """An Expert that calls tools of an MCP server, which ask while they are called."""
    server = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "asking.py"
    skill = {"type": "mcpStdioSkill", "command": sys.executable, "args": [str(server), "handshake"]}
    expert = {"instruction": "You travel.", "skills": {"asking": skill}}
    turns = [*(reply("", (tool, {})) for tool in tools), reply("Off.")]
    return terminal.project(tomli_w.dumps({"experts": {"traveller": expert}}), traveller=turns)


def server_said(terminal: Terminal, session_id: str) -> list[str]:
    log = terminal.run("log", "--job", session_id, "--type", "finishToolCall", "--json").events
    return [event["contents"][0]["text"] for event in log]


def test_a_tools_question_says_what_it_wants_and_the_next_prompt_answers_it(terminal: Terminal) -> None:
    async def work() -> str:
        editor = Editor()
        async with editing(travelling(terminal, "book"), editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("A trip")])
            wanted = "you: where to?\n(give a JSON object with city (string), nights (integer), or say decline)"
            assert editor.texts().endswith(wanted)
            await agent.prompt(session_id=session.session_id, prompt=[text_block('{"city": "Rome"}')])
            assert editor.texts().endswith("Off.")
            assert not editor.asked
            return session.session_id

    session_id = run(work())
    assert server_said(terminal, session_id) == ['accept {"city": "Rome", "nights": 2}']


def test_a_tools_yes_or_no_is_a_permission_request(terminal: Terminal) -> None:
    async def work() -> str:
        editor = Editor("no")
        async with editing(travelling(terminal, "pay"), editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("A trip")])
            ((title, options),) = editor.asked
            assert "https://pay.example.com/7" in title
            assert options == ["yes", "no"]
            assert editor.texts().endswith("Off.")
            return session.session_id

    session_id = run(work())
    assert server_said(terminal, session_id) == ["decline False"]


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
                assert [one.session_id for one in listed.sessions] == [ids[name]]
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
    command = [sys.executable, "-m", "perstack", "acp", "--provider", "scripted", "--expert", "helper"]
    messages: list[tuple[str, dict[str, object]]] = [
        ("initialize", {"protocolVersion": PROTOCOL_VERSION}),
        ("session/new", {"cwd": str(terminal.workspace), "mcpServers": []}),
        ("session/prompt", {"prompt": [{"type": "text", "text": "Go"}]}),
    ]
    answer: dict[str, Any] = {}
    with subprocess.Popen(
        command, env=terminal.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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
    command = [sys.executable, "-m", "perstack", "acp", "--provider", "scripted"]
    bounded: dict[str, Any] = {"env": terminal.env, "cwd": terminal.workspace, "timeout": SECONDS, "check": False}
    piped = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **bounded)
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, "", "")
    with (tmp_path / "out").open("wb") as file:
        to_file = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, text=True, **bounded
        )
    assert (to_file.returncode, to_file.stderr) == (0, "")


def test_a_file_may_hold_what_the_agent_says(terminal: Terminal, tmp_path: Path) -> None:
    terminal.project(TEAM)
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": PROTOCOL_VERSION}}
    command = [sys.executable, "-m", "perstack", "acp", "--provider", "scripted"]
    out = tmp_path / "out"
    with (
        out.open("wb") as file,
        subprocess.Popen(
            command, env=terminal.env, cwd=terminal.workspace, stdin=subprocess.PIPE, stdout=file
        ) as agent,
    ):
        assert agent.stdin is not None
        agent.stdin.write(json.dumps(hello).encode() + b"\nno message\n")
        agent.stdin.flush()
        until(lambda: out.read_bytes().endswith(b"\n"), "the agent's answer")
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
                assert [one.session_id for one in listed.sessions] == [session.session_id]

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
        command = [sys.executable, "-m", "perstack", "acp", "--provider", "scripted"]
        spawned = spawn_agent_process(Editor(), *command, env=terminal.env, cwd=terminal.workspace)
        async with asyncio.timeout(SECONDS), spawned as (agent, process):
            await agent.initialize(protocol_version=PROTOCOL_VERSION)
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            prompt = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=[text_block("Do it")]))
            await asyncio.to_thread(until, (terminal.workspace / "begun").exists, "the command to begin")
            process.send_signal(number)
            await process.wait()
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
    ran = terminal.workspace / "ran"

    async def work() -> None:
        editor = Editor(choose=choice)

        async def said() -> str:
            before = len(editor.texts())
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Serve")])
            return editor.texts()[before:]

        async with editing(terminal, editor) as agent:
            assert await said() == "old"
            terminal.workspace.joinpath("perstack.toml").write_text(guest.format("words"))
            assert await said() == "words"
            assert editor.asked == []
            terminal.workspace.joinpath("perstack.toml").write_text(guest.format("new") + EVIL)
            first = await said()
            ((title, options),) = editor.asked
            assert "+ command: sh -c 'touch ran' (skill evil of guest)" in title
            assert options == ["yes", "no"]
            assert first.endswith("new" if choice == "yes" else "words")
            assert ("perstack trust" in first) == (choice != "yes")
            assert await said() == ("new" if choice == "yes" else "words")
            assert len(editor.asked) == 1
            assert ran.exists() == (choice == "yes")

    run(work())


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
