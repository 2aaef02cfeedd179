"""The real program in tmux, driven by keys, small and wide; and the terminal after every way out."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import memory_workers
import pytest
from processes import wait_until
from terminal import Terminal, reply
from tmux import PERSTACK, Tmux, tmux

DELAY = {"delayMs": 60_000}
TOML = """
[experts.writer]
permissions = { allow = ["exec"] }
description = "Writes haiku"
instruction = "You write."
[experts.releaser]
description = "Releases"
instruction = "You release."
[experts.releaser.permissions]
ask = ["writeTextFile"]
[experts.guest]
description = "Asks first"
instruction = "You ask."
ask = true
"""
START = f"{PERSTACK} start --provider scripted"


@contextmanager
def window(terminal: Terminal, size: tuple[int, int] = (80, 24), **env: str) -> Iterator[Tmux]:
    with tmux(terminal, columns=size[0], lines=size[1], env=env) as win:
        yield win


def to_panel(win: Tmux) -> None:
    """Move the focus to the panel, which does not take it right after typing."""
    if "Tab, then" in win.screen():
        win.press("Tab")


def pid_of(workspace: Path) -> int:
    """Return the process id of the program in this workspace."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if b"start" in command and b"perstack" in command and (folder / "cwd").resolve() == workspace.resolve():
                    return int(folder.name)
            except OSError:
                continue
    raise AssertionError("it does not run")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
def test_a_person_chooses_types_watches_answers_approves_interrupts_resumes_and_quits(
    terminal: Terminal, size: tuple[int, int]
) -> None:
    terminal.project(
        TOML,
        writer=[{**reply("Once upon a time"), **DELAY}],
        releaser=[reply("", ("writeTextFile", {"path": "out.txt", "text": "version 2\n"})), reply("It is out.")],
        guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")],
    )
    with window(terminal, size) as win:
        before = win.state()
        win.type(START)
        win.sees("Choose an Expert", "Writes haiku")
        win.type_on("gue")
        win.press("Enter")
        win.sees("what should guest do?")
        win.type("Serve me")
        win.sees("guest asks: Tea or coffee?", "? waits for you")
        win.type("Tea")
        win.sees("Served.", "✓ completed")
        win.press("C-t")
        win.sees("Choose an Expert")
        win.type_on("rele")
        win.press("Enter")
        win.sees("what should releaser do?")
        win.type("Release it")
        win.sees("wants to call writeTextFile", "version 2")
        to_panel(win)
        win.press("y")
        win.sees("It is out.", "✓ completed")
        assert (terminal.workspace / "out.txt").read_text() == "version 2\n"
        win.press("C-t")
        win.sees("Choose an Expert")
        win.type_on("writ")
        win.press("Enter")
        win.sees("what should writer do?")
        win.type_on("First line")
        win.press("C-j")
        win.type("second line")
        win.sees("❯ First line", "second line", "Once", "at work")
        win.press("Escape")
        win.sees("stopped by interrupt", "Enter resumes")
        win.press("Enter")
        win.sees("resumes after an interrupt", "● at work")
        win.press("C-q")
        win.sees("1 Job is at work", "keep waiting")
        win.press("i")
        win.sees("$ ")
        assert win.state() == before
        terminal.script(writer=[reply("Well, the end.")])
        win.type(f"clear; {PERSTACK} resume; echo exit $?")
        win.sees("Well, the end.", "exit 0")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])
def test_a_person_looks_into_a_past_job_branches_answers_again_and_quits(
    terminal: Terminal, size: tuple[int, int]
) -> None:
    ask = ("askUser", {"question": "Tea or coffee?", "options": ["Tea", "Coffee"]})
    terminal.project(TOML, guest=[reply("", ask), *[reply("Served.")] * 4])
    with window(terminal, size) as win:
        before = win.state()
        win.type(f"{START} guest 'Serve me'")
        win.sees("guest asks: Tea or coffee?", "2. Coffee", "? waits for you")
        win.type("1")
        win.sees("Served.", "✓ completed")
        win.press("F2")
        win.sees("History", "guest - 2 steps (", "completed", "Tab shows details")
        win.press("Tab")
        win.sees("Checkpoints", "Step 1 (", "asks", "❯ Step 2 (")
        win.press("Enter")
        win.sees("Messages", "status", "─ query", "Serve me")
        win.press("Tab")
        win.sees("since", "+ Expert", "Served.")
        win.press("Escape")
        win.sees("❯ Step 2 (")
        win.press("Tab")
        win.sees("query", "calls", "completed")
        win.press("BTab", "Home")
        win.sees("❯ Step 1 (")
        win.press("b")
        win.sees("a new query, in a branch from ", "✓ completed")
        win.type("Again")
        win.sees("❯ Again", "continues from checkpoint", "completed 3 steps")
        win.press("F2")
        win.sees("History", "guest - 3 steps (")
        win.press("Tab")
        win.sees("Step 1 (", "asks")
        win.press("Home")
        win.sees("❯ Step 1 (")
        win.press("a")
        win.sees("1. Tea", "2. Coffee", "another answer, in a branch from ")
        win.type("2")
        win.sees("with another answer", "askUser: Coffee", "completed 4 steps")
        win.press("F2")
        win.sees("History", "guest - 4 steps (")
        win.press("Tab", "BTab")
        shown = win.sees("❯ ", "─ ", "branches at", "answers again at")
        assert "failed" not in shown
        win.press("C-q")
        win.sees("$ ")
        assert win.state() == before


