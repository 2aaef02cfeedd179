"""Asking a command whether something has come."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import from_json

_PATIENCE = 60.0
"""Seconds that a command may take."""


@dataclass(frozen=True, slots=True)
class Word:
    """What the command says."""

    has_come: bool
    value: JsonValue = None


async def ask_command(command: Sequence[str], directory: Path, env: Mapping[str, str]) -> Word:
    """Exit status 0 says that it has come, with what is on stdout, as JSON if it is some.

    A command that cannot be started, or takes longer than a minute, says nothing. It and all of its group are ended.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=directory, env=dict(env), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True
        )
    except OSError:
        return Word(has_come=False)
    try:
        async with asyncio.timeout(_PATIENCE):
            said, _ = await process.communicate()
    except TimeoutError:
        return Word(has_come=False)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return Word(process.returncode == 0, _value(said))


def _value(said: bytes) -> JsonValue:
    try:
        value: JsonValue = from_json(said)
    except ValueError:
        return said.decode(errors="replace").strip() or None
    return value
