"""The linear mode from start to exit."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from contextlib import suppress
from dataclasses import replace

from perstack.doors.shared.consent import TERMINAL, fitted_change
from perstack.doors.shared.live_project import ReloadedProject
from perstack.doors.shared.next_step_phrases import plain_phrase
from perstack.doors.shared.screen import Screen, StyledText, sanitized
from perstack.doors.shared.signals import INTERRUPTED, exit_now, handle_stop_signals
from perstack.host import Host
from perstack.next_steps import Note
from perstack.toml_reader.definition_with_includes import LoadedProject
from perstack_tui.plain.program import PlainProgram

# Input lines from a terminal in line mode, which edits them itself.

_MAX_LINE_BYTES = 4_094  # maximum bytes of a line: Linux keeps 4,095 of a longer one and drops the rest silently


class _CutLine(str):
    """A line that the terminal has cut off."""


class _LineReader:
    """Reader of typed lines that never blocks; listens while its context is entered."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._partial_line = b""
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    def __enter__(self) -> _LineReader:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    async def line(self) -> str | None:
        """Return the next line without its end; None at Ctrl-D or a closed terminal, until more is typed."""
        if self._lines.empty():
            self._listen()
        return await self._lines.get()

    def discard(self) -> None:
        """Drop earlier input, which cannot be an answer to a new question."""
        with suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)
        self._partial_line = b""
        while not self._lines.empty():
            self._lines.get_nowait()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            data = b""
        if not data:  # stop listening until the next call of `line`, or the loop would spin at the end of input
            asyncio.get_running_loop().remove_reader(self._fd)
            self._lines.put_nowait(None)
            return
        *complete, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in complete:
            text = line.decode("utf-8", "replace").removesuffix("\r")
            self._lines.put_nowait(_CutLine(text) if len(line) >= _MAX_LINE_BYTES else text)


def run_plain(
    host: Host,
    loaded: LoadedProject,
    *,
    expert: str | None = None,
    query: str | None = None,
    job: str | None = None,
    drives: bool = False,
) -> int:
    """Run until the user leaves, and return the exit status. All stop signals but Ctrl-C leave."""
    return asyncio.run(_run(host, loaded, expert, query, job, drives))


async def _run(
    host: Host, loaded: LoadedProject, expert: str | None, query: str | None, job: str | None, drives: bool
) -> int:
    code = 0
    leave_tasks: list[asyncio.Task[None]] = []

    def stop() -> None:
        nonlocal code
        code = INTERRUPTED
        leave_tasks.append(asyncio.ensure_future(program.leave()))

    def write_line(*parts: str | StyledText) -> None:
        try:
            print(sanitized(parts).rstrip(" "), flush=True)  # noqa: T201 - printing is the purpose of this mode
        except OSError:  # the program that reads the output has ended
            if not leave_tasks:
                stop()

    def interrupt() -> None:
        if not program.interrupt():
            exit_now()

    live = ReloadedProject(loaded)
    async with host:
        job_id = await host.jobs.complete_id(job)
        with handle_stop_signals(stop, interrupt=interrupt), _LineReader(sys.stdin.fileno()) as keyboard:
            program = PlainProgram(host, live, write_line, screen=_screen, discard=keyboard.discard, drives=drives)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_read_lines(program, keyboard)),
                    group.create_task(_follow_definitions(program, live)),
                ]
                try:
                    program.begin(expert, query, job_id)
                    await program.has_left.wait()
                finally:
                    for task in tasks:
                        task.cancel()
                    await program.leave()
    return code


def _screen() -> Screen:
    return replace(Screen.of_stdout(), colours=False)  # a screen reader must not read a title


async def _read_lines(program: PlainProgram, keyboard: _LineReader) -> None:
    while True:
        line = await keyboard.line()
        if line is None:
            await program.on_end()
        elif isinstance(line, _CutLine):
            program.on_cut_line()
        else:
            await program.on_line(line)


async def _follow_definitions(program: PlainProgram, live: ReloadedProject) -> None:
    """Use changed definitions. Show a problem only if stderr, where it is reported, is not this terminal."""
    offered_digest: str | None = None
    problem: Note | None = None
    with suppress(asyncio.CancelledError):
        async for is_new in live.changes():
            if is_new:
                program.host.use(live.loaded.project)
            is_new_problem, problem = live.problem != problem, live.problem
            if is_new_problem and problem is not None and not sys.stderr.isatty():
                program.write_line(problem.text_for(plain_phrase))
            change = live.open_change
            if change is not None and change.digest != offered_digest:
                offered_digest = change.digest
                page = fitted_change(change, TERMINAL)
                program.write_line(page.text)
                if page.is_whole:
                    program.write_line("> /agree uses the changed definition; until then the previous one is used")
