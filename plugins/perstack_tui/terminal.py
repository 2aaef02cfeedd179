"""Input and output of the terminal: any bytes, pastes without escapes, non-blocking drawing, restored modes.

The library's reader ends the program at a byte that is not UTF-8, and reads text after an escape in a paste as keys: a
coloured log, pasted while a call waits for approval, could press `y` and Enter.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import struct
import subprocess
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from textual import events
from textual._xterm_parser import XTermParser  # private names of the library; tests in a real terminal check them
from textual.drivers.linux_driver import LinuxDriver
from typing_extensions import override

from perstack.doors.shared.output_stream import channel_at
from perstack.doors.shared.signals import on_continued, on_suspended

# Restore the terminal even if this process is killed: a small process waits for its end and restores it. A shell only
# restores the line modes that a killed program leaves, not the alternate screen, the mouse, or the keyboard protocol.

_RESET_SEQUENCES = (
    "\x1b[<u"  # keyboard protocol
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # mouse
    "\x1b[?1004l\x1b[?2004l\x1b[?2048l"  # reports of focus, pastes and sizes
    "\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"  # screen, cursor, line wrap, colours
)
_RESTORE_SCRIPT = """
trap '' INT QUIT HUP TERM
read -r word
if [ "$word" != done ]; then
  case "$(stty -a <"$0")" in *-isig*) stty "$1" <"$0";; esac
  printf '%s' "$2" >"$0"
fi
"""
"""A script that takes the terminal's name, its modes, and the sequence that restores the rest.

`-isig` means that the modes are still the program's, not those of a shell that has taken over.
"""

_RESTORE_TIMEOUT_S = 5  # maximum seconds to wait for the restoring process


@contextmanager
def terminal_restored() -> Generator[Callable[[], None]]:
    """Restore the terminal after the block, even if this process is killed. Do nothing without a terminal.

    Yields a function that restores it at once, for a process that ends within the block: the restoring process would
    act only after a shell has already written to the terminal.
    """
    try:
        fd = sys.stdin.fileno()
        line_modes = termios.tcgetattr(fd)
        tty_name = os.ttyname(fd)
        # Look in the system's folders first, never in the current one: an Expert may write programs there.
        env = {"PATH": os.pathsep.join((os.defpath, os.environ.get("PATH", "")))}
        modes = subprocess.run(
            ["stty", "-g"], stdin=fd, capture_output=True, text=True, check=True, cwd="/", env=env
        ).stdout.strip()
        command = ["/bin/sh", "-c", _RESTORE_SCRIPT, tty_name, modes, _RESET_SEQUENCES]
        restorer = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/", env=env
        )
    except (OSError, ValueError, termios.error, subprocess.SubprocessError):
        yield lambda: None
        return

    def restore() -> None:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(fd, termios.TCSANOW, line_modes)
        with suppress(OSError, subprocess.TimeoutExpired):
            restorer.communicate(b"done\n", timeout=_RESTORE_TIMEOUT_S)

    try:
        yield restore
    finally:
        restore()


_PASTE_BEGIN = "\x1b[200~"
_PASTE_END = "\x1b[201~"
_ESCAPE, _ESCAPE_SYMBOL = "\x1b", "\N{SYMBOL FOR ESCAPE}"
_ENTER, _LINE_END = b"\r", b"\n"  # the byte of the Enter key, and the byte that a terminal in line mode turns it into

_STDERR = 2
_READ_BYTES = 1 << 16  # maximum bytes of one read
_MAX_PENDING_BYTES = 1 << 18  # maximum bytes queued for the terminal; with more, drawing stops


class PasteFilter:
    """A decoder of terminal bytes to text. It removes escapes within a paste, so that a paste cannot press keys."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._is_in_paste = False
        self._held_text = ""  # end of the last text, in which a paste mark may begin; within a paste it is held back

    def feed(self, data: bytes) -> str:
        """Return the text of the bytes. Keys are never held back."""
        text, result = self._decoder.decode(data), ""
        while text:
            part, text = self._split_paste(text) if self._is_in_paste else self._split_keys(text)
            result += part
        return result

    def _split_keys(self, text: str) -> tuple[str, str]:
        known_chars = len(self._held_text)
        keys, mark, remaining = (self._held_text + text).partition(_PASTE_BEGIN)
        self._is_in_paste = bool(mark)
        self._held_text = "" if mark else keys[1 - len(_PASTE_BEGIN) :]
        return (keys + mark)[known_chars:], remaining

    def _split_paste(self, text: str) -> tuple[str, str]:
        pasted, mark, remaining = (self._held_text + text).partition(_PASTE_END)
        lengths = range(len(_PASTE_END) - 1, -1, -1)
        held_chars = 0 if mark else next(length for length in lengths if pasted.endswith(_PASTE_END[:length]))
        self._is_in_paste = not mark
        self._held_text = pasted[len(pasted) - held_chars :]
        return pasted[: len(pasted) - held_chars].replace(_ESCAPE, _ESCAPE_SYMBOL) + mark, remaining


