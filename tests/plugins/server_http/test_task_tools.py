"""Execution memory as tools of `perstack mcp --tasks`."""

from __future__ import annotations

from pathlib import Path

from editor import connected, decides, structure, texts
from hosts import wait_for
from terminal import ASKING, SECONDS, Terminal, reply


def test_an_agent_keeps_a_task_that_a_later_process_goes_on_with(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.project('[experts.one]\ninstruction = "x"\n')

    async def begin() -> None:
        async with connected(terminal, "--tasks") as editor:
            names = {tool.name for tool in (await editor.client.list_tools()).tools}
            assert {"one", "list_jobs", "task_create", "task_checkpoint", "task_resume", "task_delete"} <= names
            made = structure(await editor.call("task_create", taskId="refactor", state={"done": []}))
            assert made["status"] == "running"
            await editor.call("task_checkpoint", taskId="refactor", state={"done": ["a.py"]})
            paused = await editor.call("task_pause", taskId="refactor", reason="human_approval", message="Go on?")
            assert structure(paused)["pauseReason"] == "human_approval"
            refused = await editor.call("task_complete", taskId="refactor")
            assert refused.is_error
            assert "allowed now: answer, resume" in texts(refused)[0]
            result = await editor.call("task_create", taksId="x")
            assert result.is_error
            assert "`taskId` is missing" in texts(result)[0] or "no argument `taksId`" in texts(result)[0]

    async def go_on() -> None:
        async with connected(terminal, "--tasks", era="stateless") as editor:
            refused = await editor.call("task_resume", taskId="refactor")
            assert 'Continue task refactor (human_approval, "Go on?") without what it waits for' in texts(refused)[0]
            assert "`perstack task resume refactor`" in texts(refused)[0]
            assert terminal.run("task", "answer", "refactor", "yes").code == 0
            found = structure(await editor.call("task_resume", taskId="refactor"))
            assert (found["state"], found["status"]) == ({"done": ["a.py"]}, "running")
            listed = structure(await editor.call("task_list", status="running"))
            assert [task["taskId"] for task in listed["tasks"]] == ["refactor"]

    async def without_task_tools() -> None:
        async with connected(terminal) as editor:
            assert not any(tool.name.startswith("task_") for tool in (await editor.client.list_tools()).tools)

    wait_for(begin(), SECONDS)
    wait_for(go_on(), SECONDS)
    wait_for(without_task_tools(), SECONDS)


def test_the_inbox_is_the_same_in_an_editor(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    assert terminal.run("run", "guest", "Serve", "--provider", "scripted", "--job-id", "tea").code == 3
    assert terminal.run("task", "create", "deploy", "--agent", "ci", "--start").code == 0
    assert terminal.run("task", "pause", "deploy", "--reason", "human_approval", "--message", "Deploy?").code == 0

    async def work() -> None:
        async with connected(terminal, "--tasks", fill=decides(Tea="Tea")) as editor:
            result = await editor.call("inbox")
            job, task = structure(result)["questions"]
            assert (job["id"], job["job"], job["who"], job["text"]) == ("tea-1-5", "tea", "guest", "Tea or coffee?")
            assert (task["id"], task["task"], task["who"], task["approval"]) == ("deploy", "deploy", "ci", True)
            assert 'or with: perstack answer tea-1-5 "ANSWER"' in texts(result)[0]
            assert texts(await editor.call("answer", job="tea", question="tea-1-5", answer="Tea"))[0] == "Served."
            assert (await editor.call("answer", job="tea", question="tea-1-5", answer="Coffee")).is_error
            assert structure(await editor.call("task_answer", taskId="deploy", value=True))["answered"] is True
            second = await editor.call("task_answer", taskId="deploy", value=False)
            assert (second.is_error, texts(second)[0]) == (True, "task deploy has been answered already")
            assert texts(await editor.call("inbox")) == ["nothing waits for a person"]

    wait_for(work(), SECONDS)
