"""Input of a command, typed, in a file or on stdin, is accepted, or refused in one line that says what to do."""

from __future__ import annotations

import json

import pytest
from terminal import Terminal

DEEP = "[" * 20_000
HALF = '"\\ud800"'
DIGITS = "9" * 5_000


@pytest.fixture
def project(terminal: Terminal) -> Terminal:
    """Return a project with a running task."""
    terminal.project('[experts.one]\ninstruction = "x"\n')
    terminal.call("task", "create", "t", "--start")
    return terminal


def assert_refused(code: int, out: str, err: str, *words: str) -> None:
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert all(word in line for word in words), line
    assert len(line) < 400


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("checkpoint", "t", "--state", f'{{"a": {DEEP}'), ("--state is not JSON",)),
        (("checkpoint", "t", "--state", '{"a": NaN}'), ("--state is not JSON",)),
        (("checkpoint", "t", "--state", '{"a": 1e999}'), ("--state is not JSON", "out of range")),
        (("checkpoint", "t", "--state", f'{{"a": {DIGITS}}}'), ("--state is not JSON",)),
        (("checkpoint", "t", "--state", f'{{"a": {HALF}}}'), ("--state is not JSON",)),
        (("checkpoint", "t", "--state", '{"a": "\udcff"}'), ("--state is not JSON",)),
        (("checkpoint", "t", "--state", "@latin"), ("--state is not JSON", "@FILE")),
        (("checkpoint", "t", "--state", "@/dev/zero"), ("/dev/zero: it is not a regular file",)),
        (("checkpoint", "t", "--state", "@."), ("it is not a regular file",)),
        (("complete", "t", "--result", f'{{"a": {DEEP}'), ("--result is not JSON",)),
        (("fail", "t", f'{{"message": {DEEP}'), ("ERROR is not JSON",)),
        (("pause", "t", "--reason", "scheduled_wait", "--resume-at", "²"), ("--resume-at ²", "such as +5m")),
        (("pause", "t", "--reason", "scheduled_wait", "--resume-at", DIGITS), ("such as +5m",)),
        (("pause", "t", "--reason", "scheduled_wait", "--resume-at", f"+{DIGITS}d"), ("such as 90s",)),
        (("pause", "t", "--reason", "scheduled_wait", "--resume-at", "999999999999999"), ("`resume_at`",)),
        (("pause", "t", "--reason", "scheduled_wait", "--resume-at", "0001-01-01T00:00+12:00"), ("`resume_at`",)),
        (("list", "--older-than", DIGITS), ("such as 90s",)),
    ],
    ids=lambda value: " ".join(value)[:40].encode("ascii", "replace").decode() if isinstance(value, tuple) else None,
)
def test_what_nobody_can_read_is_refused_in_one_line(project: Terminal, args, words) -> None:
    (project.workspace / "latin").write_bytes(b'{"a": "\xff"}')
    result = project.call("task", *args)
    assert_refused(result.code, result.out, result.err, *words)
    assert json.loads(project.call("task", "get", "t", "--json").out)["version"] == 2


@pytest.mark.parametrize(
    ("args", "given", "words"),
    [
        (("signal", "t"), DEEP, ("stdin is not JSON", "write a CloudEvent to it")),
        (("signal", "t"), "", ("stdin is not JSON",)),
        (
            ("signal", "t"),
            f'{{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {HALF}}}',
            ("JSON",),
        ),
        (("signal", "t"), "9" * (16 << 20) + "9", ("stdin has more than 16 MiB",)),
        (("task", "answer", "t", "-"), DEEP, ("ANSWER is not JSON",)),
        (("task", "checkpoint", "t", "--state", "-"), "9" * (16 << 20) + "9", ("--state: stdin has more than 16 MiB",)),
        (("run", "one", "-"), "9" * (16 << 20) + "9", ("stdin has more than 16 MiB",)),
    ],
    ids=lambda value: None,
)
def test_what_nobody_can_read_on_stdin_is_refused_in_one_line(project: Terminal, args, given: str, words) -> None:
    result = project.run(*args, stdin=given)
    assert_refused(result.code, result.out, result.err, *words)
