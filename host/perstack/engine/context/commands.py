"""Asking an evaluator that is a command or a function. What it answers is read by `core.measurements`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from perstack.core.definitions import Evaluator, ExpertEvaluator, FunctionEvaluator
from perstack.core.measurements import Measurement, measurement_in, measurement_of
from perstack.core.secret_text import has_masked, masked_args, masked_line
from perstack.core.shell import argv_of
from perstack.engine.measuring import BOOTSTRAP, request
from perstack.engine.programs import ask_program
from perstack.engine.runtimes import NO_SANDBOX, Ground
from perstack.errors import SkillError
from perstack.ports.evaluator import Artifact
from perstack.ports.processes.environment import inherited
from perstack.ports.variables import variables_in


def name_of(evaluator: Evaluator) -> str:
    """What an evaluator is called in errors."""
    match evaluator:
        case str():
            return f"evaluator `{masked_line(evaluator)}`"
        case ExpertEvaluator():
            return f"evaluator Expert `{evaluator.expert}`"
        case FunctionEvaluator():
            return f"evaluator function `{evaluator.entry}`"
        case _:
            return f"evaluator `{' '.join(masked_args(evaluator))}`"


async def measure_by_command(
    command: str | tuple[str, ...],
    made: Artifact,
    env: Mapping[str, str],
    timeout: int,
    programs: Path | None = None,
    ground: Ground = NO_SANDBOX,
) -> Measurement:
    """Run it in the workspace, with the artefact on stdin, and few variables: it may run what a model has written.

    Those that it names as `${NAME}` are among them: a shell fills them in, and no argument shows them to others.
    While it runs it is recorded in the folder `programs`. Raises SkillError, which names it.
    """
    name = name_of(command)
    argv = argv_of(command)
    if has_masked(argv):
        raise SkillError(f"{name}: its secrets are not recorded, and the Expert is not in perstack.toml any more")
    child_env = inherited(env, (*variables_in(argv), *ground.variables)) | {
        "PWD": str(made.workspace),
        "PERSTACK_ITERATION": str(made.iteration),
    }
    given = made.artefact.encode()
    said = await ask_program(name, argv, made.workspace, child_env, timeout, given, programs, ground.runtime)
    try:
        return measurement_in(said.out.decode("utf-8", "replace"))
    except ValueError as error:
        words = said.last_words and f", stderr: {said.last_words}"
        raise SkillError(f"{name}: its output: {error}; exit status {said.status}{words}") from error


async def measure_by_function(
    evaluator: FunctionEvaluator,
    made: Artifact,
    timeout: int,
    programs: Path | None = None,
    hidden: str | None = None,
    ground: Ground = NO_SANDBOX,
) -> Measurement:
    """Call it, in a process of its own, which is ended if it does not return in time.

    It has the environment of this process, but for the variable `hidden`; in a sandbox only what every program there
    has, and it can read the modules of this process. Raises SkillError, which names it.
    """
    name = name_of(evaluator)
    env = {variable: value for variable, value in os.environ.items() if variable != hidden}
    directory = Path.cwd()
    readable: tuple[Path, ...] = ()
    if ground.confines:
        env, directory = inherited(env, ground.variables), made.workspace
        readable = tuple(path for path in map(Path, (*sys.path, sys.prefix, sys.base_prefix)) if path.is_absolute())
    argv = (sys.executable, "-c", BOOTSTRAP, json.dumps(sys.path))
    asked = request(evaluator.entry, made)
    said = await ask_program(name, argv, directory, env, timeout, asked, programs, ground.runtime, readable)
    try:
        found = json.loads(said.out)
    except ValueError as error:
        words = said.last_words and f", stderr: {said.last_words}"
        raise SkillError(f"{name} ended with exit status {said.status} and no answer{words}") from error
    if "missing" in found:
        raise SkillError(f"{name} is not available: {found['missing']}")
    if "raised" in found:
        raise SkillError(f"{name}: {found['raised']}")
    return measurement_of(found["measured"])
