"""Run perstack commands in processes that are killed, or meet a fault, where the caller says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType

from chaos.faults import Fault, FaultKind
from perstack.dataclass import dataclass

_FORK_SERVER = f"""
import sys

sys.path.append({str(Path(__file__).parents[1])!r})
from chaos.fork_server import main

main()
"""
_TIMEOUT_S = 60.0  # maximum seconds for a command that nothing ends


@dataclass(frozen=True, slots=True)
class Victim:
    """Result of one process."""

    argv: tuple[str, ...]
    code: int  # exit status; -9 if it was killed
    changes: int  # number of boundaries it reached
    opens: int  # number of files it opened
    reached: bool  # True if it met its fault
    seconds: float
    out: bytes
    err: str
    began: tuple[str, ...]  # keys of the tool calls that it began, in order
    ended: tuple[str, ...]  # keys of the tool calls that it completed

    @property
    def was_killed(self) -> bool:
        """True if SIGKILL ended it."""
        return self.code == -9

    def boundaries(self, kind: FaultKind) -> int:
        """Return the number of boundaries that a fault of this kind counts."""
        return self.opens if kind == "EMFILE" else self.changes


class Victims:
    """Runs commands in a folder, each in a process forked from the fork server; a context manager that ends them."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        """Start the fork server."""
        self._env = dict(os.environ if env is None else env)
        self._fork_server = subprocess.Popen(
            [sys.executable, "-P", "-c", _FORK_SERVER],
            env={**self._env, "PERSTACK_FAULTS": os.environ.get("PERSTACK_FAULTS", "")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach the test, not the victims
        )
        if self._fork_server.stdin is None or self._fork_server.stdout is None:
            raise TypeError("a process was started without the pipes that were asked for")
        self._orders, self._answers = self._fork_server.stdin, self._fork_server.stdout

    def with_env(self, env: Mapping[str, str]) -> Victims:
        """Return a view on this fork server whose commands get more variables."""
        view = copy(self)
        view._env = {**self._env, **env}
        return view

    def __enter__(self) -> Victims:
        """Return self."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the fork server."""
        self._orders.close()
        self._fork_server.wait(_TIMEOUT_S)
        self._answers.close()

    def run(
        self,
        folder: Path,
        *argv: str,
        aside: Path,
        fault: Fault | None = None,
        after: float | None = None,
        by: signal.Signals = signal.SIGKILL,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        ahead: float = 0,
        root: Path | None = None,
    ) -> Victim:
        """Run one command in `folder` and return its result. It meets the fault, or gets signal `by` `after` seconds.

        `aside` is a folder for its input and output. Its clock is `ahead` seconds fast. Faults are met below `root`, by
        default the folder. Raises RuntimeError.
        """
        aside.mkdir(exist_ok=True)
        stdin_file, out, err, ledger = (aside / name for name in ("in", "out", "err", "ledger"))
        stdin_file.write_bytes(stdin)
        for file in (out, err, ledger):  # a process may be killed before it opens any
            file.write_bytes(b"")
        order = {
            "argv": argv,
            "cwd": str(folder),
            "root": str(root or folder),
            "env": {**self._env, **(env or {})},
            "fault": None if fault is None else (fault.kind, fault.at),
            "after": after,
            "signal": int(by),
            "timeout": _TIMEOUT_S,
            "ahead": ahead,
            "stdin": str(stdin_file),
            "out": str(out),
            "err": str(err),
            "ledger": str(ledger),
        }
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            self._orders.flush()
        except BrokenPipeError:
            raise RuntimeError("the process that starts the others has ended") from None
        answer = json.loads(self._answers.readline() or b"null")
        if answer is None:
            raise RuntimeError("the process that starts the others has ended")
        marks = [line.partition(" ") for line in ledger.read_text().splitlines()]
        return Victim(
            argv=tuple(argv),
            **answer,
            out=out.read_bytes(),
            err=err.read_text(errors="replace"),
            began=_keys_after(marks, "began"),
            ended=_keys_after(marks, "ended"),
        )


def _keys_after(marks: Sequence[tuple[str, str, str]], word: str) -> tuple[str, ...]:
    return tuple(key for mark, _, key in marks if mark == word)