def test_what_takes_long_to_interrupt_is_left_at_once_by_a_second_key_and_can_be_resumed(terminal: Terminal) -> None:
    stubborn = ("exec", {"command": "sh", "args": ["-c", "trap '' TERM; touch began; while :; do sleep 0.1; done"]})
    terminal.project(TOML, writer=[reply("", stubborn), reply("Well, the end.")])
    with window(terminal) as win:
        before = win.state()
        win.type(f"{START} writer 'A story'; echo exit $?")
        wait_until((terminal.workspace / "began").exists, "the call to begin")
        win.press("C-q")
        win.sees("1 Job is at work", "keep waiting")
        win.press("i", "i")
        win.sees("exit 130")
        assert win.state() == before
        win.type(f"clear; {PERSTACK} resume; echo exit $?")
        win.sees("Well, the end.", "exit 0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGABRT])
def test_after_a_signal_the_terminal_is_as_it_was_and_the_job_can_be_resumed(
    terminal: Terminal, number: signal.Signals
) -> None:
    terminal.project(TOML, writer=[{**reply("Once upon a time"), **DELAY}])
    with window(terminal) as win:
        before = win.state()
        win.type(f"{START} writer 'A story'")
        win.sees("Once", "at work")
        os.kill(pid_of(terminal.workspace), number)
        win.sees("$ ")
        wait_until(lambda: "Once" not in win.screen(), "the other screen to be left")
        assert win.state() == before
        terminal.script(writer=[reply("Well, the end.")])
        win.type(f"clear; {PERSTACK} resume; echo exit $?")
        win.sees("Well, the end.", "exit 0")


def test_what_crashed_is_shown_as_interrupted_and_resumed_by_a_key(terminal: Terminal) -> None:
    gate = terminal.workspace / "gate"
    waits = ("exec", {"command": "sh", "args": ["-c", f"touch began; until test -e {gate}; do sleep 0.05; done"]})
    terminal.project(TOML, writer=[reply("I wait.", waits), reply("Well, the end.")])
    with window(terminal) as win:
        win.type(f"{START} writer 'A story'")
        wait_until((terminal.workspace / "began").exists, "the call to begin")
        os.kill(pid_of(terminal.workspace), signal.SIGKILL)
        win.sees("$ ")
        gate.touch()
        win.type(f"{START} --job @last")
        win.sees("interrupted the Job's process has ended", "How did they end?", "exec of writer")
        to_panel(win)
        win.press("d", "Enter")
        win.sees("settled", "Well, the end.", "✓ completed")
        win.press("C-q")
        win.sees("$ ")


def test_what_crashed_becomes_a_question_by_a_key(terminal: Terminal) -> None:
    waits = ("exec", {"command": "sh", "args": ["-c", "touch began; sleep 60"]})
    terminal.project(TOML, writer=[reply("I wait.", waits), reply("Well, the end.")])
    with window(terminal) as win:
        win.type(f"{START} writer 'A story'")
        wait_until((terminal.workspace / "began").exists, "the call to begin")
        os.kill(pid_of(terminal.workspace), signal.SIGKILL)
        win.sees("$ ")
        win.type(f"{START} --job @last")
        win.sees("How did they end?")
        to_panel(win)
        win.press("a", "Enter")
        win.sees("F3 Inbox 1")
        win.sees("What became of this call?", "1. it was done", "2. do it again", "3. no", "touch began; sleep 60")
        win.type("no: look first")
        win.sees("settled", "look first", "Well, the end.", "✓ completed")
        win.press("C-q")
        win.sees("$ ", "completed, 2 steps", "perstack run writer QUERY --continue-job")


def test_a_call_is_edited_in_the_persons_editor_and_run_so(terminal: Terminal) -> None:
    write = ("writeTextFile", {"path": "notes.md", "text": "Dear reader"})
    terminal.project(TOML, releaser=[reply("", write), reply("Released.")])
    editor = terminal.workspace / "editor.sh"
    editor.write_text('#!/bin/sh\necho "in the editor"; read line\nsed -i s/Dear/Esteemed/ "$1"\n')
    editor.chmod(0o755)
    with window(terminal, EDITOR=str(editor)) as win:
        win.type(f"{START} releaser 'Release it'")
        win.sees("e edit")
        to_panel(win)
        win.press("e")
        win.sees("in the editor")
        win.press("Enter")
        win.sees("Released.", "Esteemed reader")
        win.press("C-q")
        win.sees("$ ")
    assert (terminal.workspace / "notes.md").read_text() == "Esteemed reader"


def test_a_job_that_another_process_drives_is_followed_as_it_goes(terminal: Terminal) -> None:
    gate = terminal.workspace / "gate"
    waits = ("exec", {"command": "sh", "args": ["-c", f"until test -e {gate}; do sleep 0.05; done"]})
    terminal.project(TOML, writer=[reply("I wait.", waits), reply("Well, the end.")])
    with window(terminal) as win:
        win.type(f"{PERSTACK} run writer 'A story' --provider scripted --job-id other > out.jsonl &")
        wait_until(terminal.log_of("other-1").exists, "the Job to begin")
        win.type(f"clear; {START} --job other")
        win.sees("I wait.", "○ exec", "another process drives it")
        gate.touch()
        win.sees("Well, the end.", "✓ completed")
        win.press("C-q")
        win.sees("$ ")


def test_an_answer_is_left_to_workers_where_a_dispatcher_is_named_and_driven_here_by_an_option(
    terminal: Terminal,
) -> None:
    support = Path(memory_workers.__file__).parent
    terminal.env |= {"PERSTACK_PLUGINS": "perstack.testing.plugin,memory_workers", "PYTHONPATH": str(support)}
    terminal.project(TOML, guest=[reply("", ("askUser", {"question": "Tea or coffee?"})), reply("Served.")])
    assert terminal.run("run", "guest", "Serve me", "--job-id", "tea", "--provider", "scripted").code == 3
    with window(terminal) as win:
        before = win.state()
        win.type(f"{START} --job tea --dispatcher memory:engine")
        win.sees("guest asks: Tea or coffee?")
        win.type("Tea")
        win.sees("… waits for a worker", "Esc stops watching")
        win.press("C-q")
        win.sees("$ ")
        assert win.state() == before
        win.type(f"clear; {START} --job tea --dispatcher memory:engine --drive")
        win.sees("waits for a worker; Enter drives it here")
        win.press("Enter")
        win.sees("result askUser: Tea", "Served.", "✓ completed")
        win.press("C-q")
        win.sees("$ ")
        win.type(f"clear; {START} --job tea --dispatcher nosuch:engine")
        win.sees("error:", "nosuch", "$ ")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "vt220"}], ids=["NO_COLOR", "vt220"])
