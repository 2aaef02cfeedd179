"""`perstack du`: disk usage by kind of data, on each storage."""

from __future__ import annotations

import json

import pytest
from terminal import TEAM, Terminal, reply


@pytest.fixture(params=["file:perstack", "sqlite:perstack/state.db"])
def stored_jobs(terminal: Terminal, request: pytest.FixtureRequest) -> Terminal:
    """Return a project with a long Job, a short one and a task."""
    terminal.project(f'storage = "{request.param}"\n{TEAM}', lead=[reply("x" * 20_000)])
    assert terminal.call("run", "lead", "go", "--job-id", "long").code == 0
    terminal.script(lead=[reply("x")])
    assert terminal.call("run", "lead", "go", "--job-id", "short").code == 0
    assert terminal.call("task", "create", "chore", "--name", "a chore").code == 0
    return terminal


def test_the_largest_come_first_and_add_up(stored_jobs: Terminal) -> None:
    result = stored_jobs.call("du", "--json")
    assert result.code == 0, result.err
    whole = json.loads(result.out)
    owners = whole["owners"]
    assert [(owner["kind"], owner["id"]) for owner in owners] == [("job", "long"), ("job", "short"), ("task", "chore")]
    assert owners[0]["logs"] > 20_000 > owners[1]["logs"] > 0
    assert all(owner["blobs"] > 0 for owner in owners[:2]), "the tools that the model was offered"
    for part in ("logs", "blobs", "checkpoints", "caches", "total"):
        assert whole["total"][part] == sum(owner[part] for owner in owners)
    assert whole["bytes"] >= whole["total"]["total"]


def test_a_table_says_what_is_not_shown_and_what_the_storage_takes(stored_jobs: Terminal) -> None:
    result = stored_jobs.call("du", "--take", "1")
    assert [line.split()[0] for line in result.lines[:3]] == ["id", "long", "total"]
    assert result.lines[3] == "2 smaller not shown; see them with --all"
    assert result.lines[4].partition(": ")[2].endswith("KB")
    assert len(stored_jobs.call("du", "--all").lines) == 6
    named = stored_jobs.call("du", "chor", "short", "--json")
    assert sorted(owner["id"] for owner in json.loads(named.out)["owners"]) == ["chore", "short"]


def test_what_is_not_there_is_said_and_an_empty_store_takes_nothing(stored_jobs: Terminal) -> None:
    result = stored_jobs.call("du", "none")
    assert (result.code, result.out) == (2, "")
    assert "there is no Job, task or series none" in result.err
    empty = stored_jobs.call("du", "--json", "--storage", "file:elsewhere")
    assert json.loads(empty.out)["owners"] == []
    assert not (stored_jobs.workspace / "elsewhere").exists()
