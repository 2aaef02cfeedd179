"""`perstack signal`: events from outside, each taken once."""

from __future__ import annotations

import json
from signal import SIGINT

from processes import start, wait_until
from terminal import ASKING, SECONDS, Result, Terminal, reply


def event(number: str, data: object = "Tea", source: str = "/ci") -> str:
    return json.dumps({"specversion": "1.0", "id": number, "source": source, "type": "said", "data": data})


def signal(terminal: Terminal, target: str, text: str, *options: str) -> Result:
    return terminal.run("signal", target, "--provider", "scripted", *options, stdin=text)


def test_an_event_answers_a_jobs_question_once(terminal: Terminal) -> None:
    twice = [reply("", ("askUser", {"question": "Tea or coffee?"})), reply("", ("askUser", {"question": "Milk?"}))]
    terminal.project(ASKING, guest=[*twice, reply("Served.")])
    assert terminal.call("run", "guest", "Serve", "--provider", "scripted", "--job-id", "ask").code == 3
    first = signal(terminal, "ask", event("1"))
    assert first.code == 3, first.err
    again = signal(terminal, "ask", event("1"))
    assert (again.code, again.lines) == (3, []), "it was taken already: nothing happens"
    last = signal(terminal, "ask", event("2", {"milk": True}))
    assert last.code == 0, last.err
    log = [json.loads(line) for line in terminal.run("log", "--job", "ask", "--json").lines]
    answers = [line["contents"][0]["text"] for line in log if line["type"] == "finishToolCall"]
    assert answers == ["Tea", '{"milk": true}']
    assert [line["signal"] for line in log if line["type"] == "resumeRun"] == ["/ci 1", "/ci 2"]
    givers = [line["by"] for line in log if line["type"] == "finishToolCall"]
    assert {(by["door"], by["source"]) for by in givers} == {("cli", "/ci")}


def test_an_event_that_comes_twice_while_its_job_is_driven_has_been_taken(terminal: Terminal) -> None:
    late = {**reply("Served."), "delayMs": 60_000}
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), late])
    assert terminal.call("run", "guest", "Serve", "--provider", "scripted", "--job-id", "ask").code == 3
    (terminal.workspace / "event").write_text(event("1"))
    with (terminal.workspace / "event").open() as given:
        first = start(terminal, "signal", "ask", stdin=given)
    wait_until(lambda: b'"signal":"/ci 1"' in terminal.log_of("ask-1").read_bytes(), "the event to be taken")
    again = signal(terminal, "ask", event("1"))
    first.send_signal(SIGINT)
    first.communicate(timeout=SECONDS)
    assert first.returncode == 130
    assert (again.code, again.out) == (0, "")
    assert again.err == "Job ask has already received this event, and another process drives it\n"


def test_an_event_lets_a_stopped_job_go_on(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[{"error": {"status": 401, "message": "bad key"}}])
    assert terminal.call("run", "guest", "Serve", "--provider", "scripted", "--job-id", "ask").code == 1
    terminal.script(guest=[reply("Served.")])
    assert signal(terminal, "ask", event("1")).code == 0


def test_an_event_answers_a_task_once(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("ok")])
    terminal.call("task", "create", "deploy")
    terminal.call("task", "start", "deploy")
    terminal.call("task", "pause", "deploy", "--reason", "external_dependency")
    for _ in range(2):
        done = signal(terminal, "deploy", event("1", {"ok": True}))
        assert done.code == 0, done.err
    for other in (event("2"), event("1", source="/other"), event("1", source="/ci1")):
        refused = signal(terminal, "deploy", other)
        assert (refused.code, refused.err) == (1, "error: task deploy has been answered already\n")
    task = json.loads(terminal.call("task", "get", "deploy", "--json").out)
    assert (task["input"], task["inputBy"]["source"]) == ({"ok": True}, "/ci")


def test_what_has_no_such_id_is_told(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("ok")])
    shown = signal(terminal, "nobody", event("1"))
    assert (shown.code, shown.err.startswith("error: there is no Job or task nobody in ")) == (2, True)


def test_what_is_no_event_is_told_in_a_line(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("ok")])
    for text, words in (("{", "not JSON"), ("{}", "specversion"), ('{"specversion": "1.0", "id": "1"}', "source")):
        shown = signal(terminal, "ask", text)
        assert shown.code == 2
        assert words in shown.err
        assert len(shown.err.strip().splitlines()) == 1


def test_what_a_job_does_after_an_event_is_shown_as_by_any_command_that_drives_one(terminal: Terminal) -> None:
    terminal.project(ASKING, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    for job in ("one", "two"):
        assert terminal.call("run", "guest", "Serve", "--provider", "scripted", "--job-id", job).code == 3
    text = signal(terminal, "one", event("1"), "--output", "text")
    assert (text.code, text.out, text.err) == (0, "Served.\n", "")
    human = signal(terminal, "two", event("1"), "--output", "human")
    assert "result: askUser: Tea\n  Served.\nguest completed" in human.out
