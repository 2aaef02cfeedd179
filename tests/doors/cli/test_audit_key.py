"""`[audit] signingKey`: no process started by a host receives the key, however it is started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from signing_keys import key_pair
from terminal import Terminal, reply

SEEN = "env > seen.txt; echo '{\"score\": 1}'"


@pytest.fixture
def terminal_with_key(terminal: Terminal, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    """Return a terminal with the signing key in the variable AUDIT_KEY."""
    private, _ = key_pair(tmp_path_factory.mktemp("key"))
    terminal.env |= {"AUDIT_KEY": private.read_text(), "PYTHONPATH": str(terminal.workspace)}
    return terminal


def of_iterate(evaluator: str) -> str:
    """Return the definition of a project with one Expert that is measured by this evaluator."""
    return (
        '[audit]\nsigningKey = "env:AUDIT_KEY"\n'
        "[experts.solo]\ninstruction = 'You work alone.'\n"
        f"[experts.solo.iterate]\nevaluator = {evaluator}\nmaxIterations = 1\n"
    )


@pytest.mark.parametrize("evaluator", ["{ entry = 'seeing_keys:measure' }", json.dumps(["sh", "-c", SEEN])])
def test_no_evaluator_is_given_the_key(terminal_with_key: Terminal, evaluator: str) -> None:
    folder = terminal_with_key.workspace
    (folder / "seeing_keys.py").write_text(
        "import os, pathlib\n"
        "def measure(made):\n"
        "    (made.workspace / 'seen.txt').write_text(str(sorted(os.environ)))\n"
        "    return {'score': 1}\n"
    )
    terminal_with_key.project(of_iterate(evaluator), solo=[reply("made")])
    result = terminal_with_key.run("iterate", "solo", "do it", "--id", "it", "--provider", "scripted")
    assert result.code == 0, result.err
    seen = (folder / "seen.txt").read_text()
    assert ("PATH" in seen, "AUDIT_KEY" in seen) == (True, False)


def test_no_command_of_a_task_is_given_the_key(terminal_with_key: Terminal) -> None:
    terminal = terminal_with_key.project(of_iterate('"true"'))
    for words in (
        ("create", "t", "--start"),
        ("pause", "t", "--reason", "external_dependency", "--command", "env > seen.txt"),
        ("run-due", "--provider", "scripted"),
    ):
        result = terminal.call("task", *words)
        assert result.code == 0, result.err
    seen = (terminal.workspace / "seen.txt").read_text()
    assert ("PATH" in seen, "AUDIT_KEY" in seen) == (True, False)


def test_no_tool_is_given_the_key(terminal_with_key: Terminal) -> None:
    run = {"command": "sh", "args": ["-c", "env > seen.txt"], "env": {}, "cwd": ".", "stdout": True}
    terminal = terminal_with_key.project(of_iterate('"true"'), solo=[reply("", ("exec", run)), reply("done")])
    result = terminal.run("run", "solo", "go", "--provider", "scripted")
    assert result.code == 0, result.err
    seen = (terminal.workspace / "seen.txt").read_text()
    assert ("PATH" in seen, "AUDIT_KEY" in seen) == (True, False)


def test_a_server_that_asks_for_the_variable_is_refused(terminal_with_key: Terminal) -> None:
    skill = (
        "[experts.solo.skills.server]\ntype = 'mcpStdioSkill'\n"
        f"command = {json.dumps(sys.executable)}\nrequiredEnv = ['AUDIT_KEY']\n"
    )
    terminal = terminal_with_key.project(of_iterate('"true"') + skill, solo=[reply("done")])
    result = terminal.run("run", "solo", "go", "--provider", "scripted")
    assert "needs AUDIT_KEY" in result.out + result.err
    assert "PRIVATE KEY" not in result.out + result.err


@pytest.mark.parametrize("name", ["key.pem", "link.pem", "hard.pem"])
def test_file_tools_keep_off_the_file_of_the_key_under_every_name(terminal: Terminal, name: str) -> None:
    private, _ = key_pair(terminal.workspace)
    (terminal.workspace / "link.pem").symlink_to(private)
    os.link(private, terminal.workspace / "hard.pem")
    key = private.read_bytes()
    calls = (
        ("readTextFile", {"path": name}),
        ("writeTextFile", {"path": name, "text": "x"}),
        ("appendTextFile", {"path": name, "text": "x"}),
    )
    toml = of_iterate('"true"').replace("env:AUDIT_KEY", f"file:{Path(private).name}")
    terminal.project(toml, solo=[*(reply("", call) for call in calls), reply("done")])
    result = terminal.run("run", "solo", "go", "--provider", "scripted", "--job-id", "job")
    assert result.code == 0, result.err
    log = terminal.log_of("job-1").read_text()
    results = [event for event in map(json.loads, log.splitlines()) if event["type"] == "finishToolCall"]
    assert [event.get("isError") for event in results] == [True] * len(calls)
    assert "PRIVATE KEY" not in log
    assert private.read_bytes() == key
