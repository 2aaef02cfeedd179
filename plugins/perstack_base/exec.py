"""Tool `exec`: a program's directory, environment, output and end. The runtime decides what the program may do."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType

from perstack.core.base.records import JsonObject
from perstack.core.files.file_names import fold_case, protected_by_name
from perstack.errors import SkillError
from perstack.ports.environment import inherit_variables
from perstack.ports.runtime import NOTHING_TO_SAY, Ending, Program
from perstack.ports.skill import SkillContext, ToolCall, ToolResult
from perstack.system.process_groups import end_group, signal_group
from perstack.system.processes import await_start, end_with_block
from perstack.system.project_states import is_state_of_project
from perstack_base.files import printable
from perstack_base.tools import answer, boolean, integer, string_map, strings, text
from perstack_base.workspace import OpenWorkspace

MAX_SHOWN_BYTES = 30_000  # maximum bytes of output that the model sees at once

# maximum bytes of output that are kept; the rest is counted, and the model sees the count
MAX_KEPT_BYTES = 64 * 1024 * 1024

_HALF = MAX_SHOWN_BYTES // 2
_MAX_MEMORY_BYTES = 256 * 1024


class Output:
    """The output of a process: its head and tail in memory, all of it in a temporary file."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._file = tempfile.SpooledTemporaryFile(max_size=_MAX_MEMORY_BYTES)  # noqa: SIM115 - closed by __exit__
        self._head = b""
        self._tail = b""
        self._newlines = 0
        self.size = 0

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, chunk: bytes) -> None:
        self._write_to_file(chunk)
        if len(self._head) < MAX_SHOWN_BYTES:
            self._head += chunk[: MAX_SHOWN_BYTES - len(self._head)]
        self._tail = (self._tail + chunk)[-_HALF:]
        self._newlines += chunk.count(b"\n")
        self.size += len(chunk)

    @property
    def is_long(self) -> bool:
        """True if the model sees only a part of the output."""
        return self.size > MAX_SHOWN_BYTES

    @property
    def is_cut(self) -> bool:
        """True if even the file has only a part of the output."""
        return self.size > self._max_bytes

    def read_all(self) -> bytes:
        self._file.seek(0)
        return self._file.read()

    def excerpt(self, blob_name: str) -> str:
        """Return the text for the model; `blob_name` names the blob with all of the output."""
        if not self.is_long:
            return self._head.decode("utf-8", "replace")
        head = _up_to_last_newline(self._head[:_HALF])
        tail = _after_first_newline(self._tail)
        first_line = head.count(b"\n")
        last_line = self._newlines - tail.count(b"\n")
        range_text = f", from {first_line}, to {last_line}" if last_line > first_line else ""
        note = f", of which only the first {self._max_bytes} bytes were kept" if self.is_cut else ""
        hidden_bytes = self.size - len(head) - len(tail)
        gap = f"\n… {hidden_bytes} bytes left out: readTextFile, path {blob_name}{range_text}{note} …\n"
        return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")

    def _write_to_file(self, chunk: bytes) -> None:
        if self.size >= self._max_bytes:
            return
        try:
            self._file.write(chunk[: self._max_bytes - self.size])
        except OSError:
            # The disk for temporary files is full: let the program continue, and only count its further output.
            self._max_bytes = self.size


def _up_to_last_newline(head: bytes) -> bytes:
    end = head.rfind(b"\n") + 1
    return head[:end] if end > len(head) // 2 else head


def _after_first_newline(tail: bytes) -> bytes:
    start = tail.find(b"\n") + 1
    return tail[start:] if start < len(tail) // 2 else tail


# Redirections in shell commands of `exec`: protected files are refused, as file tools refuse them.
#
# Only redirections that are literal in the script are found. The runtime controls what a program does with its
# arguments.


def may_redirect(command_line: Sequence[str]) -> bool:
    """Return whether a command may contain redirections. A precheck, because the parser is slow to import."""
    return any(">" in word or "<" in word for word in command_line[1:])


