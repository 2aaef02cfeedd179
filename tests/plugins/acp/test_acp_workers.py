"""Sessions of submitted Jobs: workers continue them after an editor's input, and their progress is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from acp.helpers import text_block
from acp_editor import Editor, editing, run
from postgres_server import PostgresServer
from terminal import ASKING, Terminal, reply
from worker_processes import Cluster


@pytest.fixture
def cluster(terminal: Terminal, postgres: PostgresServer) -> Cluster:
    cluster = Cluster(terminal, postgres.address())
    with Path(terminal.workspace / "perstack.toml").open("a") as file:
        file.write(ASKING)
    asks = reply("", ("askUser", {"question": "Tea?"}))
    terminal.script(guest=[asks, {**reply("", ("todo", {"newTodos": ["tea"]})), "delay_ms": 300}, reply("Served.")])
    return cluster


def test_an_answer_is_left_to_the_worker_and_what_it_does_is_shown(cluster: Cluster) -> None:
    terminal = cluster.terminal
    job_id = terminal.run("submit", "guest", "Serve").out.strip()

    async def work() -> Editor:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            await agent.load_session(session_id=job_id, cwd=str(terminal.workspace), mcp_servers=[])
            done = await agent.prompt(session_id=job_id, prompt=[text_block("yes")])
            assert done.stop_reason == "end_turn"
        return editor

    with cluster.worker() as worker:
        worker.until_event("ended")
        editor = run(work())
        assert worker.until_event("ended", 2)["status"] == "completed"
    assert editor.texts().endswith("Served.")
    assert editor.texts().count("Served.") == 1
    titles = [update.title for update in editor.updates if update.session_update == "tool_call"]
    assert len(titles) == len(set(titles)), "what was shown as history is not shown again"
    resumed = terminal.run("log", "--job", job_id, "--type", "resumeRun", "--json").events
    assert [(one["reason"], bool(one.get("worker"))) for one in resumed] == [
        ("queued", True),
        ("answer", False),
        ("queued", True),
    ]


def test_a_turn_that_is_cancelled_stops_the_job_at_its_worker(cluster: Cluster) -> None:
    terminal = cluster.terminal
    asks = reply("", ("askUser", {"question": "Tea?"}))
    terminal.script(guest=[asks, reply("", ("todo", {"newTodos": ["tea"]})), {**reply("late"), "delay_ms": 100_000}])
    job_id = terminal.run("submit", "guest", "Serve").out.strip()

    async def work() -> None:
        editor = Editor()
        async with editing(terminal, editor) as agent:
            await agent.load_session(session_id=job_id, cwd=str(terminal.workspace), mcp_servers=[])
            turn = asyncio.create_task(agent.prompt(session_id=job_id, prompt=[text_block("yes")]))
            await editor.wait_for_kind("plan")
            await agent.cancel(session_id=job_id)
            assert (await turn).stop_reason == "cancelled"

    with cluster.worker() as worker:
        worker.until_event("ended")
        run(work())
        assert worker.until_event("ended", 2)["status"] == "stoppedByInterrupt"
    assert cluster.status(job_id) == "stoppedByInterrupt"
