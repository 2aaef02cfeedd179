"""Asking an evaluator that is a command or a function. What it answers is read by `core.measurements`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import cast

from perstack.core.definitions import Evaluator, ExpertEvaluator, FunctionEvaluator
from perstack.core.measurements import Measurement, measurement_in, measurement_of
from perstack.core.shell import argv_of
from perstack.engine.programs import ask_program
from perstack.errors import SkillError
from perstack.ports.evaluator import EvaluatorFunction, Made
from perstack.ports.processes.environment import inherited


def name_of(evaluator: Evaluator) -> str:
    """What an evaluator is called in errors."""
    match evaluator:
        case str():
            return f"evaluator `{evaluator}`"
        case ExpertEvaluator():
            return f"evaluator Expert `{evaluator.expert}`"
        case FunctionEvaluator():
            return f"evaluator function `{evaluator.entry}`"
        case _:
            return f"evaluator `{' '.join(evaluator)}`"


async def measure_by_command(
    command: str | tuple[str, ...], made: Made, env: Mapping[str, str], timeout: int
) -> Measurement:
    """Run it in the workspace, with the artefact on stdin, and few variables: it may run what a model has written.

    Raises SkillError, which names it.
    """
    name = name_of(command)
    child_env = inherited(env) | {"PWD": str(made.workspace), "PERSTACK_ITERATION": str(made.iteration)}
    said = await ask_program(name, argv_of(command), made.workspace, child_env, timeout, made.artefact.encode())
    try:
        return measurement_in(said.out.decode("utf-8", "replace"))
    except ValueError as error:
        words = said.last_words and f", stderr: {said.last_words}"
        raise SkillError(f"{name}: its output: {error}; exit status {said.status}{words}") from error


async def measure_by_function(evaluator: FunctionEvaluator, made: Made, timeout: int) -> Measurement:
    """Call it. Raises SkillError, which names it."""
    name = name_of(evaluator)
    try:
        function = cast("EvaluatorFunction", EntryPoint("evaluator", evaluator.entry, "perstack").load())
    except (ImportError, AttributeError) as error:
        raise SkillError(f"{name} cannot be had: {error}") from error
    try:
        async with asyncio.timeout(timeout / 1000):
            is_async = inspect.iscoroutinefunction(function)
            answer = function(made) if is_async else await asyncio.to_thread(function, made)
            return measurement_of(await answer if inspect.isawaitable(answer) else answer)
    except TimeoutError as error:
        raise SkillError(f"{name} did not answer within {timeout} ms") from error
    except Exception as error:
        raise SkillError(f"{name}: {type(error).__name__}: {error}") from error
