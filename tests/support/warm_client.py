"""The `perstack` of a page's shell, in place of the console script: it makes `warm_server` fork the command.

It starts in milliseconds, as a Python without site-packages, passes on all that it was given and all signals, and ends
as the command does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_")
"""Prefixes of variables that take effect when Python starts."""
_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def become(folder: str, script: str) -> NoReturn:
    """Run the console script `script` with the arguments of this process. `folder` contains this program."""
    env = _initial_environment()
    path = env.get("PATH", "").split(os.pathsep)
    env["PATH"] = os.pathsep.join(one for one in path if one != folder)
    if env.get("_") == os.path.join(folder, "perstack"):  # noqa: PTH118 - as below
        env["_"] = script
    if any(name.startswith(READ_AT_START) and name != "PYTHONPATH" for name in env):
        os.execve(script, [script, *sys.argv[1:]], env)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    report = _hand_over(f"{folder}/socket", script, env)
    command = _read_number(report)

    def pass_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(command, number)

    for number in _PASSED_ON:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = os.waitstatus_to_exitcode(_read_number(report))
    if code < 0:
        with suppress(OSError):  # the only way to end by SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _initial_environment() -> dict[str, str]:
    """Return the environment from before Python's start, which replaces some locales."""
    with open("/proc/self/environ", "rb") as given:  # noqa: PTH123 - as below
        pairs = (os.fsdecode(pair).partition("=") for pair in given.read().split(b"\0") if pair)
        return {name: value for name, _, value in pairs}


def _hand_over(address: str, script: str, env: dict[str, str]) -> socket.socket:
    """Pass this process's files and settings to the server, and return the socket for its reports."""
    report, theirs = socket.socketpair()
    with theirs, socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"+"], [0, 1, 2, theirs.fileno()])
    mask = os.umask(0o77)
    os.umask(mask)
    asked = {
        "script": script,
        "args": sys.argv[1:],
        "cwd": os.getcwd(),  # noqa: PTH109 - pathlib takes as long to import as all the rest
        "env": env,
        "umask": mask,
        "session": False,
        "ignored": [one for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN],
    }
    report.sendall(json.dumps(asked).encode())
    report.shutdown(socket.SHUT_WR)
    return report


def _read_number(report: socket.socket) -> int:
    """Return the next number from the server."""
    said = b""
    while not said.endswith(b"\n"):
        more = report.recv(1)
        if not more:
            raise EOFError("the process that others are forked from has ended")
        said += more
    return int(said)
