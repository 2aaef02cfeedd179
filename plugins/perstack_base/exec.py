"""The exec tool: where a program starts, what it gets of the environment and how it ends. What it may do is a matter of
the runtime that it is started in.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from perstack.core.base import JsonObject
from perstack.errors import SkillError
from perstack.ports.processes.environment import inherited
from perstack.ports.processes.group import end_group, signal_group
from perstack.ports.processes.owned import owned
from perstack.ports.processes.start import started
from perstack.ports.runtime import NOTHING_TO_SAY, Ending, Program
from perstack.ports.skill import SkillContext, ToolCall, ToolResult
from perstack_base.answers import answer
from perstack_base.arguments import flag, table, text, texts, whole
from perstack_base.files import printable
from perstack_base.output import Output
from perstack_base.redirects import may_redirect, refuse_redirects
from perstack_base.workspace import Workspace

DEFAULT_TIMEOUT = 60_000

_PIECE = 1 << 16
_DRAIN = 0.5
"""Seconds to wait for the end of the output once every process of the group has ended: one that left may hold it."""

_NO_OUTPUT = "Command executed successfully, but produced no output."


class Executor:
    """Runs programs for one Job, and knows those that are up."""

    def __init__(self, workspace: Workspace, context: SkillContext, domains: tuple[str, ...] = ()) -> None:
        self._workspace = workspace
        self._env = inherited(context.env, context.variables)
        self._records = context.programs
        self._runtime = context.runtime
        self._domains = domains
        self._running: set[asyncio.Task[Process]] = set()
        """Those that are starting or up; the others are sorted out when one is added."""

    async def close(self) -> None:
        """End everything that is still up."""
        await asyncio.gather(*(_end(starting) for starting in tuple(self._running)))

    async def call(self, call: ToolCall) -> ToolResult:
        """`exec`."""
        words = (text(call.args, "command"), *texts(call.args, "args"))
        if may_redirect(words):
            opening = self._workspace.opening(call.opens)
            await asyncio.to_thread(refuse_redirects, opening, words, text(call.args, "cwd") or ".")
        timeout = whole(call.args, "timeout") or DEFAULT_TIMEOUT
        with Output() as output:
            status: int | None = None
            process: Process | None = None
            try:
                async with asyncio.timeout(timeout / 1000), self._process(call, output) as process:
                    status = await process.wait()
            except TimeoutError:
                status = None
            ending = NOTHING_TO_SAY if process is None else self._runtime.ending(process)
            return await _result(call, output, status, timeout, ending)

    @asynccontextmanager
    async def _process(self, call: ToolCall, output: Output) -> AsyncGenerator[Process]:
        """A process whose output is being read; at the end it is gone, and all its output is there."""
        reading, writing = os.pipe()
        try:
            process = await self._start(call, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        pump = asyncio.create_task(_pump(reading, output))
        try:
            try:
                async with owned(process):
                    yield process
            finally:
                await asyncio.wait({pump}, timeout=_DRAIN)
        finally:
            pump.cancel()

    async def _start(self, call: ToolCall, writing: int) -> Process:
        args = call.args
        command = text(args, "command")
        if not command:
            raise SkillError("command is empty; name a program")
        cwd = text(args, "cwd") or "."
        with self._workspace.directory(cwd) as (handle, place):
            env = {**self._env, "PWD": str(place.path), **table(args, "env"), "PERSTACK_CALL_ID": call.key}
            starting = asyncio.create_task(
                self._runtime.start(
                    Program(
                        (command, *texts(args, "args")),
                        cwd=place.path,
                        env=env,
                        stdin=DEVNULL,
                        stdout=writing if flag(args, "stdout", True) else DEVNULL,
                        stderr=writing if flag(args, "stderr", True) else DEVNULL,
                        records=self._records,
                        cwd_handle=handle,
                        domains=self._domains,
                    )
                )
            )
            self._running = {starting, *(other for other in self._running if _is_up(other))}
            try:
                return await started(starting)
            except (OSError, ValueError) as error:
                raise SkillError(_why_not(command, error)) from error


async def _end(starting: asyncio.Task[Process]) -> None:
    try:
        await asyncio.wait({starting})
    except asyncio.CancelledError:
        starting.add_done_callback(_kill)
        raise
    if _is_up(starting):
        await end_group(starting.result())


def _is_up(starting: asyncio.Task[Process]) -> bool:
    """Whether it runs or may yet. The number of one that has ended may be another process's by now."""
    if not starting.done():
        return True
    return not starting.cancelled() and starting.exception() is None and starting.result().returncode is None


def _kill(starting: asyncio.Task[Process]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        signal_group(starting.result().pid, signal.SIGKILL)


async def _pump(reading: int, output: Output) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIECE)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb", buffering=0))
    try:
        while piece := await reader.read(_PIECE):
            output.add(piece)
    finally:
        transport.close()


def _why_not(command: str, error: OSError | ValueError) -> str:
    shown = printable(command)
    if isinstance(error, FileNotFoundError):
        return f"{shown} was not found; check the name, or run a shell: command `sh`, args [`-c`, …]"
    if isinstance(error, PermissionError):
        return f"{shown} may not be executed; make it executable, or run it by its interpreter"
    return f"{shown} could not be started ({error}); check command, args and env"


async def _result(call: ToolCall, output: Output, status: int | None, timeout: int, ending: Ending) -> ToolResult:
    result: JsonObject = {"output": _NO_OUTPUT if output.size == 0 and status == 0 else ""}
    if output.is_long:
        name = f"blob:{await call.blobs.put(await asyncio.to_thread(output.kept))}"
        result = {"output": output.shown(name), "outputFile": name}
    elif output.size:
        result["output"] = output.shown("")
    if ending.refused:
        result["refused"] = list(ending.refused)
        for line in ending.refused:
            call.on_progress(line)
    if ending.limit:
        result["error"] = f"ended by the sandbox: {ending.limit}"
    elif status is None:
        result["error"] = f"ended after the timeout of {timeout} ms; give a longer timeout, or do less at once"
    elif status < 0:
        result["signal"] = _signal_name(-status)
    else:
        result["exitCode"] = status
    return answer(result, is_error=bool(ending.limit) or status is None or status < 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
