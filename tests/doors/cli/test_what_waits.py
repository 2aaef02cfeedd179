"""What waits for a person is named where it is looked for, and answered by the number that is shown."""

from __future__ import annotations

import pytest
from terminal import Terminal, reply

SCRIPTED = ("--provider", "scripted")
ASKS = '[experts.a]\ninstruction = "x"\nask = true\n'


def choice(*options: str, **more: bool) -> tuple[str, dict[str, object]]:
    return "askUser", {"question": "Which?", "options": [*options], **more}


def answered(terminal: Terminal, call: tuple[str, dict[str, object]], answer: str) -> str:
    """Return what the model gets for an answer as typed."""
    terminal.project(ASKS, a=[reply("", call), reply("Done.")])
    assert terminal.call("run", "a", "q", *SCRIPTED, "--job-id", "job").code == 3
    done = terminal.call("answer", "job", answer)
    assert done.code == 0, done.err
    return next(event["contents"][0]["text"] for event in done.events if event["type"] == "finishToolCall")


@pytest.mark.parametrize(
    ("call", "answer", "told"),
    [
        (choice("Alpha", "Beta"), "2", "Beta"),
        (choice("Alpha", "Beta", allowOther=False), "1", "Alpha"),
        (choice("Alpha", "Beta"), "3", "3"),
        (choice("Alpha", "Beta"), "both", "both"),
        (choice("1", "5", "10"), "3", "3"),
        (choice("10", "5", "1"), "1", "1"),
    ],
)
def test_a_number_is_the_option_that_is_shown_with_it(
    terminal: Terminal, call: tuple[str, dict[str, object]], answer: str, told: str
) -> None:
    assert answered(terminal, call, answer) == told


def test_several_numbers_are_several_options(terminal: Terminal) -> None:
    told = answered(terminal, choice("Alpha", "Beta", "Gamma", several=True), "1,3")
    assert ("Alpha" in told, "Beta" in told, "Gamma" in told) == (True, False, True)


def test_a_program_that_nobody_allowed_does_not_wait_behind_a_question(terminal: Terminal) -> None:
    (terminal.workspace / "perstack.toml").write_text(ASKS)
    terminal.script(a=[reply("", choice("Alpha", "Beta"), ("exec", {"command": "true"})), reply("Done.")])
    asked = terminal.run("run", "a", "q", *SCRIPTED, "--job-id", "job")
    assert asked.code == 3
    decided = [event for event in asked.events if event["type"] == "decideApproval"]
    assert [event["by"]["door"] for event in decided] == ["unattended"]


def test_each_row_of_the_inbox_has_the_id_of_its_job(terminal: Terminal) -> None:
    terminal.project(ASKS, a=[reply("", choice("Alpha", "Beta"))])
    for number in range(3):
        terminal.call("run", "a", "q", *SCRIPTED, "--job-id", f"job{number}")
    for columns in (40, 80):
        rows = terminal.call("inbox", columns=columns).out
        assert all(f"Job job{number} a" in rows for number in range(3)), rows
        assert all(f"job{number}" in terminal.call("jobs", columns=columns).out for number in range(3))


def test_perstack_alone_names_an_interrupted_job_and_the_command_that_continues_it(terminal: Terminal) -> None:
    terminal.project('[experts.a]\ninstruction = "x"\n[permissions]\nallow = ["exec"]\n')
    terminal.script(a=[reply("", ("exec", {"command": "sh", "args": ["-c", "kill -9 $PPID"]})), reply("Done.")])
    assert terminal.run("run", "a", "q", *SCRIPTED, "--job-id", "killed").code not in (0, 2)
    shown = terminal.run().out
    assert "; Job killed of a was interrupted." in shown
    assert "\nNext: perstack resume killed\n" in shown
