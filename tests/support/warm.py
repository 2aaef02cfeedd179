"""Commands in processes forked from one that has imported what they need: a fifth of the start-up time.

Otherwise they are separate processes that run the whole command: tests/testing/test_warm.py compares the two.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from warm_client import READ_AT_START

_SERVER = Path(__file__).with_name("warm_server.py")
_TEMPORARY = tempfile.gettempdir()
"""The temporary folder before a test changes it."""
_INSTALLED = Path(sys.executable).with_name("perstack")
_PROGRAM = """#!{python} -IS
import sys

sys.path.insert(0, {support!r})
from warm_client import become

become({folder!r}, {script!r})
"""

SERVERS: set[int] = set()
"""Id of the fork server, which lives until the tests end."""

_starting = threading.Lock()
_control: socket.socket | None = None


def perstack(*args: str, env: Mapping[str, str], new: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """Start a command in its own process; `options` are those of `subprocess.Popen`, such as `cwd` and pipes.

    With `new` it is a new Python, for tests of the start itself.
    """
    read_at_start = any(name.startswith(READ_AT_START) and name != "PYTHONPATH" for name in env)
    kind = subprocess.Popen if new or read_at_start or sys.platform != "linux" else _Forked
    return kind([sys.executable, "-m", "perstack", *args], env=env, **options)


@cache
def programs() -> Path:
    """Return a folder to put first in PATH: its `perstack` works like the console script, in a forked process."""
    if sys.platform != "linux":
        return _INSTALLED.parent
    _server()
    folder = _folder()
    program = folder / "perstack"
    support = str(Path(__file__).parent)
    program.write_text(
        _PROGRAM.format(python=sys.executable, support=support, folder=str(folder), script=str(_INSTALLED))
    )
    program.chmod(0o700)
    return folder


@cache
def _folder() -> Path:
    """Return the folder in which the server listens for `programs`; it is removed when the tests end."""
    kept = tempfile.TemporaryDirectory(prefix="perstack-warm-", dir=_TEMPORARY)
    atexit.register(kept.cleanup)
    return Path(kept.name)


class _Forked(subprocess.Popen[Any]):
    """A `subprocess.Popen` whose process is created, and its end reported, by the fork server.

    The overridden methods are not public: another version of Python may need more.
    """

    _report: socket.socket

    def _execute_child(self, *given: Any) -> None:
        args, _, _, _, _, cwd, env, _, _, _, *ends = given[:16]
        session = given[21]  # after restore_signals, gid, gids, uid and umask
        stdin, _, _, stdout, _, stderr = ends
        self._report, theirs = socket.socketpair()
        with theirs:
            fds = [number if fd == -1 else fd for number, fd in enumerate((stdin, stdout, stderr))]
            socket.send_fds(_server(), [b"+"], [*fds, theirs.fileno()])
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
        asked = {
            "script": None,
            "args": args[3:],
            "cwd": str(Path(cwd or ".").absolute()),
            "env": dict(env),
            "umask": _umask(),
            "session": session,
            "ignored": [one for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN],
        }
        self._report.sendall(json.dumps(asked).encode())
        self._report.shutdown(socket.SHUT_WR)
        self.pid = self._read_number()
        self._child_created = True

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                poll = select.poll()  # select() supports only the first 1024 file descriptors
                poll.register(self._report, select.POLLIN)
                if not poll.poll(None if timeout is None else max(0, timeout * 1000)):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = os.waitstatus_to_exitcode(self._read_number())
                self._report.close()
            return self.returncode

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None and self._report.fileno() < 0:  # nobody waited for it, and its socket is closed
            return _deadstate
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None

    def _read_number(self) -> int:
        """Return the next number from the server."""
        said = b""
        while not said.endswith(b"\n"):
            more = self._report.recv(1)
            assert more, "the process that others are forked from has ended"
            said += more
        return int(said)


def _server() -> socket.socket:
    """Start the server for the first test that needs it, in a minimal environment, which determines encodings."""
    global _control
    with _starting:
        if _control is None:
            _control, theirs = socket.socketpair()
            with theirs, socket.socket(socket.AF_UNIX) as calls:
                calls.bind(str(_folder() / "socket"))
                calls.listen()
                fds = theirs.fileno(), calls.fileno()
                env = {name: os.environ[name] for name in ("PATH", "PERSTACK_FAULTS") if name in os.environ}
                process = subprocess.Popen([sys.executable, str(_SERVER), *map(str, fds)], env=env, pass_fds=fds)
            SERVERS.add(process.pid)
            atexit.register(_end, _control, process)
    return _control


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.wait()


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask
