"""`perstack record` shows the lines of a test that plays the recording, and adds them with `--test`."""

from __future__ import annotations

import pytest
from terminal import TEAM, Terminal, reply

QUERY = 'Say "a"\nand b'


@pytest.fixture
def recorded(terminal: Terminal) -> Terminal:
    calls = ("todo", {"newTodos": ["a"]}), ("listDirectory", {"path": "."}), ("helper", {"query": "go"})
    terminal.project(TEAM, lead=[reply("", *calls), reply("Done.")], helper=[reply("ok")])
    done = terminal.call("run", "lead", QUERY, "--provider", "scripted", "--job-id", "one")
    assert done.code == 0, done.err
    return terminal


LINES = [
    "[[experts.lead.tests]]",
    'name = "first"',
    'query = "Say \\"a\\"\\nand b"',
    'model = "tests/first.json"',
    'expect.status = "completed"',
    'expect.called = ["listDirectory"]',
]


def test_six_lines_make_a_test_of_a_recording_which_passes(recorded: Terminal) -> None:
    shown = recorded.call("record", "one", "--to", "tests/first.json")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err.splitlines()[1:] == ["a test that plays it, for perstack.toml (--test adds it):", *LINES]
    before = (recorded.workspace / "perstack.toml").read_text()
    added = recorded.call("record", "one", "--to", "tests/first.json", "--test")
    assert added.err.splitlines()[1:] == ["perstack.toml: test `first` was added; next: perstack test lead"]
    definition = recorded.workspace / "perstack.toml"
    assert definition.read_text() == before + "\n".join(["", *LINES, ""])
    assert recorded.call("test").code == 0
    again = recorded.call("record", "one", "--to", "tests/first.json", "--test")
    assert (again.code, again.err.splitlines()[1:]) == (
        0,
        ["perstack.toml has a test `first`; next: perstack test lead"],
    )
    assert definition.read_text().count("tests]]") == 1


def test_a_test_is_added_to_the_file_that_has_the_expert(recorded: Terminal) -> None:
    (recorded.workspace / "team").mkdir()
    (recorded.workspace / "perstack.toml").rename(recorded.workspace / "team" / "all.toml")
    (recorded.workspace / "perstack.toml").write_text('include = ["team/all.toml"]\n')
    added = recorded.call("record", "one", "--to", "team/tests/first.json", "--test")
    assert added.err.splitlines()[1:] == ["team/all.toml: test `first` was added; next: perstack test lead"]
    assert 'model = "tests/first.json"' in (recorded.workspace / "team" / "all.toml").read_text()
    assert recorded.call("test").code == 0


def test_what_cannot_be_tested_is_refused_before_anything_is_written(recorded: Terminal) -> None:
    refused = recorded.call("record", "one", "--to", "-", "--test")
    assert (refused.code, "--test: a test names the file of its recording" in refused.err) == (2, True)
    recorded.call("run", "lead", "More", "--provider", "scripted", "--continue-job", "one")
    refused = recorded.call("record", "one", "--to", "tests/first.json", "--test")
    assert (refused.code, "a test needs a Job of one query" in refused.err) == (2, True)
    assert not (recorded.workspace / "tests").exists()
    recorded.project('[experts.other]\ninstruction = "i"\n')
    assert recorded.call("record", "one", "--to", "tests/first.json").code == 0