def test_without_colours_there_are_greys_only(terminal: Terminal, env: dict[str, str]) -> None:
    terminal.project(TOML, writer=[reply("Well.")])
    with window(terminal, **env) as win:
        win.type(f"{START} writer 'A story'")
        win.sees("✓ completed")
        coloured = win._tmux("capture-pane", "-p", "-e")
        import re

        for red, green, blue in re.findall(r"38;2;(\d+);(\d+);(\d+)", coloured):
            assert red == green == blue
        assert not re.search(r"\x1b\[(?:[\d;]*;)?3[1-6]m", coloured)
        win.press("C-q")
        win.sees("$ ")


def test_a_pipe_is_refused_with_what_to_use(terminal: Terminal) -> None:
    terminal.project(TOML)
    piped = terminal.run("start")
    assert (piped.code, piped.out) == (2, "")
    assert "needs a terminal: use `perstack run` in a pipe" in piped.err


def threads(pid: int) -> int:
    """Return the number of threads of a process. A joined thread may still count for a moment."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.parametrize("stop", [signal.SIGTSTP, signal.SIGSTOP], ids=["as-by-a-shell", "unasked"])
def test_a_program_that_was_stopped_is_drawn_again_and_takes_each_key_once(
    terminal: Terminal, stop: signal.Signals
) -> None:
    terminal.project(TOML, writer=[reply("Well.")])
    with window(terminal) as win:
        before = win.state()
        win.type(f"{START} writer")
        win.sees("what should writer do?")
        pid = pid_of(terminal.workspace)
        at_first = threads(pid)
        for _ in range(2):
            os.kill(pid, stop)
            wait_until(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text(), "it to be stopped")
            win.sees("Stopped")
            win.type("clear; fg")
            win.sees("perstack   1 writer", "╭──", "what should writer do?", "╰──", " new", "^Q quit")
        wait_until(lambda: threads(pid) <= at_first, "no second thread to read the keys")
        win.type("A haiku")
        win.sees("❯ A haiku", "Well.", "✓ completed")
        win.press("C-q")
        win.sees("$ ")
        assert win.state() == before
