"""The program of a test that judges what a Job has left, by its exit status."""

from __future__ import annotations

from collections.abc import Mapping

from perstack.core.secret_text import masked_args, masked_line
from perstack.core.shell import argv_of
from perstack.engine.guarding import programs_of
from perstack.engine.programs import ask_program
from perstack.engine.setup import Setup
from perstack.errors import PerstackError
from perstack.ports.processes.environment import inherited
from perstack.ports.variables import variables_in

_MOST_WORDS = 400


async def why_it_fails(
    setup: Setup,
    expert_key: str,
    command: str | tuple[str, ...],
    given: str,
    timeout: int,
    variables: Mapping[str, str],
) -> str:
    """Run it in the workspace, where programs of the Expert run, with `given` on stdin; empty if it ends with status 0.

    It gets few variables, for it may run what a model has written: those that every program gets, those that it names
    as `${NAME}`, and these `variables`. `timeout` is in milliseconds. Nothing of it is left when this returns.
    """
    name = f"`{masked_line(command) if isinstance(command, str) else ' '.join(masked_args(command))}`"
    argv = argv_of(command)
    try:
        async with setup.ground(expert_key) as ground:
            env = inherited(setup.env, (*variables_in(argv), *ground.variables))
            env = {**env, "PWD": str(setup.workspace), **variables}
            programs = programs_of(setup.storage)
            said = await ask_program(
                name, argv, setup.workspace, env, timeout, given.encode("utf-8", "replace"), programs, ground.runtime
            )
    except PerstackError as error:
        return str(error)
    if said.status == 0:
        return ""
    lines = said.out.decode("utf-8", "replace").strip().splitlines()
    words = said.last_words or (lines[-1][-_MOST_WORDS:] if lines else "")
    return f"{name} ended with exit status {said.status}" + (f": {words}" if words else "")
