"""A process's output: however much it is, memory holds its head and tail, and a temporary file the whole."""

from __future__ import annotations

import tempfile
from types import TracebackType

SHOWN_BYTES = 30_000
"""Of output that the model sees at once."""

MOST_BYTES = 64 * 1024 * 1024
"""Of output that is kept; what comes after is only counted, and the model sees the count."""

_HALF = SHOWN_BYTES // 2
_IN_MEMORY = 256 * 1024


class Output:
    """Collects what a process writes. A context manager, because of its temporary file."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by __exit__
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

    def add(self, piece: bytes) -> None:
        """What was written next."""
        self._keep(piece)
        if len(self._head) < SHOWN_BYTES:
            self._head += piece[: SHOWN_BYTES - len(self._head)]
        self._tail = (self._tail + piece)[-_HALF:]
        self._newlines += piece.count(b"\n")
        self.size += len(piece)

    @property
    def is_long(self) -> bool:
        """Whether the model sees only a part."""
        return self.size > SHOWN_BYTES

    @property
    def is_cut(self) -> bool:
        """Whether not even the file has all of it."""
        return self.size > self._most

    def kept(self) -> bytes:
        """All that was kept."""
        self._file.seek(0)
        return self._file.read()

    def shown(self, whole: str) -> str:
        """What the model sees; `whole` names the place where all of it is."""
        if not self.is_long:
            return self._head.decode("utf-8", "replace")
        head = _whole_lines(self._head[:_HALF])
        tail = _after_newline(self._tail)
        first = head.count(b"\n")
        left = self._newlines - tail.count(b"\n")
        where = f", from {first}, to {left}" if left > first else ""
        kept = f", of which only the first {self._most} bytes were kept" if self.is_cut else ""
        gap = f"\n… {self.size - len(head) - len(tail)} bytes left out: readTextFile, path {whole}{where}{kept} …\n"
        return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")

    def _keep(self, piece: bytes) -> None:
        if self.size >= self._most:
            return
        try:
            self._file.write(piece[: self._most - self.size])
        except OSError:
            # a full disk for temporary files: the program's work counts more than all of its output
            self._most = self.size


def _whole_lines(head: bytes) -> bytes:
    end = head.rfind(b"\n") + 1
    return head[:end] if end > len(head) // 2 else head


def _after_newline(tail: bytes) -> bytes:
    start = tail.find(b"\n") + 1
    return tail[start:] if start < len(tail) // 2 else tail
