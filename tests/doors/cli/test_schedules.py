"""`perstack schedules`, and schedules in `perstack task run-due`."""

from __future__ import annotations

import json

from stored_damage import edit
from terminal import Terminal, reply

PROJECT = """
[experts.a]
instruction = "Do."
[schedules.nightly]
cron = "0 2 * * *"
timezone = "Europe/Berlin"
expert = "a"
query = "Report."
"""
MINUTELY = PROJECT.replace("0 2 * * *", "* * * * *")


def due(terminal: Terminal, project: str = MINUTELY) -> Terminal:
    """Return a project with a schedule for each minute that has a missed occurrence."""
    terminal.project(project, a=[reply("done")])
    first = terminal.call("task", "run-due", "--provider", "scripted")
    assert (first.code, first.lines) == (0, [])
    log = terminal.workspace / "perstack" / "schedules" / "nightly" / "runs" / "nightly-1" / "events.jsonl"
    assert "setSchedule" in log.read_text()
    return terminal


def test_what_there_is_is_listed_with_its_next_time(terminal: Terminal) -> None:
    terminal.project(PROJECT, a=[])
    result = terminal.run("schedules")
    assert result.lines[0].split() == ["name", "cron", "zone", "next", "last", "status", "Job"]
    assert result.lines[1].split()[:7] == ["nightly", "0", "2", "*", "*", "*", "Europe/Berlin"]
    assert result.lines[1].split()[8:] == ["02:00", "-", "-", "-"]
    (one,) = [json.loads(line) for line in terminal.run("schedules", "--json").lines]
    assert one.pop("next") % 3_600_000 == 0
    assert one == {
        "name": "nightly",
        "cron": "0 2 * * *",
        "timezone": "Europe/Berlin",
        "expert": "a",
        "query": "Report.",
        "overlap": "skip",
    }


def test_without_any_it_says_how_to_write_one(terminal: Terminal) -> None:
    terminal.project(PROJECT[: PROJECT.index("[schedules")], a=[])
    assert terminal.run("schedules").lines == [
        "no schedules yet: write [schedules.NAME] with cron, expert and query in perstack.toml"
    ]


def test_a_definition_that_is_wrong_is_an_error_with_its_place(terminal: Terminal) -> None:
    terminal.project(PROJECT, a=[])
    definition = terminal.workspace / "perstack.toml"
    definition.write_text(definition.read_text().replace("Europe/Berlin", "Europe/berlin").replace('"a"', '"b"'))
    for argv in (("validate",), ("schedules",), ("task", "run-due")):
        refused = terminal.call(*argv)
        assert refused.code == 2, argv
        said = refused.out + refused.err
        assert "schedules.nightly.timezone: `Europe/berlin` is not a time zone; did you mean `Europe/Berlin`?" in said
        assert "schedules.nightly.expert: there is no Expert `b`" in said


def test_verify_copy_and_du_know_its_log(terminal: Terminal) -> None:
    due(terminal)
    checked = terminal.run("verify", "--all", "--json")
    assert [json.loads(line)["kind"] for line in checked.lines] == ["schedule"]
    assert terminal.call("verify", "nightly").code == 0
    assert "nightly" in terminal.run("du").out
    assert terminal.call("storage", "copy", "file:perstack", "file:other", "--yes").code in (0, 2)
    edit(terminal.workspace, "file:perstack", b"setSchedule", b"setSchedulx")
    assert terminal.call("verify", "--all").code == 1
    result = terminal.call("schedules")
    assert "error" in result.out
    assert "schedule nightly: " in result.err
