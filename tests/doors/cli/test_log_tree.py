"""`perstack log --tree`: how the Runs of a Job follow from each other."""

from __future__ import annotations

import re

import pytest
from terminal import ASKING, TEAM, Terminal, reply

from perstack.core.jobs.summary import PlacedRun, RunSummary
from perstack.doors.shared.log_view import branches

SCRIPTED = ("--provider", "scripted")


@pytest.fixture
def grown(terminal: Terminal) -> Terminal:
    """Return a project with a Job that has delegates, a continuation and a branch."""
    part = ("helper", {"query": "part"})
    terminal.project(TEAM, lead=[reply("", part, part, usage=(100, 10)), *[reply("ok")] * 4], helper=[reply("done")])
    assert terminal.call("run", "lead", "go", *SCRIPTED, "--job-id", "t").code == 0
    assert terminal.call("run", "lead", "more", *SCRIPTED, "--continue-job", "t").code == 0
    place = terminal.call("log", "t", "--run", "t-1", "--type", "finishStep", "--json").events[0]["checkpointId"]
    branch = ("--continue-job", "t", "--resume-from", place)
    assert terminal.call("run", "lead", "else", *SCRIPTED, *branch).code == 0
    return terminal


def test_delegates_and_branches_stand_below_and_a_continuation_beside_what_it_continues(grown: Terminal) -> None:
    result = grown.call("log", "t", "--tree")
    assert (result.code, result.err) == (0, "")
    rows = result.out.partition("Run ")[2].splitlines()[1:]
    assert [re.split(r"  +", row)[0] for row in rows] == ["t-1", "├─ t-2", "├─ t-3", "└─ t-5", "t-4"]
    assert rows[0].split()[1:5] == ["lead", "completed", "2", "110"]
    assert rows[1].endswith("called by t-1")
    assert re.search(r"branches at t-1-\d+$", rows[3])
    assert re.search(r"continues t-1-\d+$", rows[4])
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", rows[0])


def test_what_is_deeper_is_drawn_deeper_with_a_line_to_what_comes_below() -> None:
    run = RunSummary(id="r", expert_key="e", status="completed")
    tree = [PlacedRun(run=run, how="delegate", depth=depth) for depth in (0, 1, 2, 2, 1, 2, 0, 1, 2, 3, 30)]
    assert branches(tree) == [
        "",
        "├─ ",
        "│  ├─ ",
        "│  └─ ",
        "└─ ",
        "   └─ ",
        "",
        "└─ ",
        "   └─ ",
        "      └─ ",
        "                     └─ ",
    ]


def test_delegates_of_a_branch_stand_below_it(grown: Terminal) -> None:
    place = grown.call("log", "t", "--tree", "--json").events[3]["at"]
    part = ("helper", {"query": "part"})
    grown.script(lead=[reply("", part), reply("", part), reply("ok")], helper=[reply("done")])
    again = ("--continue-job", "t", "--resume-from", place)
    assert grown.call("run", "lead", "again", *SCRIPTED, *again).code == 0
    assert "└─ t-6" in grown.call("log", "t", "--tree").out
    assert "   └─ t-7" in grown.call("log", "t", "--tree").out


def test_json_has_a_line_for_each_run_in_the_order_of_the_tree(grown: Terminal) -> None:
    events = grown.call("log", "t", "--tree", "--json").events
    assert [(event["run"]["id"], event["how"], event.get("parent"), event["depth"]) for event in events] == [
        ("t-1", "begun", None, 0),
        ("t-2", "delegate", "t-1", 1),
        ("t-3", "delegate", "t-1", 1),
        ("t-5", "branch", "t-1", 1),
        ("t-4", "continuation", "t-1", 0),
    ]


def test_on_a_narrow_terminal_ids_stay_whole_and_on_line(grown: Terminal) -> None:
    seen = grown.look("log", "t", "--tree", columns=60)
    assert all(f"{run} " in seen for run in ("t-1", "├─ t-2", "├─ t-3", "└─ t-5", "t-4"))


def test_another_answer_is_told_from_a_branch(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea?"})), reply("Served.")])
    result = terminal.call("run", "guest", "go", *SCRIPTED, "--job-id", "tea")
    place = result.events[-1]["checkpointId"]
    assert terminal.call("answer", "tea", "Yes").code == 0
    assert terminal.call("resume", "tea", "--resume-from", place, "-i", "No").code == 0
    assert f"answers again at {place}" in terminal.call("log", "tea", "--tree").out


def test_what_chooses_events_does_not_go_with_the_tree(grown: Terminal) -> None:
    for words in (("--follow",), ("--messages",), ("--tools",), ("--run", "t-1"), ("--take", "3")):
        refused = grown.call("log", "t", "--tree", *words)
        assert (refused.code, refused.out) == (2, "")
        assert "--tree shows the Runs" in refused.err


def test_an_expert_of_the_logs_cannot_draw_on_the_terminal(grown: Terminal) -> None:
    path = grown.jobs() / "t" / "job.json"
    path.write_bytes(path.read_bytes().replace(b'"helper"', b'"h\\u001b[31m\\nelper"'))
    seen = grown.look("log", "t", "--tree", columns=120)
    assert "\x1b[31m" not in seen
    assert "h [31m elper" in seen
