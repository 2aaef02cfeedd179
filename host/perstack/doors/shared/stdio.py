"""stdin and stdout as lines of a protocol, read and written by two daemon threads, so that a slow client blocks no Job.

Imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import field
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from perstack.core.base.text import plain_json
from perstack.dataclass import dataclass
from perstack.system.user import notice

if TYPE_CHECKING:
    import asyncio

MAX_MESSAGE_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 18
_MAX_READ_AHEAD = 16  # maximum messages that are read before they are handled
_MAX_SHOWN_BYTES = 200  # maximum bytes shown of a line that is not a message

_Message = TypeVar("_Message")


class _MessageTooLong(Exception):
    """The client sent more than MAX_MESSAGE_BYTES bytes without a newline."""


@dataclass(slots=True)
class ProtocolStdio:
    """Both directions of the connection to the client."""

    read_fd: int
    write_fd: int
    is_shown: bool = False  # True if written lines are shown on a terminal
    _lines: Iterator[bytes] = field(init=False)
    _outgoing: SimpleQueue[tuple[bytes, asyncio.AbstractEventLoop, asyncio.Future[bool]]] = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the reader of lines and the queue of the writer."""
        self._lines = _lines(self.read_fd)
        self._outgoing = SimpleQueue()

    @classmethod
    def take_over(cls) -> ProtocolStdio:
        """Take over stdin and stdout.

        Other readers then see the end of stdin; other writers of stdout write to stderr.
        """
        sys.stdout.flush()
        read_fd, write_fd = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return cls(read_fd, write_fd, os.isatty(write_fd))

    def read(self) -> bytes | None:
        """Wait for the next line; None at the end or after a message that is too long. Call it only before `start`."""
        try:
            return next(self._lines, None)
        except _MessageTooLong as error:
            notice(str(error))
            return None

    def write(self, line: bytes) -> bool:
        """Write a line; return False if the reader is gone. Call it only before `start`."""
        remaining = memoryview(plain_json(line) if self.is_shown else line)
        try:
            while remaining:
                remaining = remaining[os.write(self.write_fd, remaining) :]
        except OSError:
            return False
        return True

    def start(
        self, parse: Callable[[bytes], _Message], protocol: str, first: bytes | None = None
    ) -> AsyncGenerator[_Message]:
        """Start the threads; yield `parse` of `first` and of each line, and report its ValueErrors on stderr."""
        import asyncio

        loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | None](_MAX_READ_AHEAD)
        threading.Thread(target=self._pump_in, args=(loop, lines), name="wire in", daemon=True).start()
        threading.Thread(target=self._pump_out, name="wire out", daemon=True).start()
        return _messages(lines, parse, protocol, first)

    async def send(self, line: bytes) -> bool:
        """Write a line; return False if the reader is gone. Call it only after `start`."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._outgoing.put((line, loop, future))
        return await future

    def _pump_in(self, loop: asyncio.AbstractEventLoop, incoming: asyncio.Queue[bytes | None]) -> None:
        import asyncio

        def hand_over(line: bytes | None) -> None:
            putting = incoming.put(line)
            try:
                asyncio.run_coroutine_threadsafe(putting, loop).result()
            except RuntimeError:
                putting.close()
                raise

        try:
            try:
                for line in self._lines:
                    hand_over(line)
            except _MessageTooLong as error:
                notice(str(error))
            hand_over(None)
        except RuntimeError:
            return  # the event loop has already ended

    def _pump_out(self) -> None:
        while True:
            line, loop, future = self._outgoing.get()
            is_written = self.write(line)
            try:
                loop.call_soon_threadsafe(_tell, future, is_written)
            except RuntimeError:
                return  # the event loop has already ended


async def _messages(
    lines: asyncio.Queue[bytes | None], parse: Callable[[bytes], _Message], protocol: str, first: bytes | None
) -> AsyncGenerator[_Message]:
    line = await lines.get() if first is None else first
    while line is not None:
        try:
            message = parse(line)
        except ValueError:
            if line.strip():
                excerpt = line[:_MAX_SHOWN_BYTES].decode("utf-8", "replace")
                notice(f"stdin: a line is not {protocol}, and is ignored: {excerpt}")
        else:
            yield message
        line = await lines.get()


def _tell(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)


def _lines(fd: int) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    while chunk := _read(fd):
        *complete, partial = chunk.split(b"\n")
        for line in complete:
            yield b"".join((*parts, line))
            parts.clear()
            size = 0
        parts.append(partial)
        size += len(partial)
        if size > MAX_MESSAGE_BYTES:
            raise _MessageTooLong(
                f"the client sent a message of more than {MAX_MESSAGE_BYTES >> 20} MB: the server stops"
            )


def _read(fd: int) -> bytes:
    # Linux reports a closed terminal as EIO
    try:
        return os.read(fd, _CHUNK_BYTES)
    except OSError:
        return b""
