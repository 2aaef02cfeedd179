"""Approvals from the command line: in place at a terminal, later by `perstack answer`, and combined rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminal import Terminal, reply

from perstack.core.base.chain import EMPTY_LOG, seal

TOML = """
[permissions]
ask = ["editTextFile", "exec"]
[experts.a]
instruction = "You write."
"""
EDIT = ("editTextFile", {"path": "a.txt", "oldText": "old", "newText": "new"})


def _project(tmp_path: Path, *turns) -> Terminal:
    (tmp_path / "a.txt").write_text("old\n")
    return Terminal(tmp_path).project(TOML, a=[*turns, reply("done")])


def test_at_a_terminal_a_call_is_shown_with_its_change_and_approved_in_place(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    seen = terminal.look("run", "a", "q", "--job-id", "job", types="yes\n")
    assert "a wants to call editTextFile of skill @perstack/base, which needs approval (editTextFile)" in seen
    assert "  path: a.txt\n" in seen
    assert "  -old\n  +new\n" in seen
    assert "approve? (1 to 5, yes, or n and why; Enter: later)" in seen
    assert "  3 yes, and always editTextFile in this Job: every call of editTextFile" in " ".join(seen.split()).replace(
        " 3 yes", "  3 yes"
    )
    assert (tmp_path / "a.txt").read_text() == "new\n"
    decided = json.loads(terminal.call("log", "--job", "job", "--type", "decideApproval", "--json").lines[0])
    assert (decided["decision"], decided["by"]["door"]) == ("once", "cli")


def test_at_a_terminal_spaces_hide_no_command_of_a_call(tmp_path: Path) -> None:
    hidden = ("exec", {"command": "sh", "args": ["-c", f"ls{' ' * 3000}; touch made"]})
    seen = _project(tmp_path, reply("", hidden)).look("run", "a", "q", types="no\n")
    assert "  runs: ls\n  runs: touch made\n  1 yes\n" in seen
    assert "ls⟦3,000 spaces⟧; touch made" in seen
    assert not (tmp_path / "made").exists()


def test_words_that_are_no_answer_are_asked_again_and_an_empty_line_leaves_it_for_later(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    seen = terminal.look("run", "a", "q", types="perhaps\n\n")
    assert seen.count("approve? (1 to 5") == 2
    assert seen.count("  1 yes\n") == 1, "a wrong answer repeats one line"
    assert "perstack answer" in seen
    assert (tmp_path / "a.txt").read_text() == "old\n"
    (item,) = terminal.call("inbox", "--json").events
    assert (item["approval"], item["rule"], item["args"]["newText"]) == (True, "editTextFile", "new")
    output = terminal.call("inbox").out
    for words in ("a wants to call editTextFile", "(editTextFile)", "\n    path: a.txt\n", "\n    -old\n    +new\n"):
        assert words in output
    assert f"answer with: perstack answer {item['id']} yes|always|no" in output


def test_an_approval_names_its_question_and_is_given_once(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    stopped = terminal.call("run", "a", "q", "--job-id", "job", attended=True)
    assert stopped.code == 3
    asked = next(event["id"] for event in stopped.events if event["type"] == "requestApproval")
    assert f"see the whole call and decide it with: perstack answer {asked}\n" in stopped.err
    refused = terminal.call("answer", "job", "yes")
    assert (refused.code, f"decide it with: perstack answer {asked}\n" in refused.err) == (2, True)
    assert (tmp_path / "a.txt").read_text() == "old\n"
    assert terminal.call("answer", asked, "yes").code == 0
    assert (tmp_path / "a.txt").read_text() == "new\n"
    result = terminal.call("answer", asked, "yes")
    assert (result.code, "has been answered already" in result.err) == (1, True)


def test_what_is_denied_with_words_tells_the_model_and_the_log_shows_who(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    stopped = terminal.call("run", "a", "q", "--job-id", "job")
    asked = next(event["id"] for event in stopped.events if event["type"] == "requestApproval")
    done = terminal.call("answer", asked, "no: not this file")
    result = next(event for event in done.events if event["type"] == "finishToolCall")
    assert result["contents"][0]["text"] == "Not run: a person did not approve this call: not this file"
    log = terminal.call("log", "--job", "job").out
    assert "no: not this file" in log
    assert "approval of editTextFile" in log


def test_unattended_it_is_denied(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    result = terminal.call("run", "a", "q", "--unattended")
    assert result.code == 0
    assert (tmp_path / "a.txt").read_text() == "old\n"


def test_rules_of_a_file_are_laid_over_those_in_force_and_who_did_it_is_on_record(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    (tmp_path / "wide.toml").write_text('[permissions]\nallow = ["editTextFile"]\n')
    result = terminal.call("run", "a", "q", "--permissions", "wide.toml")
    assert result.code == 0, result.err
    assert (tmp_path / "a.txt").read_text() == "new\n"
    (event,) = [event for event in result.events if event["type"] == "widenPermissions"]
    assert event["widening"] == {"source": "wide.toml [permissions]", "allow": ["editTextFile"]}
    assert event["by"]["door"] == "cli"


def test_a_file_of_permissions_that_is_wrong_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    for text, words in (
        ('[permission]\nallow = ["x"]\n', "has one table, [permissions], and nothing else"),
        ('[permissions]\nalow = ["x"]\n', "alow"),
        ('[permissions]\nallow = ["x("]\n', "has no `)` at its end"),
        ("[permissions", "is not TOML"),
    ):
        (tmp_path / "wide.toml").write_text(text)
        refused = terminal.call("run", "a", "q", "--permissions", "wide.toml")
        assert refused.code == 2
        assert words in refused.err
    assert terminal.call("run", "a", "q", "--permissions", "none.toml").code == 2
    assert not terminal.jobs().exists() or not list(terminal.jobs().iterdir())


def test_a_tool_of_an_expert_cannot_approve(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    stopped = terminal.call("run", "a", "q", "--job-id", "job")
    asked = next(event["id"] for event in stopped.events if event["type"] == "requestApproval")
    terminal.env["PERSTACK_CALL_ID"] = "job-1-1-call"
    refused = terminal.call("answer", asked, "always")
    assert (refused.code, "a tool cannot approve a call" in refused.err) == (2, True)


ITERATE = (
    TOML
    + """
