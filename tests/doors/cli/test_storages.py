"""Commands that read Jobs, on a storage without files."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from terminal import TEAM, Terminal, reply

STATE = "perstack/state.db"


@pytest.fixture
def stored_team(terminal: Terminal) -> Terminal:
    """Return a project with a Job `team` that has a delegate, in the SQLite file named in perstack.toml."""
    terminal.project(
        f'storage = "sqlite:{STATE}"\n{TEAM}',
        lead=[reply("", ("helper", {"query": "a part"})), reply("All is done.", usage=(10, 1))],
        helper=[reply("A part.", usage=(5, 1))],
    )
    result = terminal.call("run", "lead", "Do it", "--provider", "scripted", "--job-id", "team")
    assert result.code == 0, result.err
    return terminal


def test_all_of_them_read_it(stored_team: Terminal) -> None:
    assert stored_team.call("log").lines[0].startswith("Job team  lead  completed")
    assert [job["id"] for job in stored_team.call("jobs", "--json").events] == ["team"]
    assert stored_team.call("log", "--messages").out.endswith("All is done.\n")
    for command in ("verify", "replay"):
        assert stored_team.call(command).code == 0
    assert json.loads(stored_team.call("export", "team", "--format", "json").out)["job"]["id"] == "team"
    assert stored_team.call("export", "team", "--format", "perstack", "--to", "out").code == 0


def test_it_can_be_named_where_no_definition_does(stored_team: Terminal) -> None:
    (stored_team.workspace / "perstack.toml").unlink()
    assert stored_team.call("jobs").lines == ["no Jobs yet; start one with: perstack run EXPERT QUERY"]
    assert stored_team.call("jobs", "--storage", f"sqlite:{STATE}").lines[1].startswith("team ")


def test_damage_is_named_with_its_place_and_what_is_before_it_shown(stored_team: Terminal) -> None:
    with closing(sqlite3.connect(stored_team.workspace / STATE)) as database, database:
        rows = database.execute("SELECT key, line FROM records").fetchall()
        (found,) = [(key, line) for key, line in rows if b'"id":"team-1-3"' in line]
        database.execute(
            "UPDATE records SET line = ? WHERE key = ?", (found[1].replace(b"helper", b"hacker"), found[0])
        )
    result = stored_team.call("log", "--run", "team-1", "--json")
    assert (result.code, len(result.lines)) == (1, 2)
    assert result.err.startswith("damaged: ")
    assert stored_team.call("verify").code == 1
