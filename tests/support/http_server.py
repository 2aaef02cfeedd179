"""`perstack mcp --http` in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from terminal import SECONDS, Terminal


@contextmanager
def serving(terminal: Terminal, *args: str, token: str = "") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a server, and its process; it ends by a signal, cleanly."""
    process = subprocess.Popen(
        [sys.executable, "-m", "perstack", "mcp", "--provider", "scripted", "--http", "127.0.0.1:0", *args],
        cwd=terminal.workspace,
        env={**terminal.env, "PERSTACK_MCP_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"serving MCP at (\S+)", process.stderr.readline())
        assert found, process.stderr.read()
        yield found[1], process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out) == (0, "")
        assert all(line.startswith("Invalid ") for line in err.splitlines()), err
    finally:
        process.kill()
        process.communicate()
