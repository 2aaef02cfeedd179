"""Fixtures for tests of the command line."""

from __future__ import annotations

import pytest
from terminal import ASKING, TEAM, Terminal, reply


def team_job(terminal: Terminal, job_id: str = "team") -> Terminal:
    """Record a Job of three Runs with tool calls, a tool error, and delegates: `team-1`, `team-2`, `team-3`."""
    terminal.project(
        TEAM,
        lead=[
            reply("I plan.", ("todo", {"newTodos": ["one", "two"]}), thinking="Two parts.", usage=(100, 10)),
            reply("", ("helper", {"query": "first part"}), ("helper", {"query": "second part"}), usage=(200, 20)),
            reply("", ("nosuch", {"a": 1}), ("todo", {"completedTodos": [0, 1]})),
            reply("All is done.", usage=(300, 30)),
        ],
        helper=[reply("", ("think", {"thought": "hm"})), reply("A part.", usage=(5, 1))],
    )
    result = terminal.call("run", "lead", "Do both parts", "--provider", "scripted", "--job-id", job_id)
    assert result.code == 0, result.err
    return terminal


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a project with the Job of `team_job`, for tests that only read it."""
    return team_job(Terminal(tmp_path_factory.mktemp("team")))


@pytest.fixture
def own_team(terminal: Terminal) -> Terminal:
    """Return a project with the Job of `team_job`, for tests that change it."""
    return team_job(terminal)


@pytest.fixture
def waiting(terminal: Terminal) -> Terminal:
    """Return a project with a Job `ask` that waits for an answer."""
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    stopped = terminal.call("run", "guest", "Serve", "--provider", "scripted", "--job-id", "ask")
    assert stopped.code == 3, stopped.err
    return terminal
