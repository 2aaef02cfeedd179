"""Running a program of the user's to its end, for what it answers."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perstack.errors import SkillError
from perstack.ports.processes.owned import owned
from perstack.ports.processes.start import started

_MOST_OUTPUT = 16 << 20
_MOST_ERROR = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """What it said when it had ended."""

    status: int
    out: bytes
    last_words: str
    """The last line of its stderr, shortened."""


async def ask_program(
    name: str, argv: Sequence[str], directory: Path, env: Mapping[str, str], timeout: int, given: bytes = b""
) -> Answer:
    """Run it in a directory, with `given` on stdin and for at most `timeout` milliseconds; nothing of it is left.

    Raises SkillError, which begins with `name`, if it cannot be started, does not end in time, is ended by a signal,
    or writes too much.
    """
    # files, and not pipes: no process that it leaves behind can hold their end
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given)
        stdin.seek(0)
        starting = asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=out, stderr=err, cwd=directory, env=dict(env), start_new_session=True
        )
        try:
            process = await started(asyncio.create_task(starting))
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise SkillError(f"{name} could not be started: {reason.lower()}") from error
        try:
            async with owned(process), asyncio.timeout(timeout / 1000):
                status = await process.wait()
        except TimeoutError as error:
            raise SkillError(f"{name} was ended after its timeout of {timeout} ms{_and(_end_of(err))}") from error
        if status < 0:
            raise SkillError(f"{name} was ended by signal {-status}{_and(_end_of(err))}")
        size = out.seek(0, os.SEEK_END)
        if size > _MOST_OUTPUT:
            raise SkillError(f"{name} wrote {size:,} bytes to stdout: let it write its answer alone")
        out.seek(0)
        return Answer(status, out.read(), _end_of(err))


def _and(words: str) -> str:
    return words and f": {words}"


def _end_of(err: IO[bytes]) -> str:
    size = err.seek(0, os.SEEK_END)
    err.seek(max(0, size - 4 * _MOST_ERROR))
    lines = err.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-_MOST_ERROR:] if lines else ""
