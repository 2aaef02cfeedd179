"""`perstack log --new`: the messages that each step added to the model's input."""

from __future__ import annotations

import json

import pytest
from terminal import Terminal, reply

from perstack.core.messages.messages import TextPart, UserMessage
from perstack.doors.shared.checkpoint_view import difference

TOML = '[experts.a]\ninstruction = "i"\n'


@pytest.fixture
def done(terminal: Terminal) -> Terminal:
    terminal.project(TOML, a=[reply("I look.", ("think", {"thought": "hm"})), reply("Done."), reply("More.")])
    assert terminal.call("run", "a", "Go", "--provider", "scripted", "--job-id", "j").code == 0
    return terminal


def test_the_messages_that_a_step_added_are_shown_and_written_as_json(done: Terminal) -> None:
    result = done.call("log", "--new")
    assert "── Expert ──" in result.out
    assert "Done." in result.out
    assert "I look." not in result.out
    found = json.loads(done.call("log", "--new", "--json").out)
    steps = done.call("log", "j", "--type", "finishStep", "--json").lines
    assert found["since"] == json.loads(steps[0])["checkpointId"]
    assert (found["gone"], [message["type"] for message in found["new"]]) == ([], ["expertMessage"])
    first = json.loads(done.call("log", "--checkpoint", found["since"], "--new", "--json").out)
    assert first["since"] is None
    assert [message["type"] for message in first["new"]] == [
        "instructionMessage",
        "userMessage",
        "expertMessage",
        "toolMessage",
    ]


def test_a_continued_run_is_compared_with_the_one_that_it_continues(done: Terminal) -> None:
    assert done.call("run", "a", "Again", "--provider", "scripted", "--continue-job", "j").code == 0
    found = json.loads(done.call("log", "--new", "--json").out)
    assert found["since"].startswith("j-1-")
    assert [message["type"] for message in found["new"] if message["type"] != "instructionMessage"] == [
        "userMessage",
        "expertMessage",
    ]


def test_what_does_not_go_with_it_is_refused(done: Terminal) -> None:
    for words in (("--messages",), ("--tools",), ("--follow",), ("--tree",)):
        refused = done.call("log", "j", "--new", *words)
        assert (refused.code, refused.out) == (2, "")


def test_of_messages_that_were_shortened_only_those_are_gone_and_new() -> None:
    def user_message(text: str) -> UserMessage:
        return UserMessage(contents=(TextPart(text=text),))

    old = [user_message("a"), user_message("b"), user_message("c"), user_message("c")]
    assert difference(
        old, [user_message("a"), user_message("summary"), user_message("c"), user_message("c"), user_message("d")]
    ) == (
        (user_message("b"),),
        (user_message("summary"), user_message("d")),
    )
    assert difference(old, [*old, user_message("c")]) == ((), (user_message("c"),))
    assert difference((), old) == ((), tuple(old))
    assert difference(old, old) == ((), ())
