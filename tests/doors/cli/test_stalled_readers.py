"""Readers of stdout and stderr that stall, are slow, or leave while much still waits for them: no Job notices."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import warm
from processes import wait_until
from terminal import SECONDS, Terminal, reply

from perstack.doors.shared import output_stream
from perstack.doors.shared.output_stream import OutputChannel

SOLO = 'maxRepeats = 0\n[experts.solo]\ninstruction = "You work alone."\n'
BIG = "x" * 40_000
STEPS = 8
"""Steps of the Job. Their texts alone exceed the buffer of a pipe or a terminal."""


def talkative(terminal: Terminal) -> Terminal:
    """Write a project whose Expert produces much output in each of many steps."""
    lines = "\n".join(f"line {number} {'y' * 70}" for number in range(500))
    steps = [reply(f"{number} {lines}", ("todo", {"newTodos": [f"{number} {BIG}"]})) for number in range(STEPS)]
    return terminal.project(SOLO, solo=[*steps, reply("The end.")])


def is_completed(terminal: Terminal, run_id: str = "job-1") -> bool:
    log = terminal.log_of(run_id)
    return log.exists() and b'"type":"finishRun"' in log.read_bytes()


class Unread:
    """A command whose stdout (with `shares` also its stderr) is a pipe or a terminal that nobody reads yet."""

    def __init__(self, terminal: Terminal, *args: str, tty: bool = False, shares: bool = False, term: str = "dumb"):
        self.seen = b""
        self.ours, theirs = pty.openpty() if tty else os.pipe()
        self.process: subprocess.Popen[bytes] = warm.perstack(
            *args,
            cwd=terminal.workspace,
            env={**terminal.env, "TERM": term, "COLUMNS": "500", "LINES": "24"},
            stdin=theirs if tty else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs if tty or shares else subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs)

    def read(self) -> bytes:
        """Return all output up to the end of the command."""
        with suppress(OSError):  # Linux says EIO when the last process has closed the other end of a terminal
            while piece := os.read(self.ours, 1 << 16):
                self.seen += piece
        return self.seen

    def end(self) -> int:
        return self.process.wait(SECONDS)


@contextmanager
def unread(terminal: Terminal, *args: str, **options: Any) -> Iterator[Unread]:
    found = Unread(terminal, *args, **options)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
        found.process.wait()
        with suppress(OSError):
            os.close(found.ours)


@pytest.mark.parametrize("shares", [False, True], ids=["stdout", "stdout and stderr in one pipe"])
def test_a_job_is_completed_while_nobody_reads_its_events_and_none_is_lost(terminal: Terminal, shares: bool) -> None:
    args = ("run", "solo", "q", "--job-id", "job", "--provider", "scripted")
    with unread(talkative(terminal), *args, shares=shares) as command:
        wait_until(lambda: is_completed(terminal), "the Job to be completed")
        assert command.process.poll() is None, "it has left what it wrote unread"
        seen = command.read().splitlines()
        assert command.end() == 0
    written = [line for line in seen if b'"prev"' in line or line in terminal.log_of("job-1").read_bytes()]
    assert written == terminal.log_of("job-1").read_bytes().splitlines()


@pytest.mark.parametrize(
    "args",
    [
        ("run", "solo", "q", "--job-id", "job", "--output", "human"),
        ("run", "solo", "q", "--job-id", "job", "--stream", "--output", "jsonl"),
        ("start", "solo", "q", "--plain"),
        ("start", "solo", "q"),
    ],
    ids=["for a person", "streamed", "line by line", "full screen"],
)
@pytest.mark.parametrize("term", ["dumb", "xterm-256color"])
def test_a_terminal_that_is_halted_halts_no_job(terminal: Terminal, args: tuple[str, ...], term: str) -> None:
    if args == ("start", "solo", "q") and term == "dumb":
        pytest.skip("that is line by line")

    def has_completed_job() -> bool:
        return any(is_completed(terminal, f"{job.name}-1") for job in terminal.jobs().glob("*"))

    talkative(terminal)
    if args == ("start", "solo", "q"):  # more frames than the library that draws them keeps
        steps = [{**reply(f"{number}", ("todo", {"newTodos": ["a"]})), "delayMs": 60} for number in range(60)]
        terminal.script(solo=[*steps, reply("The end.")])
    with unread(terminal, *args, "--provider", "scripted", tty=True, term=term) as command:
        wait_until(has_completed_job, "the Job to be completed")
        if args[0] == "run":
            assert b"The end." in command.read()
            assert command.end() == 0
            return
        reader = threading.Thread(target=command.read)
        reader.start()
        wait_until(lambda: b"The end." in command.seen, "the end to be shown")
        command.process.terminate()
        assert command.end() == 130
        reader.join(SECONDS)


ASKS = "ask = true\n"


@pytest.mark.parametrize("doing", ["driving a Job", "asking", "nothing"])
def test_start_whose_terminal_has_gone_without_a_hangup_completes_its_job_and_ends(
    terminal: Terminal, doing: str
) -> None:
    """The terminal is not its controlling one, so no SIGHUP says that it has gone."""
    steps = [{**reply(f"{number}", ("todo", {"newTodos": ["a"]})), "delayMs": 60} for number in range(60)]
    if doing == "asking":
        steps = [reply("", ("askUser", {"question": "Sure?"}))]
    terminal.project(SOLO + ASKS, solo=[*steps, reply("The end.")])
    query = () if doing == "nothing" else ("solo", "q")
    with unread(terminal, "start", *query, "--provider", "scripted", tty=True, term="xterm-256color") as command:
        while (b"Sure?" if doing == "asking" else b"solo") not in command.seen:
            command.seen += os.read(command.ours, 1 << 16)
        os.close(command.ours)
        assert command.end() in (1, 130)  # 1: its last words cannot be written
    assert [is_completed(terminal, f"{job.name}-1") for job in terminal.jobs().glob("*")] == {
        "driving a Job": [True],
        "asking": [False],
        "nothing": [],
    }[doing]


@pytest.mark.parametrize("tty", [False, True], ids=["a pipe", "a terminal"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_command_whose_reader_stays_stalled(
    terminal: Terminal, number: signal.Signals, tty: bool
) -> None:
    talkative(terminal)
    script = json.loads((terminal.workspace / "script.json").read_text())
    script["experts"]["solo"]["turns"][-1]["delayMs"] = 60_000
    (terminal.workspace / "script.json").write_text(json.dumps(script))
    args = ("run", "solo", "q", "--job-id", "job", "--output", "jsonl", "--provider", "scripted")
    with unread(terminal, *args, tty=tty) as command:
        wait_until(lambda: _steps(terminal) == STEPS, "the last step")
        command.process.send_signal(number)
        assert command.end() == 130
    assert b'"type":"stopRunByInterrupt"' in terminal.log_of("job-1").read_bytes()


def _steps(terminal: Terminal) -> int:
    log = terminal.log_of("job-1")
    return log.read_bytes().count(b'"type":"finishStep"') if log.exists() else 0


def test_ctrl_c_ends_a_command_that_waits_at_its_end_for_its_reader(terminal: Terminal) -> None:
    args = ("run", "solo", "q", "--job-id", "job", "--provider", "scripted")
    with unread(talkative(terminal), *args) as command:
        job = terminal.jobs() / "job" / "job.json"
        wait_until(lambda: job.exists() and json.loads(job.read_bytes())["status"] == "completed", "the end of the Job")

        def has_left() -> bool:
            command.process.send_signal(signal.SIGINT)
            return command.process.poll() is not None

        wait_until(has_left, "the process to leave")
        assert command.process.returncode in (130, -signal.SIGINT)


def test_a_reader_that_leaves_while_much_waits_for_it_interrupts_the_job(terminal: Terminal) -> None:
    talkative(terminal)
    script = json.loads((terminal.workspace / "script.json").read_text())
    script["experts"]["solo"]["turns"][-1]["delayMs"] = 3_000
    script["experts"]["solo"]["turns"][-1]["tools"] = [{"name": "todo", "input": {"newTodos": ["more"]}}]
    script["experts"]["solo"]["turns"] += [{"text": "", "delayMs": 60_000}]
    (terminal.workspace / "script.json").write_text(json.dumps(script))
    args = ("run", "solo", "q", "--job-id", "job", "--provider", "scripted")
    with unread(terminal, *args) as command:
        wait_until(lambda: _steps(terminal) == STEPS, "the last step")
        os.close(command.ours)
        assert command.end() == 130
    assert b'"type":"stopRunByInterrupt"' in terminal.log_of("job-1").read_bytes()


def test_a_log_that_is_followed_waits_for_its_reader_and_loses_no_line(terminal: Terminal) -> None:
    terminal_run = ("run", "solo", "q", "--job-id", "job", "--provider", "scripted")
    assert talkative(terminal).run(*terminal_run).code == 0
    with unread(terminal, "log", "job", "--follow", "--json") as command:
        seen = command.read()
        assert command.end() == 0
    assert seen == terminal.log_of("job-1").read_bytes()


# --- the stream itself -----------------------------------------------------------------------------------------------


@contextmanager
def channel() -> Iterator[tuple[OutputChannel, int]]:
    """Yield a channel to a pipe, and the end to read. It is discarded at the end, which ends its thread."""
    ours, theirs = os.pipe()
    output = OutputChannel(theirs, os.fstat(theirs))
    try:
        yield output, ours
    finally:
        output.discard()
        for fd in (ours, theirs):
            with suppress(OSError):
                os.close(fd)


def in_a_loop(work: Any) -> None:
    import asyncio

    async def main() -> None:
        work()

    asyncio.run(main())


def read_all(fd: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += os.read(fd, 1 << 16)
    return found


@pytest.mark.parametrize("memory", [1, 100_000, 1 << 30])
def test_what_waits_keeps_its_order_in_memory_and_in_a_file(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_stream, "_MEMORY_BYTES", memory)
    pieces = [f"{number} ".encode() * 1_000 for number in range(200)]
    with channel() as (made, ours):
        for _ in range(2):  # once more after it was empty
            in_a_loop(lambda: [made.write(piece) for piece in pieces])
            assert made.pending > 0
            assert read_all(ours, sum(map(len, pieces))) == b"".join(pieces)
            assert made.drain(SECONDS)


def test_an_event_loop_waits_for_a_stalled_reader_once_and_not_at_each_write(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    with channel() as (made, _):
        plain = made._changed.wait_for
        monkeypatch.setattr(
            made._changed,
            "wait_for",
            lambda condition, timeout=None: (
                threading.current_thread() is threading.main_thread() and waited.append(timeout),
                plain(condition, timeout),
            )[1],
        )
        in_a_loop(lambda: [made.write(b"x" * 100_000) for _ in range(50)])
    assert sum(seconds or 0 for seconds in waited) <= 0.02
    assert None not in waited


def test_an_error_of_a_write_that_waited_is_raised_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with channel() as (made, ours):
        in_a_loop(lambda: made.write(b"x" * 200_000))
        os.close(ours)
        wait_until(lambda: made.pending == 0, "the write to fail")
        with pytest.raises(BrokenPipeError):
            in_a_loop(lambda: made.write(b"more"))
        with pytest.raises(BrokenPipeError):
            made.drain(0)
        made.discard()
        made.write(b"nobody")


def test_a_pipe_that_another_program_has_made_non_blocking_is_written_whole() -> None:
    with channel() as (made, ours):
        os.set_blocking(made.fd, False)
        reader_saw: list[bytes] = []
        reader = threading.Thread(target=lambda: reader_saw.append(read_all(ours, 600_000)))
        reader.start()
        made.write(b"a" * 300_000)
        in_a_loop(lambda: made.write(b"b" * 300_000))
        reader.join(SECONDS)
        assert reader_saw == [b"a" * 300_000 + b"b" * 300_000]


def test_a_child_of_a_process_whose_reader_is_behind_does_not_write_its_parents_words_again() -> None:
    with channel() as (made, ours):
        output_stream._channels.append(made)
        try:
            in_a_loop(lambda: made.write(b"p" * 100_000))
            pid = os.fork()
            if pid == 0:
                with suppress(BaseException):
                    assert made.pending == 0
                    os._exit(0)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert read_all(ours, 100_000) == b"p" * 100_000
        finally:
            output_stream._channels.remove(made)