def refuse_redirects(workspace: OpenWorkspace, command_line: Sequence[str], folder: str) -> None:
    """Raise SkillError for a redirection to a file that is off limits. Accesses the disk."""
    from perstack.core.permissions.programs import redirects_of

    for redirect in redirects_of(command_line):
        if redirect.path is not None:
            _refuse_path(workspace, os.path.join(folder, redirect.path), change=not redirect.is_read)  # noqa: PTH118
        elif redirect.text:
            _refuse_name(redirect.text, change=not redirect.is_read)


def _refuse_path(workspace: OpenWorkspace, path: str, *, change: bool) -> None:
    """Raise SkillError if a program must not open this path, which is relative to the workspace."""
    if "\0" in path:
        return
    display_path, full_path = printable(os.path.normpath(path)), os.path.join(workspace.root, path)  # noqa: PTH118
    for name in (full_path, os.path.realpath(full_path)):
        way = workspace.relative_parts(name)
        if way is not None:
            workspace.check_way(way, display_path, change=change)
            if change:
                workspace.check_git(way)
    real_parts = workspace.relative_parts(os.path.realpath(full_path))
    if real_parts is None or not workspace.is_opened(real_parts):
        with suppress(OSError, ValueError):
            workspace.check_identity(os.stat(full_path), display_path, change=change)  # noqa: PTH116
        if is_state_of_project(os.path.realpath(full_path)):
            raise workspace.project_state_refusal(display_path)


def _refuse_name(text: str, *, change: bool) -> None:
    """Raise SkillError if a path whose directory is unknown has a protected name."""
    way = fold_case(tuple(part for part in Path(os.path.normpath(text)).parts if part not in ("..", ".")))
    reason = protected_by_name(way, change=change)
    if reason is not None:
        raise SkillError(f"{printable(text)} is {reason}, which is off limits to tools; ask a person to see to it")


DEFAULT_TIMEOUT_MS = 60_000

_CHUNK_BYTES = 1 << 16
_DRAIN_TIMEOUT_S = 0.5
"""Seconds to wait for the end of the output after the process group has ended: a process that left it may hold it open.
"""

_GIT_SETTINGS = (("safe.bareRepository", "explicit"), ("core.fsmonitor", "false"))
"""Settings by which git ignores bare repositories in the workspace, and runs no file system monitor."""

_NO_OUTPUT = "Command executed successfully, but produced no output."


class Executor:
    """The programs of one Job: starts them and tracks the running ones."""

    def __init__(self, workspace: OpenWorkspace, context: SkillContext, domains: tuple[str, ...] = ()) -> None:
        """Start nothing yet; `domains` are the network addresses that the skill's programs may reach."""
        self._workspace = workspace
        self._env = inherit_variables(context.env, context.variables)
        self._records = context.programs
        self._runtime = context.runtime
        self._domains = domains
        self._running: set[asyncio.Task[Process]] = set()
        """Programs that are starting or running; ended ones are removed when another is added."""

    async def close(self) -> None:
        """End all running programs."""
        await asyncio.gather(*(_end_program(starting) for starting in tuple(self._running)))

    async def call(self, tool_call: ToolCall) -> ToolResult:
        command_line = (text(tool_call.args, "command"), *strings(tool_call.args, "args"))
        if may_redirect(command_line):
            opening = self._workspace.opening(tool_call.opens)
            await asyncio.to_thread(refuse_redirects, opening, command_line, text(tool_call.args, "cwd") or ".")
        timeout = integer(tool_call.args, "timeout") or DEFAULT_TIMEOUT_MS
        with Output() as output:
            status: int | None = None
            process: Process | None = None
            try:
                async with asyncio.timeout(timeout / 1000), self._run_process(tool_call, output) as process:
                    status = await process.wait()
            except TimeoutError:
                status = None
            ending = NOTHING_TO_SAY if process is None else self._runtime.ending(process)
            return await _create_result(tool_call, output, status, timeout, ending)

    @asynccontextmanager
    async def _run_process(self, tool_call: ToolCall, program_output: Output) -> AsyncGenerator[Process]:
        """Start a program whose output is collected, and end it with the block."""
        output_fd, program_fd = os.pipe()
        try:
            process = await self._start(tool_call, program_fd)
        except BaseException:
            os.close(output_fd)
            raise
        finally:
            os.close(program_fd)
        reader_task = asyncio.create_task(_read_output(output_fd, program_output))
        try:
            try:
                async with end_with_block(process):
                    yield process
            finally:
                await asyncio.wait({reader_task}, timeout=_DRAIN_TIMEOUT_S)
        finally:
            reader_task.cancel()

    async def _start(self, tool_call: ToolCall, program_fd: int) -> Process:
        args = tool_call.args
        command = text(args, "command")
        if not command:
            raise SkillError("command is empty; name a program")
        cwd = text(args, "cwd") or "."
        with self._workspace.directory(cwd) as (handle, place):
            variables = {
                **self._env,
                "PWD": str(place.path),
                **string_map(args, "env"),
                "PERSTACK_CALL_ID": tool_call.key,
            }
            env = {**variables, **_git_settings(variables)}
            starting = asyncio.create_task(
                self._runtime.start(
                    Program(
                        (command, *strings(args, "args")),
                        cwd=place.path,
                        env=env,
                        stdin=DEVNULL,
                        stdout=program_fd if boolean(args, "stdout", True) else DEVNULL,
                        stderr=program_fd if boolean(args, "stderr", True) else DEVNULL,
                        records=self._records,
                        cwd_handle=handle,
                        domains=self._domains,
                    )
                )
            )
            self._running = {starting, *(other for other in self._running if _is_running(other))}
            try:
                return await await_start(starting)
            except (OSError, ValueError) as error:
                raise SkillError(_explain_start_failure(command, error)) from error


