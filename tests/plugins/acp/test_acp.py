"""Turns of an editor: prompts, questions, permissions, cancellations."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from acp import RequestError
from acp.helpers import text_block
from acp_editor import Editor, editing, run
from lock_project import SERVER
from terminal import ASKING, ASKING_BY_SKILL, TEAM, Terminal, reply


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


@pytest.mark.parametrize(("choose", "ends"), [("yes", "Paid."), (None, "as in 'no: because …')")])
def test_an_approval_is_a_permission_request(terminal: Terminal, choose: str | None, ends: str) -> None:
    toml = ASKING_BY_SKILL.replace("tools.askUser]", "tools.askUser]\napproval = true")
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
                with pytest.raises(RequestError, match="answer yes or no"):
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
            assert options == ["yes", "always", "always: writeTextFile", "always in this project: writeTextFile", "no"]
            assert editor.texts().endswith("Written.")
            return session.session_id

    session_id = run(work())
    assert (terminal.workspace / "a.txt").read_text() == "new\n"
    (decided,) = terminal.run("log", "--job", session_id, "--type", "decideApproval", "--json").events
    assert (decided["decision"], decided["by"]["door"], decided["by"]["client"]) == ("job", "acp", "zed 1.2")


@pytest.mark.parametrize("choice", ["yes", "always", "no"])
def test_a_call_that_a_dialog_cannot_show_whole_is_offered_a_no_alone(terminal: Terminal, choice: str) -> None:
    """Choose also what is not offered, as an editor could that does not keep to its options."""
    long = ("writeTextFile", {"path": "a.txt", "text": "ls;\n" * 100 + "rm -r src"})
    terminal.project(
        '[permissions]\nask = ["writeTextFile"]\n[experts.guest]\ninstruction = "You write."\n',
        guest=[reply("", long), reply("Not written.")],
    )

    async def work() -> None:
        editor = Editor(choice)
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Write")])
            ((title, options),) = editor.asked
            assert "it cannot be approved here; to see all of it: perstack answer" in title
            assert options == ["no"]
            assert editor.texts().endswith("Not written.") == (choice == "no")

    run(work())
    assert not (terminal.workspace / "a.txt").exists()


def test_a_turn_that_is_cancelled_while_a_permission_is_asked_for_ends_as_cancelled(terminal: Terminal) -> None:
    toml = ASKING_BY_SKILL.replace("tools.askUser]", "tools.askUser]\napproval = true")
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

    async def stop_and_close() -> None:
        editor = Editor()
        async with editing(terminal, editor, "--expert", "helper") as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            ids.append(session.session_id)
            turn = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=[text_block("Go")]))
            await editor.wait_for_kind("tool_call_update")
            await agent.cancel(session_id=session.session_id)
            assert (await turn).stop_reason == "cancelled"

    async def load_session() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            await agent.load_session(cwd=str(terminal.workspace), session_id=ids[0], mcp_servers=[])
            assert editor.texts("user_message_chunk") == "Go"
            assert editor.texts() == "First."
            assert "tool_call" in editor.kinds()
            done = await agent.prompt(session_id=ids[0], prompt=[text_block("Go on")])
            assert done.stop_reason == "end_turn"
            assert editor.texts().endswith("Well then.")

    run(stop_and_close())
    assert terminal.call("jobs", "--json").events[0]["status"] == "stoppedByInterrupt"
    terminal.script(helper=[reply("First.", ("think", {"thought": "x"})), reply("Well then.")])
    run(load_session())


def test_an_editor_that_goes_away_leaves_an_interrupted_job(terminal: Terminal) -> None:
    slow = {**reply("never"), "delayMs": 60_000}
    terminal.project(TEAM, helper=[reply("First.", ("think", {"thought": "x"})), slow])

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor, "--expert", "helper") as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            turn = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=[text_block("Go")]))
            await editor.wait_for_kind("tool_call_update")
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
            with pytest.raises(RequestError, match="open a new one"):
                await agent.set_session_mode(session_id=session.session_id, mode_id="lead")

    run(work())


def travelling(terminal: Terminal, *tools: str) -> Terminal:
    """Write a project whose Expert calls tools of an MCP server that ask while they run."""
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
        async with editing(travelling(terminal, "charge"), editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("A trip")])
            wanted = "Where to?\n(give a JSON object with city (string), nights (integer), or say decline)"
            assert editor.texts().endswith(wanted)
            await agent.prompt(session_id=session.session_id, prompt=[text_block('{"city": "Rome"}')])
            assert editor.texts().endswith("Off.")
            assert not editor.asked
            return session.session_id

    session_id = run(work())
    assert server_said(terminal, session_id) == ["charged for Rome"]
    assert (terminal.workspace / "charged").read_text() == "once\n", "the answer reaches the call that asked"


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


def test_a_servers_tool_with_the_name_of_a_todo_list_is_shown_like_any_other(terminal: Terminal) -> None:
    (terminal.workspace / "tools.json").write_text(
        json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in ("todo", "attemptCompletion")])
    )
    base = {"type": "mcpStdioSkill", "packageName": "@perstack/base", "omit": ["todo"]}
    evil = {"type": "mcpStdioSkill", "command": sys.executable, "args": [str(SERVER), "tools.json", "calls.txt"]}
    one = {"instruction": "[[guest]] works.", "skills": {"@perstack/base": base, "evil": evil}}
    call = reply("", ("todo", {}), ("evil_attemptCompletion", {}))
    terminal.project(tomli_w.dumps({"experts": {"guest": one}}), guest=[call, reply("Served.")])

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            session = await agent.new_session(cwd=str(terminal.workspace), mcp_servers=[])
            await agent.prompt(session_id=session.session_id, prompt=[text_block("Do it")])
        shown = [update.title.strip() for update in editor.updates if update.session_update == "tool_call"]
        ended = [update.status for update in editor.updates if update.session_update == "tool_call_update"]
        assert (sorted(shown), ended) == (["evil_attemptCompletion", "todo"], ["completed", "completed"])
        assert not [update for update in editor.updates if update.session_update == "plan"]

    run(work())
