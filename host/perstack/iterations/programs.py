"""Run a command of a definition, which no tool starts, to its end and return its exit status and output."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType

from perstack.core.definitions.sandbox import LOCAL
from perstack.dataclass import dataclass
from perstack.engine.context.host_setup import HostSetup
from perstack.errors import SkillError
from perstack.ports.runtime import LOCAL_RUNTIME, Program, Runtime
from perstack.system.files import system_reason
from perstack.system.process_groups import signal_group
from perstack.system.processes import await_start, end_with_block

MAX_OUTPUT_BYTES = 16 << 20  # maximum bytes that a program may write to stdout

_MAX_ERROR_CHARACTERS = 400
_CHUNK_BYTES = 1 << 16
_MAX_CHUNKS_AFTER_END = 32
"""Chunks read after the end: more than a pipe holds, but bounded, as a process left behind may still write."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Exit status and output of a program that has ended."""

    status: int
    out: bytes
    last_error_line: str  # the last line of its stderr, truncated


@dataclass(frozen=True, slots=True)
class CommandSandbox:
    """The runtime of a program that no tool starts: an evaluator, or the command of a task."""

    runtime: Runtime = LOCAL_RUNTIME
    variables: tuple[str, ...] = ()  # names of additional environment variables to pass to the program
    is_confined: bool = False  # the program has fewer rights than the host's user


NO_SANDBOX = CommandSandbox()


@asynccontextmanager
async def command_sandbox(setup: HostSetup, expert_key: str | None) -> AsyncGenerator[CommandSandbox]:
    """Prepare the sandbox of an Expert, or the project's if `expert_key` is None, for programs started in the block.

    Raises NotAgreed if the definition has declarations that nobody has agreed to, and UsageError if this machine cannot
    enforce its policy.
    """
    setup.agreement.check_definition()
    policy = setup.policy(None if expert_key is None else setup.project.expert(expert_key))
    if policy is None:
        yield NO_SANDBOX
        return
    await setup.check_policies((policy,))
    runtimes = setup.runtimes("")
    try:
        yield CommandSandbox(await runtimes.get(policy), policy.env, policy.runtime != LOCAL)
    finally:
        await runtimes.close()


async def run_program(
    name: str,
    argv: Sequence[str],
    directory: Path,
    env: Mapping[str, str],
    timeout_ms: int,
    stdin_data: bytes = b"",
    records: Path | None = None,
    runtime: Runtime = LOCAL_RUNTIME,
    readable: tuple[Path, ...] = (),
) -> ProgramResult:
    """Run a program with `stdin_data` on stdin, for at most `timeout_ms`, and end all its processes.

    While it runs it is recorded in the folder `records`. `readable` are paths that its sandbox lets it read. Raises
    SkillError if it cannot be started, exceeds its timeout, is ended by a signal or a limit, or writes more than
    `MAX_OUTPUT_BYTES` bytes.
    """
    with tempfile.TemporaryFile() as stdin, _ProgramOutput() as out, _ProgramOutput() as err:
        stdin.write(stdin_data)
        stdin.seek(0)
        program = Program(
            tuple(argv), directory, env, stdin, out.to_write, err.to_write, records=records, readable=readable
        )
        try:
            process = await await_start(asyncio.create_task(runtime.start(program)))
        except (OSError, ValueError) as error:
            raise SkillError(f"{name} could not be started: {system_reason(error)}") from error
        out.read(MAX_OUTPUT_BYTES, lambda: signal_group(process.pid, signal.SIGKILL))
        err.read_end()
        try:
            async with end_with_block(process), asyncio.timeout(timeout_ms / 1000):
                status = await process.wait()
        except TimeoutError as error:
            raise SkillError(
                f"{name} was ended after its timeout of {timeout_ms} ms{_after_colon(_last_line(err))}"
            ) from error
        output, limit = out.read_rest(), runtime.ending(process).limit
        if limit:
            raise SkillError(f"{name} was ended by the sandbox: {limit}{_after_colon(_last_line(err))}")
        if len(output) > MAX_OUTPUT_BYTES:
            limit = f"{MAX_OUTPUT_BYTES:,} bytes"
            raise SkillError(f"{name} wrote more than {limit} to stdout: let it write its answer alone")
        if status < 0:
            raise SkillError(f"{name} was ended by signal {-status}{_after_colon(_last_line(err))}")
        return ProgramResult(status, output, _last_line(err))


class _ProgramOutput:
    """The read end of a program's pipe. Processes that keep the write end open after the program do not block it."""

    def __init__(self) -> None:
        self._pipe, self.to_write = os.pipe()
        os.set_blocking(self._pipe, False)
        self._data = bytearray()
        self._after_chunk: Callable[[], None] = lambda: None
        self._is_full = False

    def __enter__(self) -> _ProgramOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_reading()
        for end in (self._pipe, self.to_write):
            with suppress(OSError):
                os.close(end)

    def read(self, max_bytes: int, on_exceeded: Callable[[], object]) -> None:
        """Keep all output; after more than `max_bytes` bytes stop reading and call `on_exceeded`."""

        def after_chunk() -> None:
            if len(self._data) > max_bytes and not self._is_full:
                self._is_full = True
                self._stop_reading()
                on_exceeded()

        self._start_reading(after_chunk)

    def read_end(self) -> None:
        """Keep the end of the output only."""

        def after_chunk() -> None:
            del self._data[: -4 * _MAX_ERROR_CHARACTERS]

        self._start_reading(after_chunk)

    def read_rest(self) -> bytes:
        """Return the kept output, with what is still in the pipe after the program has ended."""
        for _ in range(_MAX_CHUNKS_AFTER_END):
            if self._is_full or not self._read_chunk():
                break
        return bytes(self._data)

    def _start_reading(self, after_chunk: Callable[[], None]) -> None:
        self._after_chunk = after_chunk
        os.close(self.to_write)
        self.to_write = -1
        asyncio.get_running_loop().add_reader(self._pipe, self._read_chunk)

    def _read_chunk(self) -> bool:
        try:
            chunk = os.read(self._pipe, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop_reading()
            return False
        self._data += chunk
        self._after_chunk()
        return True

    def _stop_reading(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)


def _after_colon(text: str) -> str:
    return text and f": {text}"


def _last_line(err: _ProgramOutput) -> str:
    lines = err.read_rest().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][-_MAX_ERROR_CHARACTERS:] if lines else ""
