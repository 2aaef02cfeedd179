"""A Job with a compacted history on the command line: the log's marks, the model's view, and going back."""

from __future__ import annotations

import re

from terminal import Terminal, reply

NOTES = {"You write the notes": [reply("Notes of the model.")]}
LONG = "words that fill the context " * 30


def long_job(terminal: Terminal) -> None:
    turns = [reply("", ("think", {"thought": f"thought {number}: {LONG}"})) for number in range(12)]
    toml = 'contextWindow = 4000\n[experts.stargazer]\ninstruction = "i"\n'
    terminal.project(toml, **{"stargazer": [*turns, reply("Done.")], **NOTES})
    run = terminal.call("run", "stargazer", "count the stars", "--provider", "scripted", "--job-id", "long")
    assert run.code == 0, run.err


def test_the_log_marks_what_the_model_does_not_see_any_more(terminal: Terminal) -> None:
    long_job(terminal)
    result = terminal.call("log", "--take", "0")
    marked = re.findall(r" (\d+)·calls", result.out)
    clear = re.findall(r" (\d+) calls", result.out)
    assert marked == [str(step) for step in range(1, len(marked) + 1)]
    assert int(clear[0]) == len(marked) + 1
    assert "compacts" in result.out
    assert "by scripted/scripted" in result.out
    assert "· the model no longer sees this" in result.lines[-1]


def test_the_messages_are_those_that_the_model_sees(terminal: Terminal) -> None:
    long_job(terminal)
    output = terminal.call("log", "--messages").out
    assert "── instead of older messages ──" in output
    assert "Notes of the model." in output
    assert "count the stars" in output
    assert "thought 0:" not in output
    assert "thought 11:" in output


def test_compaction_is_turned_off_by_an_option_and_undone_by_another(terminal: Terminal) -> None:
    long_job(terminal)
    result = terminal.call("resume", "long", "--before-compaction", "--provider", "scripted")
    assert result.code == 0, result.err
    messages = terminal.call("log", "--run", "long-2", "--messages").out
    assert "thought 10:" in messages
    assert not [
        event for event in terminal.call("log", "--run", "long-2", "--json").events if "ompact" in event["type"]
    ]
    off = terminal.call("run", "stargazer", "q", "--provider", "scripted", "--compaction", "off", "--job-id", "off")
    assert off.code == 0, off.err
    assert "compactHistory" not in terminal.call("log", "--job", "off", "--json").out
    wrong = terminal.call("run", "stargazer", "q", "--compaction", "never")
    assert (wrong.code, "use auto, off, or expert=NAME" in wrong.err) == (2, True)


def test_a_definition_that_names_no_expert_for_its_summaries_is_refused(terminal: Terminal) -> None:
    terminal.project('compaction = { expert = "nots" }\n[experts.notes]\ninstruction = "i"\n', notes=[reply("Done.")])
    result = terminal.call("validate")
    assert result.code == 2
    assert "compaction.expert: there is no Expert `nots`; did you mean `notes`?" in result.out + result.err
