"""Running a program of the user's to its end, for what it answers."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack.ports.processes.group import signal_group
from perstack.ports.processes.owned import owned
from perstack.ports.processes.start import started
from perstack.ports.runtime import LOCAL_RUNTIME, Program, Runtime

MOST_OUTPUT = 16 << 20
"""Bytes that a program may write to stdout."""

_MOST_ERROR = 400
_CHUNK = 1 << 16
_CHUNKS_LEFT = 32
"""How much is read at the end: more than a pipe holds, and not what somebody who stays behind goes on writing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What it said when it had ended."""

    status: int
    out: bytes
    last_words: str
    """The last line of its stderr, shortened."""


async def ask_program(
    name: str,
    argv: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
    timeout: int,
    given: bytes = b"",
    records: Path | None = None,
    runtime: Runtime = LOCAL_RUNTIME,
    readable: tuple[Path, ...] = (),
) -> Answer:
    """Run it in a directory, with `given` on stdin and for at most `timeout` milliseconds; nothing of it is left.

    While it runs it is recorded in the folder `records`, if one is given. `readable` is what it must be able to read
    besides. Raises SkillError, which begins with `name`, if it cannot be started, does not end in time, is ended by a
    signal or a limit of its runtime, or writes too much: then it is ended at once.
    """
    with tempfile.TemporaryFile() as stdin, _Output() as out, _Output() as err:
        stdin.write(given)
        stdin.seek(0)
        program = Program(
            tuple(argv), directory, env, stdin, out.to_write, err.to_write, records=records, readable=readable
        )
        try:
            process = await started(asyncio.create_task(runtime.start(program)))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise SkillError(f"{name} could not be started: {reason.lower()}") from error
        out.read(MOST_OUTPUT, lambda: signal_group(process.pid, signal.SIGKILL))
        err.read_end()
        try:
            async with owned(process), asyncio.timeout(timeout / 1000):
                status = await process.wait()
        except TimeoutError as error:
            raise SkillError(f"{name} was ended after its timeout of {timeout} ms{_and(_words(err))}") from error
        said, limit = out.finished(), runtime.ending(process).limit
        if limit:
            raise SkillError(f"{name} was ended by the sandbox: {limit}{_and(_words(err))}")
        if len(said) > MOST_OUTPUT:
            raise SkillError(f"{name} wrote more than {MOST_OUTPUT:,} bytes to stdout: let it write its answer alone")
        if status < 0:
            raise SkillError(f"{name} was ended by signal {-status}{_and(_words(err))}")
        return Answer(status, said, _words(err))


class _Output:
    """What a program writes, read while it writes it. Who holds the other end later holds up nothing."""

    def __init__(self) -> None:
        self._pipe, self.to_write = os.pipe()
        os.set_blocking(self._pipe, False)
        self._data = bytearray()
        self._keep: Callable[[], None] = lambda: None
        self._is_full = False

    def __enter__(self) -> _Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._forget()
        for end in (self._pipe, self.to_write):
            with suppress(OSError):
                os.close(end)

    def read(self, most: int, too_much: Callable[[], object]) -> None:
        """Keep all; after more than `most` bytes nothing is read, and `too_much` is called."""

        def keep() -> None:
            if len(self._data) > most and not self._is_full:
                self._is_full = True
                self._forget()
                too_much()

        self._begin(keep)

    def read_end(self) -> None:
        """Keep the end alone."""

        def keep() -> None:
            del self._data[: -4 * _MOST_ERROR]

        self._begin(keep)

    def finished(self) -> bytes:
        """What was kept, with what still is in the pipe."""
        for _ in range(_CHUNKS_LEFT):
            if self._is_full or not self._take():
                break
        return bytes(self._data)

    def _begin(self, keep: Callable[[], None]) -> None:
        self._keep = keep
        os.close(self.to_write)
        self.to_write = -1
        asyncio.get_running_loop().add_reader(self._pipe, self._take)

    def _take(self) -> bool:
        """Whether there was something."""
        try:
            chunk = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._forget()
            return False
        self._data += chunk
        self._keep()
        return True

    def _forget(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)


def _and(words: str) -> str:
    return words and f": {words}"


def _words(err: _Output) -> str:
    lines = err.finished().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-_MOST_ERROR:] if lines else ""
