"""`perstack inbox` and `perstack answer`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from terminal import ASKING, ASKING_BY_SKILL, Result, Terminal, reply

from perstack.core.base.chain import EMPTY_LOG, open_line, seal
from perstack.system.user import this_user

WORDS = ("Tea", "Coffee")


def ask(terminal: Terminal, job_id: str) -> None:
    stopped = terminal.call("run", "guest", "Serve", "--provider", "scripted", "--job-id", job_id)
    assert stopped.code == 3, stopped.err


def test_all_questions_are_listed_oldest_first_with_how_to_answer(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    assert terminal.run("inbox").lines == ["nothing waits for you"]
    ask(terminal, "one")
    ask(terminal, "two")
    shown = terminal.run("inbox")
    assert [line.split()[:3] for line in shown.lines[::4]] == [["one-1-5", "Job", "one"], ["two-1-5", "Job", "two"]]
    assert shown.lines[1:4] == ["  Tea or coffee?", '  answer with: perstack answer one-1-5 "ANSWER"', ""]
    found = [json.loads(line) for line in terminal.run("inbox", "--json").lines]
    assert [(item["jobId"], item["id"], item["text"]) for item in found] == [
        ("one", "one-1-5", "Tea or coffee?"),
        ("two", "two-1-5", "Tea or coffee?"),
    ]


def test_an_answer_by_either_id_drives_the_job_on_and_a_second_one_is_refused(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    for job_id, name in (("one", "one-1-5"), ("two", "two")):
        ask(terminal, job_id)
        done = terminal.call("answer", name, "Tea", "--provider", "scripted")
        assert done.code == 0, done.err
    result = terminal.call("answer", "one-1-5", "Coffee", "--provider", "scripted")
    assert result.code == 1
    assert "one-1-5 has been answered already" in result.err
    assert terminal.run("inbox").lines == ["nothing waits for you"]


def test_of_two_answers_at_once_one_is_taken(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    ask(terminal, "one")
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda said: terminal.run("answer", "one-1-5", said, "--provider", "scripted"), WORDS)
    assert sorted(shown.code for shown in answers) == [0, 1]
    log = terminal.run("log", "--job", "one", "--json")
    results = [line for line in map(json.loads, log.lines) if line["type"] == "finishToolCall"]
    assert len(results) == 1


def test_a_tool_that_asks_for_approval_pauses_for_it(terminal: Terminal) -> None:
    terminal.project(
        ASKING_BY_SKILL.replace("tools.askUser]", "tools.askUser]\napproval = true"),
        guest=[reply("", ("askUser", {"question": "Pay?"})), reply("Paid.")],
    )
    ask(terminal, "one")
    job = json.loads(terminal.run("jobs", "--json").lines[0])
    assert job["pauseReason"] == "human_approval"
    assert "approval" in terminal.run("inbox").lines[0]


def test_an_unknown_question_is_told_in_a_line(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("ok")])
    result = terminal.call("answer", "nothing-1-5", "x", "--provider", "scripted")
    assert result.code in (1, 2)
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == 1
    result = terminal.call("answer", "nothing", "x", "--provider", "scripted")
    words = "error: there is no Job, task or question nothing; `perstack inbox` lists what is open\n"
    assert (result.code, result.err) == (2, words)


def test_a_job_that_asks_nothing_is_told(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("ok")])
    terminal.call("run", "guest", "hi", "--job-id", "done", "--provider", "scripted")
    result = terminal.call("answer", "done", "x", "--provider", "scripted")
    assert (result.code, "Job done has no open question (completed)" in result.err) == (2, True)


@pytest.mark.parametrize("command", ["run", "resume"])
def test_a_question_is_answered_anew_from_the_checkpoint_at_which_it_was_open(terminal: Terminal, command: str) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    ask(terminal, "one")
    assert terminal.call("answer", "one", "Tea", "--provider", "scripted").code == 0
    (place,) = terminal.call("log", "--job", "one", "--type", "stopRunByInteractiveTool", "--json").events
    begin = (
        ("run", "guest", "Coffee", "--continue-job", "one", "-i") if command == "run" else ("resume", "-i", "Coffee")
    )
    result = terminal.call(*begin, "--resume-from", place["checkpointId"], "--provider", "scripted")
    assert result.code == 0, result.err
    answers = terminal.call("log", "--job", "one", "--type", "finishToolCall", "--json").events
    assert [(one["runId"], one["contents"][0]["text"]) for one in answers] == [("one-1", "Tea"), ("one-2", "Coffee")]
    assert "with another answer" in terminal.call("log", "--job", "one").out
    assert (terminal.call("verify", "one").code, terminal.call("replay", "one").code) == (0, 0)


def test_another_answer_needs_the_checkpoint_and_a_checkpoint_the_answer(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("ok")])
    for args in (("-i", "x"), ("--resume-from", "one-1-6")):
        result = terminal.call("resume", "one", *args, "--provider", "scripted")
        assert (result.code, "--resume-from and -i go together" in result.err) == (2, True)


def test_a_tasks_approval_is_in_the_inbox_and_is_answered_once(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("ok")])
    for command in (
        ("create", "deploy", "--agent", "ci"),
        ("start", "deploy"),
        ("pause", "deploy", "--reason", "human_approval", "--message", "Deploy to production?"),
    ):
        done = terminal.call("task", *command)
        assert done.code == 0, done.err
    assert terminal.run("inbox").lines[0].split()[:4] == ["deploy", "task", "deploy", "ci"]
    refused = terminal.call("answer", "deploy", "maybe", "--provider", "scripted")
    assert refused.code == 2
    assert refused.err.startswith("error: the answer does not fit: answer yes or no; a text may follow a colon")
    assert len(refused.err.splitlines()) == 1
    done = terminal.call("answer", "deploy", "yes", "--provider", "scripted")
    assert (done.code, done.err) == (0, "task deploy: answered; `perstack task run-due` continues it\n")
    assert terminal.run("inbox").lines == ["nothing waits for you"]
    result = terminal.call("answer", "deploy", "no", "--provider", "scripted")
    assert result.code == 1
    assert "answered already" in result.err
    task = json.loads(terminal.call("task", "get", "deploy", "--json").out)
    assert (task["input"], task["inputBy"]) == (True, {"user": this_user().user, "door": "cli"})


@pytest.mark.parametrize("way", ["answer", "run -i"])
def test_a_jobs_approval_takes_a_yes_or_a_no_and_the_log_says_who_gave_it(terminal: Terminal, way: str) -> None:
    toml = ASKING_BY_SKILL.replace("tools.askUser]", "tools.askUser]\napproval = true")
    terminal.project(toml, guest=[reply("", ("askUser", {"question": "Deploy?"})), reply("Kept.")])
    ask(terminal, "one")

    def answer(text: str) -> Result:
        command = ("answer", "one", text) if way == "answer" else ("run", "guest", text, "--continue-job", "one", "-i")
        return terminal.call(*command, "--provider", "scripted")

    refused = answer("maybe")
    assert (refused.code, refused.out) == (2, "")
    assert "answer yes or no" in refused.err
    assert answer("Deny: not on a Friday").code == 0
    (given,) = terminal.call("log", "--job", "one", "--type", "finishToolCall", "--json").events
    assert given["contents"][0]["text"] == "no: not on a Friday"
    assert given["by"] == {"user": this_user().user, "door": "cli"}
    assert f"{this_user().user}, cli" in terminal.call("log", "--job", "one").out
    assert terminal.call("verify", "one").code == 0


def test_a_question_is_listed_with_its_options_and_its_other_arguments(terminal: Terminal) -> None:
    choices = [{"label": "Tea", "description": "green\nor black"}, "Coffee\x1b[2J"]
    plain = {"question": "Which?", "options": ["Tea", "Coffee"], "amount": 3, "note": "for two\nor three"}
    terminal.project(ASKING, guest=[reply("", ("askUser", plain)), reply("Served.")])
    ask(terminal, "one")
    terminal.script(guest=[reply("", ("askUser", {"question": "And?", "options": [choices[0], {"label": "Milk"}]}))])
    ask(terminal, "two")
    terminal.script(guest=[reply("", ("askUser", {"question": "Pay?", "amount": "\x1b[2J1"}))])
    ask(terminal, "three")
    output = terminal.call("inbox").out
    for line in ("  Which?", "    amount: 3", "    note: for two", "      | or three", "    1. Tea", "    2. Coffee"):
        assert line in output.splitlines(), line
    assert "    1. Tea: green\n      | or black\n    2. Milk\n" in output
    assert "    amount: \\u001b[2J1" in output
    assert "\x1b" not in output
    assert [line[2:12] for line in output.splitlines()].count("answer wit") == 3


def test_what_hundreds_of_jobs_ask_is_written_in_a_few_writes(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    ask(terminal, "job")
    jobs = terminal.workspace / "perstack" / "jobs"
    summary = (jobs / "job" / "job.json").read_bytes()
    payloads = [
        open_line(line).payload for line in next((jobs / "job").glob("runs/*/events.jsonl")).read_bytes().splitlines()
    ]
    for number in range(300):
        folder = jobs / f"job{number}"
        (folder / "runs" / f"job{number}-1").mkdir(parents=True)
        (folder / "job.json").write_bytes(_renamed(summary, number))
        lines, _ = seal(EMPTY_LOG, [_renamed(payload, number) for payload in payloads])
        (folder / "runs" / f"job{number}-1" / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    writes: list[str] = []
    with mock.patch("perstack.doors.cli.inbox.print_out", lambda *parts: writes.append("".join(map(str, parts)))):
        assert terminal.call("inbox").code == 0
    assert len(writes) < 5
    assert sum(write.count("Tea or coffee?") for write in writes) == 301
    assert terminal.call("inbox").out == "".join(f"{write}\n" for write in writes)


def _renamed(data: bytes, number: int) -> bytes:
    return data.replace(b'"job"', b'"job%d"' % number).replace(b'"job-', b'"job%d-' % number)


EMPTY = (
    "run guest q --provider scripted --continue-job=", "run guest q --provider scripted --job-id=", "log --run=",
    "run guest q --provider scripted --continue --resume-from=", "jobs --label=", "jobs --storage=", "jobs --config=",
    "jobs --workspace=", "cost --since=", "prune --older-than= --dry-run", "prune --expert= --dry-run",
    "submit guest q --at=", "verify --receipt=", "export ask --format=", "resume ask --max-steps=", "log --job=",
)  # fmt: skip
EMPTY_ARGUMENTS = (
    "log",
    "verify",
    "export --format json",
    "resume",
    "answer",
    "rewind",
    "diff",
    "cancel",
    "replay",
    "du",
)


@pytest.mark.parametrize("line", EMPTY)
def test_an_empty_value_is_refused_and_is_no_absent_one(waiting: Terminal, line: str) -> None:
    result = waiting.call(*line.split())
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert [job["id"] for job in waiting.call("jobs", "--json").events] == ["ask"]


@pytest.mark.parametrize("line", EMPTY_ARGUMENTS)
def test_an_empty_id_is_not_the_latest_job(waiting: Terminal, line: str) -> None:
    command, *options = line.split()
    result = waiting.call(command, "", *options)
    assert (result.code, result.out) == (2, "")
    assert "is empty" in result.err or "is not a valid" in result.err
