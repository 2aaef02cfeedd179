"""Lines as they are typed at a terminal, which edits them itself."""

from __future__ import annotations

import asyncio
import os
import termios
from contextlib import suppress

_LONGEST = 4_094
"""Bytes of a line: of a longer one Linux keeps 4,095, and drops the rest without a word."""


class TooLong(str):
    """A line that the terminal has cut."""


class Keyboard:
    """Reads lines while the block runs; nothing blocks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._left = b""
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    def __enter__(self) -> Keyboard:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    async def line(self) -> str | None:
        """The next line, without its end.

        At the end (Ctrl-D, or a terminal that is gone) it is None, and again at each call until more is typed.
        """
        if self._lines.empty():
            self._listen()
        return await self._lines.get()

    def discard(self) -> None:
        """What was typed before this is no answer to what is asked now."""
        with suppress(termios.error):
            termios.tcflush(self._fd, termios.TCIFLUSH)
        self._left = b""
        while not self._lines.empty():
            self._lines.get_nowait()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            data = b""
        if not data:  # once for each line that is asked for
            asyncio.get_running_loop().remove_reader(self._fd)
            self._lines.put_nowait(None)
            return
        *whole, self._left = (self._left + data).split(b"\n")
        for one in whole:
            text = one.decode("utf-8", "replace").removesuffix("\r")
            self._lines.put_nowait(TooLong(text) if len(one) >= _LONGEST else text)
