"""`perstack redact`: the text it removes, its refusals, and what it reports as out of reach."""

from __future__ import annotations

import json

import pytest
from hosts import STORAGES, storage_line
from processes import start, wait_until
from terminal import SECONDS, TEAM, Terminal, reply

SECRET = "hunter2-is-the-password"
SCRIPT = [reply("", ("todo", {"newTodos": [SECRET]})), reply(f"It was {SECRET}.")]


@pytest.fixture(params=STORAGES)
def job_with_secret(terminal: Terminal, request: pytest.FixtureRequest) -> Terminal:
    """Return a project with a Job whose query contains a secret."""
    terminal.project(storage_line(request, terminal.env) + TEAM, lead=SCRIPT)
    assert terminal.call("run", "lead", SECRET, "--job-id", "job").code == 0
    return terminal


def events(terminal: Terminal) -> list[dict]:
    return [json.loads(line) for line in terminal.call("log", "job", "--json").out.splitlines()]


def test_it_says_what_went_with_it_and_where_the_text_still_is_and_the_log_shows_it(job_with_secret: Terminal) -> None:
    done = job_with_secret.call("redact", "job-1-1", "query", "--reason", "a password")
    assert done.code == 0, done.err
    assert done.out.startswith("redacted job-1-1 (startRun): ")
    assert "query" in done.out
    assert done.err.startswith("the same text is also in: job-1-")
    assert "redacts" in job_with_secret.call("log", "job").out
    result = job_with_secret.call("verify", "job")
    assert result.code == 0
    assert "redacted: job-1, event 1 (startRun), by " in result.out
    assert ": a password" in result.out
    assert SECRET not in job_with_secret.call("jobs", "--json").out.partition('"text"')[0]


def test_with_its_copies_no_byte_of_it_is_left_and_the_same_again_changes_nothing(job_with_secret: Terminal) -> None:
    assert job_with_secret.call("redact", "@last-1-1", "query", "--reason", "a password", "--copies").code == 0
    files = [path for path in (job_with_secret.workspace / "perstack").rglob("*") if path.is_file()]
    assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []
    before = job_with_secret.call("log", "job", "--json").out
    result = job_with_secret.call("redact", "job-1-1", "query", "--reason", "another", "--copies", "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out.splitlines()[0])["reason"] == "a password"
    assert job_with_secret.call("log", "job", "--json").out == before
    assert job_with_secret.call("verify", "job").code == 0


def test_the_log_shows_what_was_redacted_at_its_place_and_time(job_with_secret: Terminal) -> None:
    before = job_with_secret.call("log", "job").lines
    for event, field in (("job-1-1", "query"), ("job-1-2", "tools"), ("job-1-3", "reply")):
        job_with_secret.run("redact", event, field, "--reason", "a password")
    after = job_with_secret.call("log", "job").lines
    assert after[0] == before[0]
    assert sum("its content was redacted" in line for line in after) >= 2
    assert not any(line.startswith("1970") for line in after)


@pytest.mark.parametrize(
    ("event", "field", "words"),
    [
        ("job-1-1", "id", "fields that can be removed: "),
        ("job-1-1", "nonsense", "fields that can be removed: "),
        ("job-1-99", "query", "there is no event job-1-99"),
        ("none-1-1", "query", "there is no Job none"),
        ("job", "query", "is not an event id of this host"),
        ("../../etc", "query", "not a valid"),
    ],
)
def test_what_cannot_be_taken_out_is_refused_in_a_line(
    job_with_secret: Terminal, event: str, field: str, words: str
) -> None:
    before = events(job_with_secret)
    result = job_with_secret.call("redact", event, field, "--reason", "r")
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert len(result.err.splitlines()) == 1
    assert events(job_with_secret) == before


def test_a_job_that_is_driven_is_refused(terminal: Terminal) -> None:
    slow = [reply("", ("exec", {"command": "sh", "args": ["-c", "touch began; sleep 60"]})), reply("done")]
    terminal.project(TEAM, lead=slow)
    with start(terminal, "run", "lead", SECRET, "--job-id", "job") as process:
        wait_until(lambda: (terminal.workspace / "began").exists(), "the command runs")
        result = terminal.call("redact", "job-1-1", "query", "--reason", "r")
        assert (result.code, result.out) == (1, "")
        assert "is being driven by" in result.err
        assert terminal.call("cancel", "job").code == 0
        process.communicate(timeout=SECONDS)
    assert terminal.call("redact", "job-1-1", "query", "--reason", "r").code == 0
    assert terminal.call("resume", "job").code == 0