[experts.a.iterate]
evaluator = "echo '{\\"score\\": 1}'"
maxIterations = 2
"""
)


def test_iterations_ask_in_place_and_go_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    back = ("editTextFile", {"path": "a.txt", "oldText": "new", "newText": "old"})
    terminal = Terminal(tmp_path).project(ITERATE, a=[reply("", EDIT), reply("done"), reply("", back), reply("done")])
    seen = terminal.look("iterate", "a", "q", "--id", "it", types="yes\nno: enough\n")
    assert seen.count("approve? (1 to 5") == 2
    assert "completed: 2 iterations" in seen
    assert (tmp_path / "a.txt").read_text() == "new\n"
    log = terminal.call("log", "--job", "it-i2").out
    assert "no: enough" in log


def test_iterations_whose_question_is_left_for_later_name_it_and_a_resume_asks_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old\n")
    terminal = Terminal(tmp_path).project(ITERATE, a=[reply("", EDIT), reply("done")])
    screen = terminal.look("iterate", "a", "q", "--id", "it", "--max-iterations", "1", types="\n")
    (item,) = terminal.call("inbox", "--json").events
    assert f"decide it with: perstack answer {item['id']}" in screen
    seen = terminal.look("resume", "it", types="yes\n")
    assert "completed: 1 iteration" in seen
    assert (tmp_path / "a.txt").read_text() == "new\n"


SCRIPTS = {
    "last of 60": "ls;" * 60 + "touch made",
    "after blank lines": "ls" + "\n" * 90 + "touch made",
    "after a comment": f"ls # {'x' * 9_000}\ntouch made",
    "among 200": "; ".join(f"echo {number}" for number in range(200)) + "; touch made",
}


@pytest.mark.parametrize("line", SCRIPTS.values(), ids=SCRIPTS)
def test_a_list_never_offers_a_yes_without_the_last_command(tmp_path: Path, line: str) -> None:
    terminal = _project(tmp_path, reply("", ("exec", {"command": "sh", "args": ["-c", line]})))
    assert terminal.call("run", "a", "q", attended=True).code == 3
    (item,) = terminal.call("inbox", "--json").events
    listed = terminal.call("inbox").out
    offers_yes = f"perstack answer {item['id']} yes" in listed
    assert f"perstack answer {item['id']}" in listed
    assert "runs: touch made\n" in listed or not offers_yes
    seen = terminal.look("answer", item["id"], types="no\n")
    assert "  runs: touch made\n  1 yes\n" in seen
    assert "completed" in seen


def test_an_answer_without_a_text_is_asked_for_at_a_terminal_alone(tmp_path: Path) -> None:
    terminal = _project(tmp_path, reply("", EDIT))
    assert terminal.call("run", "a", "q", "--job-id", "job", attended=True).code == 3
    refused = terminal.call("answer", "job")
    assert (refused.code, "give the answer as TEXT: only a terminal shows the question" in refused.err) == (2, True)
    seen = terminal.look("answer", "job", types="yes\n")
    assert "  -old\n  +new\n" in seen
    assert (tmp_path / "a.txt").read_text() == "new\n"
    gone = terminal.look("answer", "job")
    assert "has no open question (completed)" in gone


@pytest.mark.parametrize("cache", ["kept", "edited", "gone"])
def test_what_is_shown_is_the_call_that_runs_whatever_is_stored_beside_it(tmp_path: Path, cache: str) -> None:
    terminal = _project(tmp_path, reply("", ("exec", {"command": "sh", "args": ["-c", "touch made"]})))
    stopped = terminal.call("run", "a", "q", "--job-id", "job", attended=True)
    (asked,) = [event for event in stopped.events if event["type"] == "requestApproval"]
    (log,) = terminal.jobs().glob("job/runs/*/events.jsonl")
    payloads = [json.loads(line) for line in log.read_text().splitlines()]
    for payload in payloads:
        for name in ("digest", "hash", "batch"):
            payload.pop(name, None)
        if payload["type"] == "requestApproval":
            payload["args"] = {"command": "ls"}
    head, lines = EMPTY_LOG, list[bytes]()
    for payload in payloads:
        sealed, head = seal(head, [json.dumps(payload, separators=(",", ":")).encode()])
        lines += sealed
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    summary = terminal.jobs() / "job" / "job.json"
    if cache == "gone":
        summary.unlink()
    elif cache == "edited":
        summary.write_text(summary.read_text().replace("touch made", "true"))
    shown = terminal.call("inbox").out
    assert "runs: ls" not in shown
    assert "runs: true" not in shown
    assert terminal.call("answer", asked["id"], "no").code in (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("keys", "decided"),
    [("1", "once"), ("2", "job"), ("3", "job"), ("5", "no"), ("n not on a Friday\n", "no"), ("yex\bs\n", "once")],
)
def test_one_key_is_an_answer_at_a_terminal(tmp_path: Path, keys: str, decided: str) -> None:
    terminal = _project(tmp_path, reply("", EDIT), reply("Done."))
    seen = terminal.look("run", "a", "q", "--job-id", "job", types=keys if keys.endswith("\n") else f"{keys}\n")
    assert "a completed" in seen
    (line,) = [line for line in terminal.log_of("job-1").read_text().splitlines() if '"decideApproval"' in line]
    event = json.loads(line)
    assert (event["decision"], event.get("text", "")) == (decided, "not on a Friday" if "Friday" in keys else "")
