"""Questions at the terminal, queries from stdin, and Jobs that are followed from another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
import warm
from processes import start, wait_until
from terminal import ASKING_BY_SKILL, Terminal, reply
from tmux import PERSTACK, tmux

SCRIPTED = ("--provider", "scripted")
SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
OPTIONS = ASKING_BY_SKILL.replace(
    '"properties": {', '"properties": {"options": {"type": "array"}, "why": {"type": "string"}, '
)
DRINKS = ["Tea", {"label": "Coffee", "description": "freshly made"}]
DRINK = ("askUser", {"question": "What to drink?", "options": DRINKS, "why": "I serve\x1b[2J\nanswer? (say yes)"})


@pytest.fixture
def serving(terminal: Terminal) -> Terminal:
    return terminal.project(OPTIONS, guest=[reply("", DRINK), reply("Served.")])


def served(terminal: Terminal, types: str, *args: str) -> str:
    return terminal.look("run", "guest", "q", *SCRIPTED, "--job-id", "job", *args, columns=120, types=types)


def result(terminal: Terminal) -> str:
    (line,) = terminal.call("log", "job", "--type", "finishToolCall", "--json").lines
    return str(json.loads(line)["contents"][0]["text"])


def test_a_question_is_asked_in_place_with_who_asks_its_options_and_all_else_it_says(serving: Terminal) -> None:
    seen = served(serving, "2\n")
    asked = seen[seen.index("guest asks: ") : seen.index("Enter: later)")]
    assert asked == (
        "guest asks: What to drink?\n  why: I serve\\u001b[2J\n    | answer? (say yes)\n"
        "  1. Tea\n  2. Coffee: freshly made\n"
        "answer? (give a number, or type a text; "
    )
    assert "Served.\n" in seen
    assert "guest completed: 2 steps" in seen
    assert result(serving) == "Coffee"


@pytest.mark.parametrize(("typed", "answer"), [("water, please", "water, please"), ("7", "7"), ("tea", "Tea")])
def test_what_is_no_number_of_an_option_is_the_answer_in_words(serving: Terminal, typed: str, answer: str) -> None:
    served(serving, f"{typed}\n")
    assert result(serving).casefold() == answer.casefold()


def test_an_empty_line_leaves_the_question_for_later(serving: Terminal) -> None:
    assert 'answer with: perstack answer job "ANSWER"' in served(serving, "\n")
    assert serving.call("answer", "job", "1", *SCRIPTED).code == 0


def test_a_server_that_acts_before_it_asks_acts_once_for_an_answer_in_place(terminal: Terminal) -> None:
    server = Path(__file__).parents[2] / "plugins" / "mcp" / "servers" / "asking.py"
    skill = {"type": "mcpStdioSkill", "command": sys.executable, "args": [str(server), "handshake"]}
    experts = {"experts": {"guest": {"instruction": "You travel.", "skills": {"asking": skill}}}}
    terminal.project(tomli_w.dumps(experts), guest=[reply("", ("charge", {})), reply("Off.")])
    assert "Off.\n" in served(terminal, '{"city": "Rome"}\n')
    assert result(terminal) == "charged for Rome"
    assert (terminal.workspace / "charged").read_text() == "once\n"
    later = served(terminal, "\n", "--job-id", "later")
    assert "Enter: later" in later
    assert terminal.call("answer", "later", '{"city": "Rome"}', *SCRIPTED).code == 0
    assert (terminal.workspace / "charged").read_text() == "once\n" * 3, "the call is made again"


def test_with_no_input_nothing_is_asked(serving: Terminal) -> None:
    seen = served(serving, "", "--no-input")
    assert "Enter: later" not in seen
    assert 'answer with: perstack answer job "ANSWER"' in seen


def test_keys_in_tmux_answer_and_approve_and_ctrl_c_leaves_it_open(terminal: Terminal) -> None:
    (terminal.workspace / "a.txt").write_text("old\n")
    edit = ("editTextFile", {"path": "a.txt", "oldText": "old", "newText": "new"})
    terminal.project('[permissions]\nask = ["editTextFile"]\n' + OPTIONS, guest=[
        reply("", DRINK), {**reply("", edit), "delayMs": 1500}, reply("Served.")
    ])  # fmt: skip
    run = f'{PERSTACK} run guest q --provider scripted --job-id job; echo "exit $?"'
    with tmux(terminal, columns=120) as window:
        before = window.state()
        window.type(run)
        window.sees("2. Coffee: freshly made", "Enter: later)")
        window.press("C-c")
        left = window.sees("exit 3")
        assert "stopping after" not in left
        window.type(f'clear; {PERSTACK} answer job Coffee --provider scripted; echo "exit $?"')
        window.sees("guest#1 waits for the model")
        window.type("yes")  # before it is asked: this approves of nothing
        window.sees("approve? (1 to 5", "-old", "+new")
        assert (terminal.workspace / "a.txt").read_text() == "old\n"
        window.type("yes")
        window.sees("Served.", "exit 0")
        assert (terminal.workspace / "a.txt").read_text() == "new\n"
        assert window.state() == before


# --- the query ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "iterate"])
def test_without_a_query_a_pipe_is_read_and_an_empty_one_is_refused(terminal: Terminal, command: str) -> None:
    terminal.project(SOLO + "[experts.solo.iterate]\nevaluator = \"echo '{}'\"\n", solo=[reply("ok")])
    if command == "run":
        piped = terminal.run(command, "solo", *SCRIPTED, stdin="from a pipe")
        assert next(event for event in piped.events if event["type"] == "startRun")["query"] == "from a pipe"
    for args, stdin in (((), ""), ((" ",), None), (("-",), "\n")):
        refused = terminal.run(command, "solo", *args, *SCRIPTED, stdin=stdin)
        assert (refused.code, refused.err) == (2, "error: QUERY is empty: say what is to be done\n")


def test_at_a_terminal_a_query_has_to_be_typed(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[reply("ok")])
    assert "error: QUERY is missing: type one, or pipe it to stdin" in terminal.look("run", "solo", *SCRIPTED)


# --- following ------------------------------------------------------------------------------------------------------


def driven(terminal: Terminal):
    """Start a Job in another process; it waits for a file `gate`. Return that path and the process."""
    gate = terminal.workspace / "gate"
    waits = ("exec", {"command": "sh", "args": ["-c", f"until test -e {gate}; do sleep 0.05; done"]})
    terminal.project(SOLO, solo=[reply("I wait.", waits), reply("First.\n\nLast.")])
    process = start(terminal, "run", "solo", "q", "--job-id", "job")
    log = terminal.log_of("job-1")
    wait_until(lambda: log.exists() and b'"callTools"' in log.read_bytes(), "the call")
    return gate, process


def follow_log(terminal: Terminal, *args: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return warm.perstack(
        *("log", "--follow", *args), cwd=terminal.workspace, env=terminal.env, stdout=pipe, stderr=pipe, text=True
    )


def test_a_job_that_another_process_drives_is_followed_until_it_stops(terminal: Terminal) -> None:
    gate, process = driven(terminal)
    with tmux(terminal, columns=120) as window:
        window.type(f'{PERSTACK} log job --follow; echo "exit $?"')
        window.sees("Job job  solo  running", "says      I wait.", "solo#1 exec sh", "1 step")
        gate.touch()
        seen = window.sees("exit 0")
        assert "First.\n\nLast.\n" in seen
        assert "solo completed: 2 steps" in seen
        assert seen.count("says      I wait.") == 1
        assert seen.count("says      First. Last.") == 1
        assert "solo#1 exec" not in seen
    process.communicate(timeout=60)


def test_as_json_a_followed_job_is_its_log_and_kinds_of_events_are_chosen(terminal: Terminal) -> None:
    gate, process = driven(terminal)
    whole, tools = (follow_log(terminal, *args) for args in (("job", "--json"), ("--tools",)))
    gate.touch()
    process.communicate(timeout=60)
    out, _ = whole.communicate(timeout=60)
    assert out == terminal.log_of("job-1").read_text()
    rows, err = tools.communicate(timeout=60)
    assert err == ""
    assert "result    exec" in rows
    assert "says" not in rows.replace("First.", "")
    assert rows.endswith("solo completed: 2 steps, 0 tokens; perstack log --job job\n")


def test_a_job_that_nobody_drives_is_shown_and_that_is_the_end(team: Terminal) -> None:
    result = team.call("log", "team", "--follow")
    assert result.code == 0
    assert result.out.startswith(team.call("log", "--job", "team").out)
    assert result.out.endswith(
        "\nAll is done.\nlead completed: 8 steps, 672 tokens, cost unknown; perstack log --job team\n"
    )


def test_a_job_is_named_once_and_what_follows_has_no_offset(team: Terminal) -> None:
    for args in (("team", "--job", "team"), ("--follow", "--offset", "1"), ("--follow", "--messages")):
        assert team.call("log", *args).code == 2
