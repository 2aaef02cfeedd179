"""Calls that a person approves with other arguments: judged again, told to the model, on record, and replayed alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal, reply

TOML = """
[permissions]
ask = ["writeTextFile", "exec"]
deny = ["write(secret*)", "exec(rm *)"]
allow = ["write(free.txt)"]
[experts.a]
instruction = "You write."
"""
WRITE = ("writeTextFile", {"path": "a.txt", "text": "old"})
EXEC = ("exec", {"command": "echo", "args": ["one"]})


def _asked(tmp_path: Path, *turns: Any, toml: str = TOML) -> tuple[Terminal, str]:
    """Return a project with a Job `job` that waits for an approval, and the id of its question."""
    terminal = Terminal(tmp_path).project(toml, a=[*(turns or (reply("", WRITE),)), reply("done")])
    assert terminal.call("run", "a", "q", "--job-id", "job").code == 3
    return terminal, _question(terminal)


def _question(terminal: Terminal) -> str:
    (item,) = terminal.call("inbox", "--json").events
    return item["id"]


def _events(terminal: Terminal, kind: str) -> list[dict[str, Any]]:
    return terminal.call("log", "--job", "job", "--type", kind, "--json").events


def _verified(terminal: Terminal) -> None:
    verified = terminal.call("verify", "job")
    assert verified.code == 0, verified.out + verified.err
    assert "unchecked" not in verified.out


def _result(terminal: Terminal) -> list[str]:
    """Return the texts of the latest result as the model saw them."""
    last = _events(terminal, "startGeneration")[-1]["id"]
    messages = json.loads(terminal.call("log", "--checkpoint", last, "--messages", "--json").out)["messages"]
    (result,) = [message for message in messages if message["type"] == "toolMessage"][-1]["contents"]
    return [content["text"] for content in result["contents"]]


def test_a_call_runs_with_the_persons_arguments_and_the_log_has_both(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    changed = {"path": "b.txt", "text": "new"}
    done = terminal.call("answer", asked, "--changed", json.dumps(changed))
    assert done.code == 0, done.err
    assert (tmp_path / "b.txt").read_text() == "new"
    assert not (tmp_path / "a.txt").exists()
    (request,) = _events(terminal, "requestApproval")
    (change,) = _events(terminal, "changeCall")
    (decided,) = _events(terminal, "decideChangedCall")
    (began,) = _events(terminal, "startToolCall")
    assert (request["args"], change["args"], change["by"]["door"]) == (dict(WRITE[1]), changed, "cli")
    assert change["callDigest"] == request["callDigest"] != decided["callDigest"] == began["callDigest"]
    _verified(terminal)


def test_the_model_sees_that_its_call_was_changed_and_by_whom(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path, reply("", EXEC))
    change = {"command": "echo", "args": ["two"]}
    assert terminal.call("answer", asked, "--changed", json.dumps(change)).code == 0
    (by,) = (event["by"]["user"] for event in _events(terminal, "changeCall"))
    note, result = _result(terminal)
    assert note == f'[Arguments of this call, by {by}, who approved it so: changed to {{"args": ["two"]}}]'
    assert "two" in result
    assert 'changed {"command": "echo", "args": ["two"]}' in " ".join(terminal.call("log", "--job", "job").out.split())


def test_what_a_rule_denies_is_asked_again_as_it_was(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    again = terminal.call("answer", asked, "--changed", '{"path": "secret.txt", "text": "x"}')
    assert again.code == 3
    assert not (tmp_path / "secret.txt").exists()
    (item,) = terminal.call("inbox", "--json").events
    assert item["id"] != asked
    assert item["args"] == dict(WRITE[1])
    assert "asked again: write(secret*) denies it as changed" in item["text"]
    assert terminal.call("answer", item["id"], "yes").code == 0
    assert (tmp_path / "a.txt").read_text() == "old"
    _verified(terminal)


def test_arguments_that_the_tool_does_not_take_are_asked_again(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    assert terminal.call("answer", asked, "--changed", '{"path": 7}').code == 3
    (item,) = terminal.call("inbox", "--json").events
    assert (item["args"], "asked again" in item["text"]) == (dict(WRITE[1]), True)
    _verified(terminal)


def test_what_no_rule_asks_about_runs_at_once(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    assert terminal.call("answer", asked, "--changed", '{"path": "free.txt", "text": "x"}').code == 0
    assert (tmp_path / "free.txt").read_text() == "x"
    assert _events(terminal, "startToolCall") == []
    _verified(terminal)


def test_a_path_that_leads_elsewhere_is_shown_before_it_is_approved(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "near").symlink_to("deep")
    terminal, asked = _asked(tmp_path)
    change = {"path": "near/b.txt", "text": "x"}
    assert terminal.call("answer", asked, "--changed", json.dumps(change)).code == 3
    (item,) = terminal.call("inbox", "--json").events
    assert (item["args"], (tmp_path / "deep" / "b.txt").exists()) == (change, False)
    assert terminal.call("answer", item["id"], "no: not there").code == 0
    note, refusal = _result(terminal)
    assert "changed to" in note
    assert "not there" in refusal
    _verified(terminal)


def test_the_same_arguments_are_a_plain_yes(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    assert terminal.call("answer", asked, "--changed", json.dumps(dict(WRITE[1]))).code == 0
    assert (_events(terminal, "changeCall"), len(_events(terminal, "decideApproval"))) == ([], 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--changed", "[1]"), "not a JSON object"),
        (("--changed", '{"path": '), "not a JSON object"),
        (("yes", "--changed", "{}"), "leave out TEXT"),
    ],
)
def test_a_wrong_change_is_refused_and_nothing_is_answered(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    terminal, asked = _asked(tmp_path)
    refused = terminal.call("answer", asked, *options)
    assert (refused.code, words in refused.err, refused.err.count("\n")) == (2, True, 1), refused.err
    assert _question(terminal) == asked


def test_a_tool_cannot_change_a_call_either(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    terminal.env["PERSTACK_CALL_ID"] = "job-1-1-call"
    refused = terminal.call("answer", asked, "--changed", '{"path": "b.txt", "text": "x"}')
    assert (refused.code, "a tool cannot approve a call" in refused.err) == (2, True)


def test_only_a_call_that_waits_for_approval_can_be_changed(tmp_path: Path) -> None:
    toml = '[experts.a]\ninstruction = "You ask."\nask = true\n'
    terminal = Terminal(tmp_path).project(toml, a=[reply("", ("askUser", {"question": "Which?"})), reply("done")])
    assert terminal.call("run", "a", "q", "--job-id", "job").code == 3
    refused = terminal.call("answer", _question(terminal), "--changed", "{}")
    assert (refused.code, "is not an approval of a call" in refused.err) == (2, True), refused.err


def test_a_backtest_sees_the_call_that_ran(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path, reply("", EXEC))
    change = {"command": "printf", "args": ["two"]}
    assert terminal.call("answer", asked, "--changed", json.dumps(change)).code == 0
    (tmp_path / "perstack.toml").write_text(TOML.replace('"exec(rm *)"', '"exec(printf *)"'))
    backtest = terminal.call("permissions", "backtest").out
    assert "exec(printf *)" in backtest
    assert "echo" not in backtest


def test_a_recording_plays_the_change(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    changed = {"path": "b.txt", "text": "new"}
    assert terminal.call("answer", asked, "--changed", json.dumps(changed)).code == 0
    assert terminal.call("record", "job", "--to", "job.json").code == 0
    (tmp_path / "b.txt").unlink()
    played = terminal.call("run", "a", "q", "--job-id", "again", "--recording", "job.json")
    assert played.code == 0, played.err
    kinds = [event["type"] for event in played.events]
    assert ("changeCall" in kinds, "decideChangedCall" in kinds) == (True, True)


def test_a_redacted_change_is_no_contradiction(tmp_path: Path) -> None:
    terminal, asked = _asked(tmp_path)
    assert terminal.call("answer", asked, "--changed", '{"path": "b.txt", "text": "secret words"}').code == 0
    (change,) = _events(terminal, "changeCall")
    assert terminal.call("redact", change["id"], "args", "--reason", "words").code == 0
    assert "args" not in _events(terminal, "changeCall")[0] or not _events(terminal, "changeCall")[0]["args"]
    assert terminal.call("verify", "job").code == 0


def _edit(tmp_path: Path, script: str, keys: str) -> tuple[str, Terminal]:
    """Answer an approval by keys, with an editor that is this shell script, and return the screen."""
    terminal = Terminal(tmp_path).project(TOML, a=[reply("", WRITE), reply("done")])
    editor = tmp_path / "editor.sh"
    editor.write_text(f"#!/bin/sh\n{script}\n")
    editor.chmod(0o755)
    terminal.env["EDITOR"] = str(editor)
    return terminal.look("run", "a", "q", "--job-id", "job", types=keys), terminal


def test_a_mistake_in_the_editor_is_named_and_what_was_typed_is_kept(tmp_path: Path) -> None:
    mended = '{"path": "b.txt", "text": "mended"}'
    script = f"""grep -q broken "$1" && echo '{mended}' > "$1" || echo '{{ broken' > "$1" """
    seen, _ = _edit(tmp_path, script, "e\ne\n")
    assert "the changed arguments, line 1: " in seen
    assert (tmp_path / "b.txt").read_text() == "mended"


@pytest.mark.parametrize(
    ("script", "words"), [("exit 3", "the editor failed"), ("true", "the arguments are unchanged")]
)
def test_an_editor_that_changes_nothing_leaves_the_question(tmp_path: Path, script: str, words: str) -> None:
    seen, terminal = _edit(tmp_path, script, "e\nno\n")
    assert words in seen
    assert (len(_events(terminal, "decideApproval")), (tmp_path / "a.txt").exists()) == (1, False)


def test_invisible_characters_are_escapes_in_the_editor(tmp_path: Path) -> None:
    hidden = ("writeTextFile", {"path": "a.txt", "text": "one\u202etwo"})
    terminal = Terminal(tmp_path).project(TOML, a=[reply("", hidden), reply("done")])
    terminal.env["EDITOR"] = "grep -c u202e"
    assert "\n1\r\n" in terminal.look("run", "a", "q", types="e\nno\n").replace("\n1\n", "\n1\r\n")
