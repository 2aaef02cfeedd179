"""The terminal as it was, even if this process is killed: a small process waits for its end, and puts it back.

A shell puts back the modes of a line that a killed program has left, but not the other screen, the mouse, or the
keyboard's protocol.
"""

from __future__ import annotations

import os
import subprocess
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress

_MODES = (
    "\x1b[<u"  # the keyboard's protocol
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"  # the mouse
    "\x1b[?1004l\x1b[?2004l\x1b[?2048l"  # word of focus, pastes and sizes
    "\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"  # the screen, the cursor, line wrap, colours
)
_WAIT = """
trap '' INT QUIT HUP TERM
read -r word
if [ "$word" != done ]; then
  case "$(stty -a <"$0")" in *-isig*) stty "$1" <"$0";; esac
  printf '%s' "$2" >"$0"
fi
"""
"""Given the name of the terminal, its modes, and what puts back the rest. `-isig`: the modes are still those of the
program, and not of a shell that has come back."""

_PATIENCE = 5
"""Seconds for it to end."""


@contextmanager
def terminal_restored() -> Generator[None]:
    """Whatever becomes of this process within the block, the terminal is as it was. Does nothing without one."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        name = os.ttyname(fd)
        modes = subprocess.run(["stty", "-g"], stdin=fd, capture_output=True, text=True, check=True).stdout.strip()
        command = ["sh", "-c", _WAIT, name, modes, _MODES]
        waiting = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    except (OSError, ValueError, termios.error, subprocess.SubprocessError):
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
        with suppress(OSError):
            waiting.communicate(b"done\n", timeout=_PATIENCE)
