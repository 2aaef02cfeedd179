"""Proxies to the network: one per list of allowed addresses, started when a program first needs it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree

from perstack.dataclass import dataclass
from perstack.errors import SkillError, UsageError
from perstack.system.processes import await_start, end_with_block, launch, python_argv
from perstack_bubblewrap.machine import memory_files
from perstack_bubblewrap.network import local_ports, proxy_port

_START_TIMEOUT_S = 30  # seconds to wait until a proxy is ready
_MAX_REFUSALS = 100  # maximum refused addresses that are remembered, each with its latest refusal
_CHUNK_BYTES = 1 << 16
_INSIDE = "/run/perstack"

_BRIDGE = Path(__file__).with_name("bridge.py")
_PYTHON = os.path.realpath(sys.executable)


def check_library() -> None:
    """Raise UsageError if the proxy library is not installed."""
    if find_spec("proxy") is None:
        raise UsageError("`network` needs the proxy that is an extra of perstack: pip install 'perstack[sandbox]'")


@dataclass(slots=True)
class Proxy:
    """A running proxy for one list of allowed addresses."""

    socket: Path
    allowed: tuple[str, ...]
    on_refused: Callable[[str], None]
    output_fd: int
    process: Process | None = None
    refusal_count: int = 0  # number of refusals so far
    _refusals: dict[str, int] = field(default_factory=dict[str, int])
    """The message of each refused address, with the number of refusals at its latest one."""
    _shown_messages: set[str] = field(default_factory=set[str])
    _partial_line: bytes = b""

    @property
    def is_up(self) -> bool:
        return self.process is None or self.process.returncode is None

    @property
    def mounts(self) -> tuple[str, ...]:
        """Mounts that a program needs to use the proxy."""
        return (
            *("--ro-bind", str(_BRIDGE), f"{_INSIDE}/bridge.py"),
            *("--ro-bind", str(self.socket), f"{_INSIDE}/proxy"),
        )

    @property
    def argv(self) -> tuple[str, ...]:
        """The prefix of a program's command line: it starts the bridge to the proxy."""
        ports = ",".join(map(str, (proxy_port(self.allowed), *local_ports(self.allowed))))
        return _PYTHON, "-I", "-S", f"{_INSIDE}/bridge.py", f"{_INSIDE}/proxy", ports

    @property
    def readable(self) -> tuple[str, ...]:
        """The folder of the Python interpreter, which may be in a home directory."""
        return (os.path.realpath(sys.base_prefix),)

    @property
    def env(self) -> Mapping[str, str]:
        """Environment variables by which programs find a proxy."""
        proxy, none = f"http://127.0.0.1:{proxy_port(self.allowed)}", "localhost,127.0.0.1,::1"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        variables = {variable: proxy for name in names for variable in (name, name.lower())}
        return {**variables, "NO_PROXY": none, "no_proxy": none, "NODE_USE_ENV_PROXY": "1"}

    def refusals_since(self, since: int) -> tuple[str, ...]:
        """Return the messages of addresses refused since the number of refusals was `since`."""
        self.read_refusals()
        return tuple(message for message, number in self._refusals.items() if number > since)

    def read_refusals(self) -> None:
        """Read the refusals that the proxy has reported by now."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.output_fd, _CHUNK_BYTES):
                *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
                for line in lines:
                    self._record_refusal(line)
        # the end of the output can be ignored: the proxy ends with the Job

    def _record_refusal(self, line: bytes) -> None:
        with suppress(ValueError):
            message = json.loads(line)
            if not isinstance(message, str):
                return
            self.refusal_count += 1
            self._refusals.pop(message, None)
            self._refusals[message] = self.refusal_count
            if len(self._refusals) > _MAX_REFUSALS:
                del self._refusals[next(iter(self._refusals))]
            self._show_once(message)

    def _show_once(self, message: str) -> None:
        if message in self._shown_messages or len(self._shown_messages) > _MAX_REFUSALS:
            return
        self._shown_messages.add(message)
        ending = "; further refusals are only in the results" if len(self._shown_messages) > _MAX_REFUSALS else ""
        self.on_refused(f"refused by the sandbox: {message}{ending}")


class ProxyPool:
    """The proxies of one policy in a Job."""

    def __init__(self, on_refused: Callable[[str], None]) -> None:
        """Start nothing yet; `on_refused` shows a message to the person."""
        self._on_refused = on_refused
        self._turn = asyncio.Lock()
        self._running: dict[tuple[str, ...], Proxy] = {}
        self._exit_stack = AsyncExitStack()

    async def proxy_for(self, allowed: tuple[str, ...]) -> Proxy:
        """Return the running proxy for these addresses, starting it if needed. Raises SkillError if that fails."""
        key = tuple(sorted(set(allowed)))
        async with self._turn:
            if key not in self._running or not self._running[key].is_up:
                try:
                    check_library()
                    self._running[key] = await self._start(key)
                except (OSError, TimeoutError, UsageError) as error:
                    raise SkillError(f"the network of the sandbox is not available: {error}") from error
            return self._running[key]

    async def close(self) -> None:
        self._running.clear()
        await self._exit_stack.aclose()

    async def _start(self, allowed: tuple[str, ...]) -> Proxy:
        """Start a proxy whose resources the pool's exit stack releases. Raises OSError and TimeoutError."""
        exit_stack = self._exit_stack
        folder = Path(tempfile.mkdtemp(prefix="perstack-"))
        exit_stack.callback(rmtree, folder, ignore_errors=True)
        loop = asyncio.get_running_loop()
        stdin, stdin_write = os.pipe()
        exit_stack.callback(os.close, stdin_write)
        output_fd, stdout = os.pipe()
        exit_stack.callback(os.close, output_fd)
        os.set_blocking(output_fd, False)
        argv = python_argv("perstack_bubblewrap.proxy_main", str(folder / "proxy"))
        try:
            with memory_files("\n".join(allowed).encode()) as (list_fd,):
                starting = launch(
                    (*argv, str(list_fd)),
                    cwd="/",
                    env={"PATH": os.defpath},
                    stdin=stdin,
                    stdout=stdout,
                    stderr=DEVNULL,
                    pass_fds=(list_fd,),
                )
                process = await await_start(asyncio.create_task(starting))
        finally:
            os.close(stdin)
            os.close(stdout)
        await exit_stack.enter_async_context(end_with_block(process))
        await _wait_until_ready(output_fd)
        proxy = Proxy(folder / "proxy", allowed, self._on_refused, output_fd, process)
        loop.add_reader(output_fd, proxy.read_refusals)
        exit_stack.callback(loop.remove_reader, output_fd)
        return proxy


async def _wait_until_ready(output_fd: int) -> None:
    """Wait for the proxy's first output. Raises OSError if it ends first, TimeoutError."""
    loop = asyncio.get_running_loop()
    first_output: asyncio.Future[bytes] = loop.create_future()

    def read_output() -> None:
        if not first_output.done():
            first_output.set_result(os.read(output_fd, _CHUNK_BYTES))

    loop.add_reader(output_fd, read_output)
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            if not await first_output:
                raise OSError("the proxy ended while it was starting")
    finally:
        loop.remove_reader(output_fd)
