"""Run commands and functions of a definition. They may run what a model has written, so each gets few variables."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import from_json

from perstack.core.base.text import argv_of
from perstack.core.definitions.experts import Evaluator, ExpertEvaluator, FunctionEvaluator
from perstack.core.secrets.masking import has_masked, masked_args, masked_command, masked_line
from perstack.engine.context.host_setup import HostSetup
from perstack.errors import PerstackError, SkillError
from perstack.iterations.evaluator_process import request
from perstack.iterations.programs import NO_SANDBOX, CommandSandbox, command_sandbox, run_program
from perstack.iterations.state import Measurement, measurement_in, measurement_of
from perstack.ports.environment import inherit_variables
from perstack.ports.evaluator import Artifact
from perstack.ports.runtime import LOCAL_RUNTIME, Runtime
from perstack.support.variables import variables_in
from perstack.system.module_path import module_path
from perstack.system.processes import python_argv
from perstack.tasks.arguments import MAX_STATE_BYTES
from perstack.tasks.due_tasks import PollResult


def evaluator_label(evaluator: Evaluator) -> str:
    """Return what messages call an evaluator, with secrets masked."""
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
    artifact: Artifact,
    env: Mapping[str, str],
    timeout_ms: int,
    programs: Path | None = None,
    sandbox: CommandSandbox = NO_SANDBOX,
) -> Measurement:
    """Run the command, with the artefact on stdin, and parse the measurement that it prints. Raises SkillError.

    Variables that the command names as `${NAME}` are in its environment, not in its arguments, which others could see.
    """
    name = evaluator_label(command)
    argv = argv_of(command)
    if has_masked(argv):
        raise SkillError(f"{name}: its secrets are not recorded, and the Expert is not in perstack.toml any more")
    child_env = inherit_variables(env, (*variables_in(argv), *sandbox.variables)) | {
        "PWD": str(artifact.workspace),
        "PERSTACK_ITERATION": str(artifact.iteration),
    }
    stdin = artifact.artefact.encode()
    result = await run_program(name, argv, artifact.workspace, child_env, timeout_ms, stdin, programs, sandbox.runtime)
    try:
        return measurement_in(result.out.decode("utf-8", "replace"))
    except ValueError as error:
        error_suffix = result.last_error_line and f", stderr: {result.last_error_line}"
        raise SkillError(f"{name}: its output: {error}; exit status {result.status}{error_suffix}") from error


async def measure_by_function(
    evaluator: FunctionEvaluator,
    artifact: Artifact,
    env: Mapping[str, str],
    timeout_ms: int,
    programs: Path | None = None,
    sandbox: CommandSandbox = NO_SANDBOX,
) -> Measurement:
    """Call the function in a child process, which is killed if it does not return in time. Raises SkillError.

    The child gets the variables of a command, and its `requiredEnv`. In a sandbox it may read this process's modules.
    """
    name = evaluator_label(evaluator)
    if missing := ", ".join(variable for variable in evaluator.required_env if not env.get(variable)):
        raise SkillError(f"{name} needs {missing}: set it in the environment or in a .env file")
    child_env = inherit_variables(env, (*evaluator.required_env, *sandbox.variables))
    start, directory = Path("/"), Path.cwd()
    readable: tuple[Path, ...] = ()
    if sandbox.is_confined:
        start = directory = artifact.workspace
        readable = tuple(
            path for path in map(Path, (*module_path(), sys.prefix, sys.base_prefix)) if path.is_absolute()
        )
    argv, stdin = (
        python_argv("perstack.iterations.evaluator_process"),
        request(evaluator.entry, artifact, directory),
    )
    result = await run_program(name, argv, start, child_env, timeout_ms, stdin, programs, sandbox.runtime, readable)
    try:
        answer = json.loads(result.out)
    except ValueError as error:
        error_suffix = result.last_error_line and f", stderr: {result.last_error_line}"
        raise SkillError(f"{name} ended with exit status {result.status} and no answer{error_suffix}") from error
    if "missing" in answer:
        raise SkillError(f"{name} is not available: {answer['missing']}")
    if "raised" in answer:
        raise SkillError(f"{name}: {answer['raised']}")
    return measurement_of(answer["measured"])


# Commands whose exit status says whether the result of a Job passes.

_MAX_REASON_CHARS = 400


async def failure_reason(
    setup: HostSetup,
    expert_key: str,
    command: str | tuple[str, ...],
    stdin: str,
    timeout_ms: int,
    variables: Mapping[str, str],
) -> str:
    """Run a test command in the Expert's sandbox. Return "" for exit status 0, else the reason of the failure.

    `stdin`: text on its standard input. All its processes have ended when this returns.
    """
    name = f"`{masked_line(command) if isinstance(command, str) else ' '.join(masked_args(command))}`"
    argv = argv_of(command)
    try:
        async with command_sandbox(setup, expert_key) as sandbox:
            env = inherit_variables(setup.env.without_stored, (*variables_in(argv), *sandbox.variables))
            env = {**env, "PWD": str(setup.workspace), **variables}
            programs = setup.storage.programs
            result = await run_program(
                name,
                argv,
                setup.workspace,
                env,
                timeout_ms,
                stdin.encode("utf-8", "replace"),
                programs,
                sandbox.runtime,
            )
    except PerstackError as error:
        return str(error)
    if result.status == 0:
        return ""
    lines = result.out.decode("utf-8", "replace").strip().splitlines()
    reason = result.last_error_line or (lines[-1][-_MAX_REASON_CHARS:] if lines else "")
    return f"{name} ended with exit status {result.status}" + (f": {reason}" if reason else "")


# Commands that poll for an event.

_POLL_TIMEOUT_MS = 60_000  # maximum milliseconds that a command may take


async def poll_command(
    command: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
    programs: Path | None = None,
    runtime: Runtime = LOCAL_RUNTIME,
) -> PollResult:
    """Run a polling command. Exit status 0 reports the event, with stdout as its value, parsed if it is JSON.

    Raises SkillError if it cannot be started, takes longer than a minute, or prints more than a task can hold.
    """
    name = f"command `{masked_command(command)}`"
    result = await run_program(name, command, directory, env, _POLL_TIMEOUT_MS, records=programs, runtime=runtime)
    if result.status != 0:
        return PollResult(has_come=False)
    if len(result.out) > MAX_STATE_BYTES:
        size = len(result.out)
        raise SkillError(f"{name} wrote {size:,} bytes to stdout, and a task's input may have {MAX_STATE_BYTES:,}")
    return PollResult(has_come=True, value=_parse_value(result.out))


def _parse_value(out: bytes) -> JsonValue:
    try:
        value: JsonValue = from_json(out)
    except ValueError:
        return out.decode(errors="replace").strip() or None
    return value