def _git_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that keep git from executing files in a repository. Of several values git uses the last."""
    count = env.get("GIT_CONFIG_COUNT", "")
    first = int(count) if re.fullmatch("[0-9]{1,4}", count) else 0
    variables = {"GIT_CONFIG_COUNT": str(first + len(_GIT_SETTINGS))}
    for number, (name, value) in enumerate(_GIT_SETTINGS, first):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


async def _end_program(starting: asyncio.Task[Process]) -> None:
    """End a program, after its start if it is starting. If this is cancelled, it is killed as soon as it runs."""
    try:
        await asyncio.wait({starting})
    except asyncio.CancelledError:
        starting.add_done_callback(_kill_program)
        raise
    if _is_running(starting):
        await end_group(starting.result())


def _is_running(starting: asyncio.Task[Process]) -> bool:
    """Return whether the program is running or starting; once it has ended, its pid may belong to another process."""
    if not starting.done():
        return True
    return not starting.cancelled() and starting.exception() is None and starting.result().returncode is None


def _kill_program(starting: asyncio.Task[Process]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        signal_group(starting.result().pid, signal.SIGKILL)


async def _read_output(output_fd: int, program_output: Output) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(output_fd, "rb", buffering=0))
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            program_output.add(chunk)
    finally:
        transport.close()


def _explain_start_failure(command: str, error: OSError | ValueError) -> str:
    name = printable(command)
    if isinstance(error, FileNotFoundError):
        return f"{name} was not found; check the name, or run a shell: command `sh`, args [`-c`, …]"
    if isinstance(error, PermissionError):
        return f"{name} may not be executed; make it executable, or run it with its interpreter"
    return f"{name} could not be started ({error}); check command, args and env"


async def _create_result(
    tool_call: ToolCall, program_output: Output, status: int | None, timeout: int, ending: Ending
) -> ToolResult:
    """Return the result for the model; a long output becomes a blob of the Job."""
    result: JsonObject = {"output": _NO_OUTPUT if program_output.size == 0 and status == 0 else ""}
    if program_output.is_long:
        name = f"blob:{await tool_call.blobs.put(await asyncio.to_thread(program_output.read_all))}"
        result = {"output": program_output.excerpt(name), "outputFile": name}
    elif program_output.size:
        result["output"] = program_output.excerpt("")
    if ending.refused:
        result["refused"] = list(ending.refused)
        for line in ending.refused:
            tool_call.on_progress(line)
    if ending.limit:
        result["error"] = f"ended by the sandbox: {ending.limit}"
    elif status is None:
        result["error"] = f"ended after the timeout of {timeout} ms; set a longer timeout, or do less at once"
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