class TerminalDriver(LinuxDriver):
    """The library's driver, with a reader that survives any byte, and no second reader at a SIGCONT after SIGSTOP."""

    class TerminalGone(events.Event):
        """Event sent to the app when no more keys can be read."""

    _is_active = False
    _is_behind = False  # True while nothing is drawn because the terminal does not read
    _is_suspended = False  # True while this process is suspended and a shell has the terminal

    @override
    def start_application_mode(self) -> None:
        self._channel = channel_at(_STDERR)
        super().start_application_mode()  # type: ignore[no-untyped-call]  # untyped in the library
        self._is_active = True
        on_suspended(self._on_suspended)  # runs in the event loop, so never within a write to the terminal
        on_continued(self._on_continued)

    @override
    def stop_application_mode(self) -> None:
        self._is_active = False
        super().stop_application_mode()

    @override
    def write(self, data: str) -> None:
        """Draw, unless too many bytes are queued; then draw nothing until `catch_up` returns True.

        The library's writing thread is not used: once 30 writes are queued, because the terminal does not read or an
        error ended the thread, the next write blocks the event loop. The process would neither renew its leases nor
        handle a signal.
        """
        if self._is_active:
            self._is_behind = self._is_behind or self._channel.pending > _MAX_PENDING_BYTES
            if self._is_behind:
                return
        with suppress(OSError):  # the terminal is gone, which SIGHUP reports
            self._channel.write(data.encode("utf-8", "replace"))

    def catch_up(self) -> bool:
        """Draw again once the terminal reads again. Return True then: everything must be redrawn."""
        if not self._is_behind or self._channel.pending:
            return False
        self._is_behind = False
        return True

    def _on_suspended(self) -> None:
        if self._is_active:
            self._is_suspended = True
            self.suspend_application_mode()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _on_continued(self) -> None:
        if self._is_active:  # SIGSTOP was not announced: a shell may have changed any mode since
            self.suspend_application_mode()
        elif not self._is_suspended:
            return
        self._is_suspended = False
        self.resume_application_mode()
        self.send_message(self.SignalResume())

    def run_input_thread(self) -> None:
        """Read until the program ends or the terminal is gone, which SIGHUP does not report to every process."""
        parser, pastes, early_bytes = XTermParser(), PasteFilter(), self._count_early_bytes()
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(0.1):
                    data = self._read(early_bytes or _READ_BYTES)
                    if data == b"":
                        self.send_message(self.TerminalGone())
                        return
                    if data is None:
                        continue
                    if early_bytes:
                        early_bytes, data = early_bytes - len(data), data.replace(_LINE_END, _ENTER)
                    # the parser takes an empty text for the end of input
                    for message in parser.feed(text) if (text := pastes.feed(data)) else ():
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)

    def _count_early_bytes(self) -> int:
        """Return the number of bytes typed before this program took the terminal, when Enter was still a line end."""
        try:
            return int(struct.unpack("i", fcntl.ioctl(self.fileno, termios.FIONREAD, bytes(4)))[0])
        except OSError:
            return 0

    def _read(self, max_bytes: int) -> bytes | None:
        """Return typed bytes; None if another process read them first, no bytes if the terminal is gone."""
        try:
            return os.read(self.fileno, max_bytes)
        except BlockingIOError:
            return None
        except OSError:
            return b""
