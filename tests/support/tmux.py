"""The real program in a real terminal, controlled by keys."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from processes import wait_until
from terminal import SECONDS, Terminal

PERSTACK = f"{shlex.quote(sys.executable)} -m perstack"


class Tmux:
    """A window with a shell in a project's directory."""

    def __init__(self, terminal: Terminal, columns: int, lines: int, env: dict[str, str]) -> None:
        self._workspace = terminal.workspace
        self._socket = str(terminal.workspace / "tmux")
        self._env = {**terminal.env, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "PS1": "$ ", **env}
        size = ("-x", str(columns), "-y", str(lines))
        shell = ("env", *(f"{name}={value}" for name, value in env.items()), "bash", "--norc", "--noprofile")
        self._tmux("new-session", "-d", *size, "-c", str(terminal.workspace), *shell)
        self.sees("$ ")

    def _tmux(self, *args: str) -> str:
        command = ("tmux", "-f", "/dev/null", "-S", self._socket, *args)
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=SECONDS, check=True)
        return done.stdout

    def type(self, line: str) -> None:
        """Type a line and Enter."""
        self.type_on(line)
        self.press("Enter")

    def type_on(self, text: str) -> None:
        """Type a text without Enter."""
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by name, such as C-c."""
        self._tmux("send-keys", *keys)

    def paste(self, data: bytes) -> None:
        """Paste these bytes."""
        (self._workspace / "clipboard").write_bytes(data)
        self._tmux("load-buffer", str(self._workspace / "clipboard"))
        self._tmux("paste-buffer", "-p")

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self) -> str:
        """Return the window's content including scrollback; wrapped lines are joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def sees(self, *words: str) -> str:
        """Wait, with a timeout, until all of these words are on the screen together."""
        end = time.monotonic() + SECONDS
        while not all(one in (found := self.screen()) for one in words):
            assert time.monotonic() < end, f"waited in vain for {words} on:\n{found}"
            time.sleep(0.05)  # a poll of another process, bounded above; each look starts one more
        return found

    def state(self) -> str:
        """Return the terminal state that a program could have changed: its modes, and whether the cursor is shown."""
        modes = self._workspace / "modes"
        modes.unlink(missing_ok=True)
        self.type("stty -a > modes.new; mv modes.new modes")
        wait_until(modes.exists, "the shell to answer")
        flags = "#{cursor_flag} #{keypad_flag} #{alternate_on} #{wrap_flag} #{mouse_any_flag} #{insert_flag}"
        return modes.read_text() + self._tmux("display-message", "-p", flags)

    def close(self) -> None:
        self._tmux("kill-server")


@contextmanager
def tmux(
    terminal: Terminal, *, columns: int = 80, lines: int = 30, env: dict[str, str] | None = None
) -> Iterator[Tmux]:
    """Yield a window for the block. Skip the test where tmux is not installed."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    window = Tmux(terminal, columns, lines, env or {})
    try:
        yield window
    finally:
        window.close()
