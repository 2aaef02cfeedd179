"""Streams for stdout and stderr that never block the event loop.

A reader may stall: a pager, a terminal after Ctrl-S, a pipe whose other end is stopped. A write that blocks the event
loop would also stop the heartbeats, and another process would take the Job over.

- One `OutputChannel` for each file, pipe or terminal. stdout and stderr share it if both lead to one, so that
  the order of writes is kept.
- Within an event loop a write is queued, and a thread writes it. The loop waits for the thread for at most `_WAIT_S`,
  and not at all while the reader is behind. So a reader that keeps up gets its errors (EPIPE) where they arise.
- Outside an event loop a write waits for its reader, as in any program.
- Nothing queued is dropped while there is a reader: it waits in memory, and beyond `_MEMORY_BYTES` in a temporary file.
  A writer of optional output, such as the frames of a live view, checks `pending_bytes` first.
- `finish_output` waits for the queue when the process ends: without limit for stdout, for `_LEAVING_S` after a stop
  signal, for `_STDERR_S` if only stderr is behind.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from io import BufferedWriter, BytesIO, RawIOBase, TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

_WAIT_S = 0.02  # seconds that a write within an event loop waits for the thread
_LEAVING_S = 2.0  # seconds that a process which was asked to stop waits for its readers
_STDERR_S = 5.0  # seconds that a process waits at its end for the reader of stderr
_MEMORY_BYTES = 8 << 20  # bytes queued in memory; more go to a temporary file
_CHUNK_BYTES = 1 << 16


class OutputChannel:
    """Ordered output to one file, pipe or terminal."""

    def __init__(self, fd: int, status: os.stat_result) -> None:
        """Write to `fd`, whose file is identified by `status`."""
        self.fd = fd
        self.place = (status.st_dev, status.st_ino)
        self._can_stall = not _never_stalls(status)
        self._begin()

    def _begin(self) -> None:
        self._backlog = _Backlog()
        self._failure: OSError | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_discarded = False

    @property
    def pending(self) -> int:
        """Bytes that the reader has not taken yet."""
        return self._backlog.size

    def write(self, content: bytes) -> None:
        """Write, or queue within an event loop. Raises OSError if this write or an earlier queued one failed."""
        may_wait = _may_wait()
        if self._thread is None and (may_wait or not self._can_stall):
            if not self._is_discarded:
                self._write_through(content)
            return
        with self._changed:
            self._check()
            if self._is_discarded:
                return
            is_behind = self._backlog.size > 0
            self._backlog.append(content)
            self._changed.notify_all()
            self._start()
            self._changed.wait_for(self._is_settled, None if may_wait else 0 if is_behind else _WAIT_S)
            self._check()

    def drain(self, seconds: float | None) -> bool:
        """Wait until everything is written, and return whether it is. None waits without limit. Raises OSError."""
        with self._changed:
            is_settled = self._changed.wait_for(self._is_settled, seconds)
            self._check()
            return is_settled

    def discard(self) -> None:
        """Drop the queue and all later writes."""
        with self._changed:
            self._is_discarded = True
            self._failure = None
            self._backlog.clear()
            self._changed.notify_all()

    def reset_after_fork(self) -> None:
        """Start with an empty queue in a child process: the thread and its queue belong to the parent."""
        self._begin()

    def _is_settled(self) -> bool:
        return self._backlog.size == 0

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror)

    def _start(self) -> None:
        if self._thread is None:
            # a daemon, because the process must be able to end while a write is blocked
            self._thread = threading.Thread(target=self._pump, name=f"output {self.fd}", daemon=True)
            self._thread.start()

    def _pump(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog.size > 0)
                chunk = self._backlog.read_first(_CHUNK_BYTES)
            try:
                byte_count = _write_some(self.fd, chunk)
            except OSError as error:
                with self._changed:
                    self._failure = None if self._is_discarded else error
                    self._backlog.clear()
                    self._changed.notify_all()
                continue
            with self._changed:
                if self._backlog.size:  # unless it was discarded during the write
                    self._backlog.drop(byte_count)
                self._changed.notify_all()

    def _write_through(self, content: bytes) -> None:
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[_write_some(self.fd, remaining) :]


class _Backlog:
    def __init__(self) -> None:
        self.size = 0
        self._file: IO[bytes] = BytesIO()
        self._offset = 0  # offset in the file of the first queued byte

    def append(self, content: bytes) -> None:
        """Add to the end. Raises OSError if there is no room for a temporary file."""
        end = self._offset + self.size
        if end + len(content) > _MEMORY_BYTES and isinstance(self._file, BytesIO):
            from tempfile import TemporaryFile  # needed only for a reader that is far behind

            queued = self.read_first(self.size)
            self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - closed when it is empty
            self._offset = 0
            self._store(0, queued)
            end = len(queued)
        self._store(end, content)
        self.size += len(content)

    def _store(self, offset: int, content: bytes) -> None:
        self._file.seek(offset)
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[self._file.write(remaining) :]

    def read_first(self, size: int) -> bytes:
        self._file.seek(self._offset)
        return self._file.read(min(size, self.size))

    def drop(self, size: int) -> None:
        self._offset += size
        self.size -= size
        if self.size == 0:
            self.clear()

    def clear(self) -> None:
        self._file.close()
        self.__init__()  # type: ignore[misc]  # this object, empty again


class _Raw(RawIOBase):
    def __init__(self, channel: OutputChannel, fd: int) -> None:
        super().__init__()
        self.channel = channel
        self._fd = fd

    def write(self, content: Buffer, /) -> int:
        data = bytes(content)
        self.channel.write(data)
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)


class _ChannelStream(TextIOWrapper):
    """A text stream to a channel, with the encoding and buffering of the stream it replaces."""

    def __init__(self, channel: OutputChannel, fd: int, replaced: TextIO) -> None:
        is_line_buffered = replaced.line_buffering if isinstance(replaced, TextIOWrapper) else True
        raw = BufferedWriter(_Raw(channel, fd))
        super().__init__(raw, encoding=replaced.encoding, errors=replaced.errors, line_buffering=is_line_buffered)
        self.channel = channel


_channels: list[OutputChannel] = []
_is_leaving = False


def channel_at(fd: int) -> OutputChannel:
    """Return the channel of the file, pipe or terminal that a descriptor leads to. Raises OSError."""
    status = os.fstat(fd)
    for channel in _channels:
        if channel.place == (status.st_dev, status.st_ino):
            return channel
    channel = OutputChannel(fd, status)
    _channels.append(channel)
    return channel


def unblock(stream: TextIO) -> TextIO:
    """Return a stream that writes to its file through a channel; the stream itself if it is not a file."""
    try:
        fd = stream.fileno()
        channel = channel_at(fd)
    except (OSError, ValueError):  # io.UnsupportedOperation is both an OSError and a ValueError
        return stream
    stream.flush()
    return _ChannelStream(channel, fd, stream)


def channel_of(stream: TextIO) -> OutputChannel | None:
    """Return the channel of a stream; None if `unblock` did not make it."""
    return stream.channel if isinstance(stream, _ChannelStream) else None


def pending_bytes(stream: TextIO) -> int:
    """Return the number of bytes that the reader of a stream has not taken yet."""
    channel = channel_of(stream)
    return 0 if channel is None else channel.pending


def hurry_output() -> None:
    """Stop waiting long for readers: the process was asked to stop."""
    global _is_leaving
    _is_leaving = True


def finish_output(stream: TextIO, *, is_stdout: bool) -> None:
    """Wait for the queue and drop the rest and all later writes, at the end of the process. Raises OSError."""
    stream.flush()
    channel = channel_of(stream)
    if channel is None:
        return
    try:
        is_written = channel.drain(_LEAVING_S if _is_leaving else None if is_stdout else _STDERR_S)
    except OSError:
        channel.discard()
        raise
    if not is_written:
        channel.discard()


def _may_wait() -> bool:
    """Return whether a write may block this thread for as long as its reader stalls."""
    if _is_leaving or threading.current_thread() is not threading.main_thread():
        return False
    asyncio = sys.modules.get("asyncio")  # a short command does not import asyncio
    return asyncio is None or asyncio._get_running_loop() is None


def _never_stalls(status: os.stat_result) -> bool:
    is_nothing = stat.S_ISCHR(status.st_mode) and status.st_rdev == Path(os.devnull).stat().st_rdev
    return stat.S_ISREG(status.st_mode) or is_nothing


def _write_some(fd: int, content: bytes | memoryview) -> int:
    try:
        return os.write(fd, content)
    except BlockingIOError:  # another program made the shared pipe or terminal non-blocking
        select.select([], [fd], [])
        return 0


def _after_fork() -> None:
    for channel in _channels:
        channel.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
