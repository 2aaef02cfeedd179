"""The scripted provider from the command line: in a process of its own, through the public plugin path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEFINITION = """
[experts.keeper]
description = "Keeps a list."
instruction = "[[keeper]] You keep a list."
"""


def _perstack(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("perstack")
    env = {
        **os.environ,
        "PERSTACK_PLUGINS": "perstack.testing.plugin",
        "PERSTACK_SCRIPT": str(directory / "script.json"),
        "PERSTACK_SCRIPT_REQUEST_LOG": str(directory / "requests.jsonl"),
    }
    return subprocess.run(
        [str(command), *arguments],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "perstack.toml").write_text(DEFINITION)
    return tmp_path


def _write(directory: Path, *turns: dict[str, object]) -> None:
    (directory / "script.json").write_text(json.dumps({"experts": {"[[keeper]]": {"turns": turns}}}))


TODO = {"tools": [{"name": "todo", "input": {"newTodos": ["a"]}}], "usage": {"input_tokens": 10, "output_tokens": 2}}


def test_a_run_plays_the_script_named_in_the_environment(directory: Path) -> None:
    _write(directory, TODO, {"text": "Kept.", "usage": {"input_tokens": 20, "output_tokens": 3}})
    done = _perstack(directory, "run", "keeper", "Keep a.", "--provider", "scripted")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["type"], last["text"]) == ("finishRun", "Kept.")
    assert last["totalUsage"]["totalTokens"] == 35
    asked = [json.loads(line) for line in (directory / "requests.jsonl").read_text().splitlines()]
    assert [len(request["messages"]) for request in asked] == [1, 3]


def test_a_run_that_continues_in_another_process_goes_on_in_the_script(directory: Path) -> None:
    _write(directory, TODO, {"text": "One."}, {"text": "Two."})
    for extra, text in (((), "One."), (("--continue",), "Two.")):
        done = _perstack(directory, "run", "keeper", "Go.", "--provider", "scripted", *extra)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["text"] == text


def test_a_failure_in_the_script_keeps_its_status_in_the_event(directory: Path) -> None:
    _write(directory, {"error": {"status": 401, "message": "no such key", "name": "Authentication"}})
    done = _perstack(directory, "run", "keeper", "Go.", "--provider", "scripted")
    assert done.returncode == 1
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error == {"name": "Authentication", "message": "no such key", "statusCode": 401, "isRetryable": False}


def test_a_retryable_failure_is_tried_again_and_then_the_reply_is_due(directory: Path) -> None:
    _write(
        directory, {"error": {"status": 529, "message": "busy", "retry_after": 0.01}, "repeat": 2}, {"text": "Done."}
    )
    done = _perstack(directory, "run", "keeper", "Go.", "--provider", "scripted")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()].count("retry") == 2
