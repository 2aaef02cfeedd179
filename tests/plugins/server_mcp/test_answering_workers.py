"""Submitted Jobs: an answer over MCP is left to their workers, and a waiting call sees their progress."""

from __future__ import annotations

import pytest
from editor import connected, decides, structure
from hosts import wait_for
from postgres_server import PostgresServer
from terminal import ASKING, Terminal, reply
from worker_processes import Cluster


@pytest.fixture
def cluster(terminal: Terminal, postgres: PostgresServer) -> Cluster:
    cluster = Cluster(terminal, postgres.address())
    with (terminal.workspace / "perstack.toml").open("a") as file:
        file.write(ASKING)
    terminal.script(guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served.")])
    return cluster


def test_an_answer_that_is_waited_for_is_the_workers_to_go_on_with(cluster: Cluster) -> None:
    terminal = cluster.terminal
    job_id = terminal.run("submit", "guest", "Serve").out.strip()

    async def work() -> None:
        async with connected(terminal, fill=decides(Tea="yes")) as editor:
            answered = structure(await editor.call("answer", job=job_id, answer="yes"))
            assert (answered["status"], answered["text"]) == ("completed", "Served.")

    with cluster.worker() as worker:
        worker.until_event("ended")
        wait_for(work(), 60)
        assert worker.until_event("ended", 2)["status"] == "completed"
