"""What comes from the terminal: keys and pastes, whatever bytes they are.

The library's own reading ends the program at a byte that is no UTF-8, and takes what follows an escape within a paste
for keys: a log with colours, pasted where a call waits for approval, could press `y` and Enter.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import struct
import termios
from codecs import getincrementaldecoder

# what reads keys is private in the library, and nothing else of it is; tests in a real terminal hold it
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from perstack.frontends.shared.stopping import on_continued, on_suspended

_BEGIN = "\x1b[200~"
_END = "\x1b[201~"
_ESCAPE, _SEEN_AS = "\x1b", "\N{SYMBOL FOR ESCAPE}"
_ENTER, _LINE_END = b"\r", b"\n"
"""What a key gives, and what a terminal makes of it for a program that reads lines."""

_AT_A_TIME = 1 << 16
"""Bytes."""


class PasteFilter:
    """Bytes of a terminal as text in which no paste has an escape but those around it."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._is_in_paste = False
        self._last = ""
        """Outside a paste what was given last, and within one what is held back: there a mark may begin."""

    def feed(self, data: bytes) -> str:
        """The text of what came. Keys are never held back."""
        text, found = self._decoder.decode(data), ""
        while text:
            part, text = self._in_paste(text) if self._is_in_paste else self._keys(text)
            found += part
        return found

    def _keys(self, text: str) -> tuple[str, str]:
        known = len(self._last)
        before, mark, rest = (self._last + text).partition(_BEGIN)
        self._is_in_paste = bool(mark)
        self._last = "" if mark else before[1 - len(_BEGIN) :]
        return (before + mark)[known:], rest

    def _in_paste(self, text: str) -> tuple[str, str]:
        inside, mark, rest = (self._last + text).partition(_END)
        held = 0 if mark else next(n for n in range(len(_END) - 1, -1, -1) if inside.endswith(_END[:n]))
        self._is_in_paste = not mark
        self._last = inside[len(inside) - held :]
        return inside[: len(inside) - held].replace(_ESCAPE, _SEEN_AS) + mark, rest


class Keyboard(LinuxDriver):
    """The library's way to a terminal, with a reading that no byte ends, and which continues however it was stopped.

    The library begins a second time at a SIGCONT: after a SIGSTOP, which is told to nobody, two then read the keys.
    """

    _is_drawn = False
    _comes_back = False
    """Whether the terminal was left to a shell until the process continues."""

    def start_application_mode(self) -> None:
        """Take the terminal."""
        super().start_application_mode()  # type: ignore[no-untyped-call]  # the library has no types there
        self._is_drawn = True
        on_suspended(self._stops)  # in the event loop: in the midst of a write to the terminal neither could be done
        on_continued(self._continues)

    def stop_application_mode(self) -> None:
        """Leave the terminal as it was."""
        self._is_drawn = False
        super().stop_application_mode()

    def _stops(self) -> None:
        if self._is_drawn:
            self._comes_back = True
            self.suspend_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continues(self) -> None:
        if self._is_drawn:  # it was stopped unasked: a shell may have changed anything since
            self.suspend_application_mode()
        elif not self._comes_back:
            return
        self._comes_back = False
        self.resume_application_mode()
        self.send_message(self.SignalResume())

    def run_input_thread(self) -> None:
        """Read until the program ends, or nothing can come any more: SIGHUP tells the program of that."""
        parser, pastes, early = XTermParser(), PasteFilter(), self._typed_early()
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(0.1):
                    data = self._read(early or _AT_A_TIME)
                    if not data:
                        return
                    if early:
                        early, data = early - len(data), data.replace(_LINE_END, _ENTER)
                    # nothing would be the end for the parser
                    for message in parser.feed(text) if (text := pastes.feed(data)) else ():
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)

    def _typed_early(self) -> int:
        """How many bytes came before this program had the terminal, which till then made Enter the end of a line."""
        try:
            return int(struct.unpack("i", fcntl.ioctl(self.fileno, termios.FIONREAD, bytes(4)))[0])
        except OSError:
            return 0

    def _read(self, most: int) -> bytes:
        try:
            return os.read(self.fileno, most)
        except OSError:
            return b""
