"""Ways to the network: for each list of places a proxy, which is started when a program first needs it."""

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
from perstack.ports.processes.owned import owned
from perstack.ports.processes.start import launch, started
from perstack_bubblewrap.network import local_ports, proxy_port
from perstack_bubblewrap.sealed import sealed

_PATIENCE = 30
"""Seconds for a proxy to be ready."""
_MOST_NOTED = 100
"""Different places that were refused, of which each is kept once: the latest."""
_PIECE = 1 << 16
_INSIDE = "/run/perstack"

_BRIDGE = Path(__file__).with_name("bridge.py")
_PYTHON = os.path.realpath(sys.executable)


def check_library() -> None:
    """Raises UsageError if there can be no proxy."""
    if find_spec("proxy") is None:
        raise UsageError("`network` needs the proxy that is an extra of perstack: pip install 'perstack[sandbox]'")


@dataclass(slots=True)
class Way:
    """A proxy that is up."""

    socket: Path
    allowed: tuple[str, ...]
    on_refused: Callable[[str], None]
    reading: int
    process: Process | None = None
    """The proxy."""
    count: int = 0
    """How often it has refused."""
    _refused: dict[str, int] = field(default_factory=dict[str, int])
    """Each place with why, and the count when it was refused last."""
    _shown: set[str] = field(default_factory=set[str])
    _rest: bytes = b""

    @property
    def is_up(self) -> bool:
        """Whether the proxy is there."""
        return self.process is None or self.process.returncode is None

    @property
    def mounts(self) -> tuple[str, ...]:
        """What must be there inside."""
        return (
            *("--ro-bind", str(_BRIDGE), f"{_INSIDE}/bridge.py"),
            *("--ro-bind", str(self.socket), f"{_INSIDE}/proxy"),
        )

    @property
    def argv(self) -> tuple[str, ...]:
        """What is put before a program."""
        ports = ",".join(map(str, (proxy_port(self.allowed), *local_ports(self.allowed))))
        return _PYTHON, "-I", "-S", f"{_INSIDE}/bridge.py", f"{_INSIDE}/proxy", ports

    @property
    def readable(self) -> tuple[str, ...]:
        """The interpreter, which may be in somebody's home folder."""
        return (os.path.realpath(sys.base_prefix),)

    @property
    def env(self) -> Mapping[str, str]:
        """What programs look for a proxy by."""
        proxy, none = f"http://127.0.0.1:{proxy_port(self.allowed)}", "localhost,127.0.0.1,::1"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        both = {one: proxy for name in names for one in (name, name.lower())}
        return {**both, "NO_PROXY": none, "no_proxy": none, "NODE_USE_ENV_PROXY": "1"}

    def refused(self, since: int) -> tuple[str, ...]:
        """What it has refused since it had refused so often."""
        self.take()
        return tuple(words for words, at in self._refused.items() if at > since)

    def take(self) -> None:
        """Note what it has refused by now."""
        with suppress(BlockingIOError):
            while piece := os.read(self.reading, _PIECE):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for line in lines:
                    self._note(line)
        # its end is of no matter: the proxy ends with the Job

    def _note(self, line: bytes) -> None:
        with suppress(ValueError):
            words = json.loads(line)
            if not isinstance(words, str):
                return
            self.count += 1
            self._refused.pop(words, None)
            self._refused[words] = self.count
            if len(self._refused) > _MOST_NOTED:
                del self._refused[next(iter(self._refused))]
            self._show(words)

    def _show(self, words: str) -> None:
        """To a person each place once, and of many the first."""
        if words in self._shown or len(self._shown) > _MOST_NOTED:
            return
        self._shown.add(words)
        more = "; what else is refused is in the results alone" if len(self._shown) > _MOST_NOTED else ""
        self.on_refused(f"refused by the sandbox: {words}{more}")


class Ways:
    """Those of one policy in a Job."""

    def __init__(self, on_refused: Callable[[str], None]) -> None:
        self._on_refused = on_refused
        self._turn = asyncio.Lock()
        self._up: dict[tuple[str, ...], Way] = {}
        self._ends = AsyncExitStack()

    async def to(self, allowed: tuple[str, ...]) -> Way:
        """The way to these places. Raises SkillError if there can be none."""
        key = tuple(sorted(set(allowed)))
        async with self._turn:
            if key not in self._up or not self._up[key].is_up:
                try:
                    check_library()
                    self._up[key] = await self._opened(key)
                except (OSError, TimeoutError, UsageError) as error:
                    raise SkillError(f"the network of the sandbox cannot be had: {error}") from error
            return self._up[key]

    async def close(self) -> None:
        """End every proxy."""
        self._up.clear()
        await self._ends.aclose()

    async def _opened(self, allowed: tuple[str, ...]) -> Way:
        ends = self._ends
        folder = Path(tempfile.mkdtemp(prefix="perstack-"))
        ends.callback(rmtree, folder, ignore_errors=True)
        loop = asyncio.get_running_loop()
        stdin, kept = os.pipe()
        ends.callback(os.close, kept)
        reading, stdout = os.pipe()
        ends.callback(os.close, reading)
        os.set_blocking(reading, False)
        argv = (sys.executable, "-m", "perstack_bubblewrap.proxying", str(folder / "proxy"))
        env = {"PATH": os.defpath, **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}}
        try:
            with sealed("\n".join(allowed).encode()) as (listed,):
                starting = launch(
                    (*argv, str(listed)),
                    cwd="/",
                    env=env,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=DEVNULL,
                    pass_fds=(listed,),
                )
                process = await started(asyncio.create_task(starting))
        finally:
            os.close(stdin)
            os.close(stdout)
        await ends.enter_async_context(owned(process))
        await _ready(reading)
        way = Way(folder / "proxy", allowed, self._on_refused, reading, process)
        loop.add_reader(reading, way.take)
        ends.callback(loop.remove_reader, reading)
        return way


async def _ready(reading: int) -> None:
    """Wait until it has said that it is up. Raises OSError and TimeoutError."""
    loop = asyncio.get_running_loop()
    said: asyncio.Future[bytes] = loop.create_future()

    def look() -> None:
        if not said.done():
            said.set_result(os.read(reading, _PIECE))

    loop.add_reader(reading, look)
    try:
        async with asyncio.timeout(_PATIENCE):
            if not await said:
                raise OSError("the proxy ended while it was starting")
    finally:
        loop.remove_reader(reading)
