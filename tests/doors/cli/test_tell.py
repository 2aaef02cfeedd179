"""`perstack tell`: a running Job is told something by another process, and `log --standing` lists it."""

from __future__ import annotations

import json

import pytest
from hosts import STORAGES, storage_line
from processes import start, wait_until
from terminal import SECONDS, TEAM, Terminal, reply

WISH = "show me before you send anything"
WAIT = "touch began; while [ ! -e go-on ]; do sleep 0.05; done"
TURNS = [reply("", ("exec", {"command": "sh", "args": ["-c", WAIT]})), reply("done")]


@pytest.fixture(params=STORAGES)
def busy(terminal: Terminal, request: pytest.FixtureRequest) -> Terminal:
    terminal.env["PERSTACK_REQUESTS"] = str(terminal.workspace / "requests.jsonl")
    return terminal.project(storage_line(request, terminal.env) + TEAM, lead=TURNS)


def test_a_job_of_another_process_is_told_and_keeps_the_text(busy: Terminal) -> None:
    with start(busy, "run", "lead", "go", "--job-id", "slow") as process:
        wait_until(lambda: (busy.workspace / "began").exists(), "the command runs")
        told = busy.call("tell", "slo", WISH)
        assert (told.code, told.err) == (0, "")
        assert told.out == "Job slow: told; it takes effect before the next generation of slow-1\n"
        waiting = busy.call("log", "slow", "--standing").lines
        assert waiting[-2].endswith(", cli  waits")
        (busy.workspace / "go-on").touch()
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    (event,) = [event for line in out.splitlines() if (event := json.loads(line))["type"] == "tellRun"]
    assert (event["text"], event["by"]["door"], event["stepNumber"]) == (WISH, "cli", 2)
    kept = [json.loads(line) for line in busy.call("log", "slow", "--standing", "--json").lines]
    assert [(text.get("id"), text["text"]) for text in kept] == [("slow-1-1", "go"), (event["id"], WISH)]
    shown = busy.call("log", "slow").out
    assert f"told      {WISH}" in shown, shown
    refused = busy.call("tell", "slow", "more")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: Job slow is completed; continue with a new query: perstack run lead QUERY")
    for check in ("verify", "replay"):
        assert busy.call(check, "slow").code == 0


def test_a_stopped_job_says_how_it_gets_the_text_and_a_text_is_removed(terminal: Terminal) -> None:
    asking = reply("", ("askUser", {"question": "Tea?"}))
    terminal.project('[experts.guest]\ninstruction = "You ask."\nask = true\n', guest=[asking, asking, reply("done")])
    assert terminal.call("run", "guest", "go", "--job-id", "tea").code == 3
    told = terminal.call("tell", "tea", WISH)
    assert told.out == (
        'Job tea: told; it takes effect when the Job continues; answer with: perstack answer tea "ANSWER"\n'
    )
    assert terminal.call("answer", "tea", "yes").code == 3
    (text,) = [text for text in map(json.loads, terminal.call("log", "tea", "--standing", "--json").lines)
               if text["text"] == WISH]  # fmt: skip
    dropped = terminal.call("tell", "tea", "--drop", text["id"], "--json")
    assert json.loads(dropped.out)["runId"] == "tea-1"
    assert WISH not in terminal.call("log", "tea", "--standing").out
    assert terminal.call("answer", "tea", "yes").code == 0
    assert f"the text of {text['id']}" in terminal.call("log", "tea").out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tell", "tea"), "give TEXT, or --drop ID"),
        (("tell", "tea", "x", "--drop", "tea-1-1"), "give TEXT, or --drop ID"),
        (("tell", "tea", ""), "TEXT is empty"),
        (("tell", "tea", "--drop", "tea-1-7"), "Job tea has no posted text tea-1-7"),
        (("tell", "none", "x"), "none"),
        (("tell", "tea", "x", "--run", "tea-9"), "tea-9"),
        (("log", "tea", "--standing", "--tree"), "--standing lists what people told the Job"),
    ],
)
def test_what_cannot_be_told_is_one_line(terminal: Terminal, args: tuple[str, ...], words: str) -> None:
    asking = reply("", ("askUser", {"question": "Tea?"}))
    terminal.project('[experts.guest]\ninstruction = "You ask."\nask = true\n', guest=[asking])
    assert terminal.call("run", "guest", "go", "--job-id", "tea").code == 3
    refused = terminal.call(*args)
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 1)
    assert words in refused.err


def test_a_tool_says_nothing_in_the_name_of_a_person(terminal: Terminal) -> None:
    terminal.project('[experts.guest]\ninstruction = "You ask."\nask = true\n', guest=[reply("done")])
    terminal.env["PERSTACK_CALL_ID"] = "tea-1-1-call"
    refused = terminal.call("tell", "tea", "x")
    assert (refused.code, "a tool cannot tell a Job what a person says" in refused.err) == (2, True)
