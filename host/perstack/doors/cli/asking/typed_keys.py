"""Read what a person types at a terminal key by key, so that one key can be an answer."""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager

from perstack.doors.cli.terminal import echo, erase
from perstack.doors.shared.text import cells

_MAX_CHARS = 4_000
_CHUNK_BYTES = 4_096
_END, _ESCAPE, _CLEAR = "\x04", "\x1b", "\x15"  # Ctrl-D, the start of a key without a character, Ctrl-U
_BACKSPACE = ("\x7f", "\b")


@contextmanager
def unbuffered_keys() -> Generator[None]:
    """Read keys without Enter and without the terminal's echo, and discard earlier input.

    Enter the context before the question is printed; otherwise the terminal would echo a quick answer a second time.
    Ctrl-C and Ctrl-Z keep their meaning.
    """
    fd = sys.stdin.fileno()
    saved_attributes = termios.tcgetattr(fd)
    attributes = termios.tcgetattr(fd)
    attributes[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(fd, termios.TCSAFLUSH, attributes)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, saved_attributes)


async def read_keys(is_complete: Callable[[str], bool]) -> str:
    """Return the typed text at Enter, or as soon as `is_complete` is true for it; empty at the end of stdin.

    Call it within `unbuffered_keys`. It does not block the event loop, so Ctrl-C works. Backspace and Ctrl-U edit the
    text.
    """
    text, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
    while data := await _read_bytes():
        chars = decoder.decode(data)
        if chars.startswith(_ESCAPE):
            continue  # ignore arrows and other keys without a character
        for char in chars:
            if char in ("\r", "\n"):
                echo("\n")
                return text
            if char == _END and not text:
                return ""
            text = _apply_key(text, char)
            if is_complete(text):
                echo("\n")
                return text
    return ""


def _apply_key(text: str, char: str) -> str:
    if char in _BACKSPACE:
        erase(cells(text[-1:]))
        return text[:-1]
    if char == _CLEAR:
        erase(cells(text))
        return ""
    if not char.isprintable() or len(text) >= _MAX_CHARS:
        return text
    echo(char)
    return text + char


async def _read_bytes() -> bytes:
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    data_future: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(fd)
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except OSError:  # the terminal is gone
            data = b""
        if not data_future.done():
            data_future.set_result(data)

    loop.add_reader(fd, read)
    try:
        return await data_future
    finally:
        loop.remove_reader(fd)
