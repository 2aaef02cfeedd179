"""The real program in tmux, driven by keys: the screen while a Job runs, and after every way out."""

from __future__ import annotations

import pytest
from terminal import TEAM, Terminal, reply
from tmux import PERSTACK, tmux

SOLO = '[experts.solo]\ninstruction = "You work alone."\n'
DELAY = {"delayMs": 60_000}
RUN = f'{PERSTACK} run solo "Make it" --provider scripted --job-id job; echo "exit $?"'


def test_text_streams_a_tool_is_seen_at_work_and_the_result_stands_in_full(terminal: Terminal) -> None:
    gate = terminal.workspace / "gate"
    waits = ("exec", {"command": "sh", "args": ["-c", f"until test -e {gate}; do sleep 0.05; done"]})
    terminal.project(SOLO, solo=[reply("I look.", waits, usage=(1200, 30)), reply("First line.\n\nLast line.")])
    with tmux(terminal) as window:
        before = window.state()
        window.type(RUN)
        window.sees("\n  I look.\ncalls: exec sh", "solo#1 exec sh", "1 step, 1,200 + 30 tokens", "context")
        gate.touch()
        seen = window.sees("exit 0")
        assert "\n  First line.\n\n  Last line.\nsolo completed: 2 steps" in seen
        assert seen.count("Last line.") == 1
        assert "solo#1 exec" not in seen, "what was going on is gone"
        assert window.state() == before


def test_words_are_seen_as_they_come_and_ctrl_c_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    terminal.project(SOLO, solo=[{**reply("Once upon a time"), **DELAY}])
    with tmux(terminal) as window:
        before = window.state()
        window.type(RUN)
        window.sees("\n  Once\n1 step, ")
        window.press("C-c")
        seen = window.sees("exit 130")
        assert "\n  Once …\nstopped: by interrupt" in seen, "what had come stays"
        assert "continue with: perstack resume job" in seen
        assert window.state() == before
        terminal.script(solo=[reply("Well, the end.")])
        window.type("clear; " + RUN.replace('run solo "Make it"', "resume").replace("--job-id", ""))
        assert "resumes: after an interrupt" in window.sees("  Well, the end.\n", "exit 0")


def test_a_second_ctrl_c_and_a_kill_leave_the_terminal_as_it_was(terminal: Terminal) -> None:
    stubborn = ("exec", {"command": "sh", "args": ["-c", "trap '' TERM; while :; do sleep 0.05; done"]})
    terminal.project(SOLO, solo=[reply("", stubborn)])
    with tmux(terminal) as window:
        before = window.state()
        window.type(RUN)
        window.sees("solo#1 exec")
        window.press("C-c")
        window.sees("press again to stop at once")
        window.press("C-c")
        window.sees("exit 130")
        assert window.state() == before
        terminal.script(solo=[{**reply("Once upon a time"), **DELAY}])
        window.type(RUN.replace("--job-id job", "--job-id other"))
        window.sees("\n  Once\n")
        window.press("C-z")
        window.sees("Stopped")
        window.type("kill -9 %1; wait %1; clear")
        assert window.state() == before


def test_delegates_have_a_lane_each(terminal: Terminal) -> None:
    ask = ("helper", {"query": "part"})
    terminal.project(TEAM, lead=[reply("", ask, ask)], helper=[{**reply("A part of it"), **DELAY}])
    with tmux(terminal, columns=120) as window:
        window.type(RUN.replace("run solo", "run lead"))
        window.sees("lead#1   waits for helper#2, helper#3", "helper#2 A", "helper#3 A")
        window.press("C-c")
        window.sees("exit 130")


@pytest.mark.parametrize(("columns", "env"), [(30, {}), (80, {"TERM": "dumb"})])
def test_a_narrow_or_dumb_terminal_only_gets_line_after_line(
    terminal: Terminal, columns: int, env: dict[str, str]
) -> None:
    terminal.project(SOLO, solo=[reply("", ("todo", {"newTodos": ["a"]})), reply("Word " * 30)])
    with tmux(terminal, columns=columns, env=env) as window:
        window.type(
            f"{RUN} | cat -v > /dev/null; {RUN.replace('--job-id job', '')} ".replace("; echo", " 2>&1; echo", 1)
        )
        seen = window.sees("exit 0", "Word Word")
        assert "step," not in seen
        assert "calls: todo" in seen


def test_a_window_that_is_made_narrower_keeps_no_old_lines(terminal: Terminal) -> None:
    gate = terminal.workspace / "gate"
    waits = ("exec", {"command": "sh", "args": ["-c", f"until test -e {gate}; do sleep 0.05; done"]})
    terminal.project(SOLO, solo=[reply("", waits), reply("Done.")])
    with tmux(terminal, columns=120) as window:
        window.type(RUN)
        window.sees("solo#1 exec sh", "1 step, ")
        window.resize(50, 30)
        gate.touch()
        seen = window.sees("exit 0")
        assert "1 step, " not in seen
        assert "solo#1 exec" not in seen
