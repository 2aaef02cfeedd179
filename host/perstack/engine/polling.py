"""Asking a command whether something has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import from_json

from perstack.core.secret_text import masked_command
from perstack.core.tasks.waking import PollResult
from perstack.core.tasks.words import MOST_STATE
from perstack.engine.programs import ask_program
from perstack.errors import SkillError
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime

_PATIENCE = 60_000
"""Milliseconds that a command may take."""


async def ask_command(
    command: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
    programs: Path | None = None,
    runtime: Runtime = LOCAL_RUNTIME,
) -> PollResult:
    """Exit status 0 says that it has come, with what is on stdout, as JSON if it is some.

    While it runs it is recorded in the folder `programs`, if one is given. Raises SkillError if the command cannot be
    started, takes longer than a minute, or says more than a task can hold.
    """
    name = f"command `{masked_command(command)}`"
    said = await ask_program(name, command, directory, env, _PATIENCE, records=programs, runtime=runtime)
    if said.status != 0:
        return PollResult(has_come=False)
    if len(said.out) > MOST_STATE:
        raise SkillError(f"{name} wrote {len(said.out):,} bytes to stdout, and a task's input may have {MOST_STATE:,}")
    return PollResult(has_come=True, value=_value(said.out))


def _value(said: bytes) -> JsonValue:
    try:
        value: JsonValue = from_json(said)
    except ValueError:
        return said.decode(errors="replace").strip() or None
    return value
