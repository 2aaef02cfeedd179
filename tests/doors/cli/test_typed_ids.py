"""Every command that takes an id accepts a unique prefix of it, and `@last`."""

from __future__ import annotations

import json

import pytest
from terminal import ASKING, Terminal, reply

JOBS = ("spring-rain", "spring-sun", "autumn")


@pytest.fixture
def three(terminal: Terminal) -> Terminal:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Which?"})), reply("done"), reply("again")])
    for job in JOBS:
        assert terminal.call("run", "guest", "go", "--job-id", job).code == 3
    return terminal


def log_line(terminal: Terminal, *words: str) -> str:
    result = terminal.call("log", *words, "--json", "--take", "1")
    assert result.code == 0, result.err
    return str(json.loads(result.out)["jobId"])


def test_a_beginning_that_only_one_has_and_the_last_are_ids(three: Terminal) -> None:
    assert log_line(three, "--job", "spring-r") == "spring-rain"
    assert log_line(three, "--job", "@last") == "autumn"
    assert log_line(three, "--job", "@last~2") == "spring-rain"
    assert log_line(three, "--run", "aut-1") == "autumn"
    assert log_line(three, "--run", "@last~1-1") == "spring-sun"
    assert "team" not in three.call("log", "--checkpoint", "spring-s-1-5").out
    for words in (("verify", "aut"), ("replay", "@last"), ("receipt", "aut"), ("export", "aut", "--format", "jsonl")):
        result = three.call(*words)
        assert result.code == 0, (words, result.err)
        assert "autumn" in result.out


def test_a_beginning_that_several_have_is_refused_with_all_of_them(three: Terminal) -> None:
    for words in (("log", "--job", "spring"), ("resume", "s"), ("answer", "spring-", "yes"), ("verify", "spring")):
        result = three.call(*words)
        assert (result.code, result.out) == (2, "")
        assert "matches spring-rain, spring-sun: type more characters" in result.err


def test_a_whole_id_is_meant_even_if_others_begin_with_it(three: Terminal) -> None:
    assert three.call("run", "guest", "go", "--job-id", "spring").code == 3
    assert log_line(three, "--job", "spring") == "spring"


def test_what_fits_nothing_is_said_as_it_was_typed(three: Terminal) -> None:
    result = three.call("log", "--job", "winter")
    assert (result.code, "winter" in result.err) == (2, True)
    result = three.call("log", "--job", "@last~9")
    assert (result.code, "there are only 3 Jobs in" in result.err) == (2, True)
    result = three.call("log", "--job", "@first")
    assert (result.code, "'@first' is not a valid job id" in result.err) == (2, True)


def test_a_job_is_answered_and_continued_by_its_beginning(three: Terminal) -> None:
    assert three.call("answer", "spring-r", "this one").code == 0
    continued = three.call("run", "guest", "more", "--continue-job", "spring-r")
    assert (continued.code, continued.events[-1]["jobId"]) == (0, "spring-rain")
    place = continued.events[-1]["checkpointId"]
    branched = three.call(
        "run", "guest", "other", "--continue-job", "@last", "--resume-from", place.replace("spring-rain", "spring-r")
    )
    start = next(event for event in branched.events if event["type"] == "startRun")
    assert start["continuedFrom"]["checkpointId"] == place


def test_a_new_job_is_never_named_by_a_beginning(three: Terminal) -> None:
    assert three.call("run", "guest", "go", "--job-id", "spring-r").events[-1]["jobId"] == "spring-r"


def test_a_task_is_named_by_its_beginning_and_by_when_it_was_written_to(terminal: Terminal) -> None:
    for task in ("paint-house", "paint-boat", "sail"):
        assert terminal.call("task", "create", task).code == 0

    def shown(*words: str) -> str:
        done = terminal.call("task", *words, "--json")
        assert done.code == 0, done.err
        return str(json.loads(done.out)["taskId"])

    assert shown("get", "sa") == shown("get", "@last") == "sail"
    assert shown("start", "paint-h") == "paint-house"
    assert shown("get", "@last") == "paint-house"
    assert shown("pause", "paint-h", "--depends-on", "@last~1") == "paint-house"
    assert json.loads(terminal.call("task", "get", "paint-h", "--json").out)["dependsOn"] == ["sail"]
    refused = terminal.call("task", "start", "paint")
    assert (refused.code, refused.out) == (2, "")
    assert "paint matches paint-boat, paint-house: type more characters" in refused.err
    assert shown("create", "sai") == "sai", "a new task is never named by a beginning"
    assert terminal.call("task", "delete", "paint-b").out == "deleted paint-boat\n"
    result = terminal.call("task", "get", "@last~7")
    assert (result.code, "there are only 3 tasks in" in result.err) == (2, True)


def test_the_last_of_tasks_and_iterations_is_no_job(three: Terminal) -> None:
    for words in (("task", "get", "@last"), ("report", "@last")):
        result = three.call(*words)
        assert (result.code, result.out) == (2, "")
        assert "yet in" in result.err, result.err
