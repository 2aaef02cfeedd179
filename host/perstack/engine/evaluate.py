"""Asking an evaluator that is a command or a function. What it answers is read by `core.measurements`."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import EntryPoint
from typing import IO, cast

from perstack.core.definitions import Evaluator, ExpertEvaluator, FunctionEvaluator
from perstack.core.measurements import Measurement, measurement_in, measurement_of
from perstack.errors import SkillError
from perstack.ports.evaluator import EvaluatorFunction, Made

INHERITED = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TMPDIR", "TZ", "COLORTERM", "NO_COLOR")
)
"""Variables of the host that a command gets too, besides LC_*: it may run what a model has written."""

_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

_WATCH = 'read -r _; kill -s KILL -- "-$1"'

_MOST_OUTPUT = 16 << 20
_MOST_ERROR = 400


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
    """Run it in the workspace, with the artefact on stdin. Raises SkillError, which names it."""
    name = name_of(command)
    argv = ("sh", "-c", command) if isinstance(command, str) else command
    child_env = {key: value for key, value in env.items() if key in INHERITED or key.startswith("LC_")}
    child_env |= {"PWD": str(made.workspace), "PERSTACK_ITERATION": str(made.iteration)}
    # files, and not pipes: no process that the command leaves behind can hold their end
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(made.artefact.encode())
        given.seek(0)
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *argv, stdin=given, stdout=out, stderr=err, cwd=made.workspace, env=child_env, start_new_session=True
            )
        )
        try:
            process = await _started(starting)
        except (OSError, ValueError) as error:
            raise SkillError(f"{name} could not be started: {error}") from error
        try:
            async with asyncio.timeout(timeout / 1000), _guarded(process):
                status = await process.wait()
        except TimeoutError as error:
            raise SkillError(f"{name} was ended after its timeout of {timeout} ms: {_end_of(err)}") from error
        except OSError as error:
            raise SkillError(f"{name} could not be run: {error}") from error
        finally:
            await _end(process)
        if status < 0:
            raise SkillError(f"{name} was ended by signal {-status}: {_end_of(err)}")
        return _read(name, out, status, err)


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


def _read(name: str, out: IO[bytes], status: int, err: IO[bytes]) -> Measurement:
    size = out.seek(0, os.SEEK_END)
    if size > _MOST_OUTPUT:
        raise SkillError(f"{name} wrote {size:,} bytes to stdout: let it write its JSON alone")
    out.seek(0)
    try:
        return measurement_in(out.read().decode("utf-8", "replace"))
    except ValueError as error:
        words = _end_of(err)
        raise SkillError(
            f"{name}: its output: {error}; exit status {status}{words and f', stderr: {words}'}"
        ) from error


def _end_of(err: IO[bytes]) -> str:
    """The last line of a file, shortened."""
    size = err.seek(0, os.SEEK_END)
    err.seek(max(0, size - 4 * _MOST_ERROR))
    lines = err.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-_MOST_ERROR:] if lines else ""


async def _started(starting: asyncio.Task[Process]) -> Process:
    """The process, up. A start that is cancelled half way would leave what the process has started meanwhile."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            await _end(starting.result())
        raise


@asynccontextmanager
async def _guarded(process: Process) -> AsyncGenerator[None]:
    """While this lasts, a shell waits beside the group of a process, and ends it if our own process is killed."""
    guard = await _started(
        asyncio.create_task(
            asyncio.create_subprocess_exec(
                "/bin/sh", "-c", _WATCH, "guard", str(process.pid), stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL,
                env={"PATH": os.defpath}, start_new_session=True,
            )
        )
    )  # fmt: skip
    try:
        yield
    finally:
        await _end(guard, signal.SIGKILL)


async def _end(process: Process, first: int = signal.SIGTERM) -> None:
    """End all of its group, and reap it."""
    try:
        if process.returncode is None:
            _signal(process, first)
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await process.wait()
    finally:
        _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
