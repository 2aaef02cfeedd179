"""The process that victims are forked from: it has imported what they need, so that each begins within milliseconds.

It reads an order a line from stdin, and answers each with what became of the process, in one line on stdout.
"""

# ruff: noqa: E402 - the counters must be in place before anything is imported that they count

from __future__ import annotations

from perstack.testing.chaos.faults import Board, Fault, arm, prepare, write_uncounted

prepare()

import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import perstack.engine.toolrun as toolrun
from perstack.core.commands import Call
from perstack.core.runs.state import call_key
from perstack.engine.catalogue import Catalogue
from perstack.engine.plugins import load_plugins
from perstack.engine.session import Session
from perstack.testing.chaos.ahead import build_models, compile_dataclasses

_AHEAD = (
    "perstack.frontends.cli.main",
    "perstack.frontends.cli.run",
    "perstack.frontends.cli.resume",
    "perstack.frontends.cli.answer",
    "perstack.frontends.cli.iterate",
    "perstack.frontends.cli.jobs",
    "perstack.frontends.cli.log",
    "perstack.frontends.cli.log_print",
    "perstack.frontends.cli.rewind",
    "perstack.frontends.cli.task_commands",
    "perstack.frontends.cli.task_run_due",
    "perstack.frontends.cli.verify",
    "perstack.host",
    "perstack.core.policy.programs",
    "perstack.core.policy.shell",
    "perstack.engine.driver",
    "perstack.engine.generation",
    "perstack.engine.policy_paths",
    "perstack.engine.rewinding.journal",
    "perstack.engine.rewinding.rewinder",
    "perstack.engine.ruling",
    "perstack.engine.signing",
    "perstack.engine.snapshots.of_job",
    "perstack.engine.snapshots.recording",
    "perstack.engine.verify",
    "perstack.engine.verify_kept",
    "perstack.engine.verify_store",
    "perstack.engine.wiring",
    "perstack.ports.leases",
    "perstack.ports.processes.owned",
    "perstack.testing.plugin",
    "perstack_base.answers",
    "perstack_base.execute",
    "perstack_base.files",
    "perstack_base.skill",
    "perstack_filesystem.storage",
    "perstack_sqlite.storage",
    "jsonschema",
    "asyncio",
    "concurrent.futures.thread",
    "ctypes",
    "encodings.utf_8_sig",
    "rich.cells",
    "tree_sitter",
    "tree_sitter_bash",
    "ulid",
)


def main() -> None:
    """Serve until stdin ends."""
    for name in _AHEAD:
        importlib.import_module(name)
    _command()
    load_plugins((), {"PERSTACK_PLUGINS": os.environ.get("PERSTACK_PLUGINS", "")})
    build_models()
    compile_dataclasses()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    for line in sys.stdin:
        answer = _serve(json.loads(line))
        os.write(answers, json.dumps(answer).encode() + b"\n")


@cache
def _command() -> Callable[[], object]:
    """`perstack`, as it is installed."""
    (script,) = entry_points(group="console_scripts", name="perstack")
    found: Callable[[], object] = script.load()
    return found


def _serve(order: dict[str, Any]) -> dict[str, Any]:
    board, began = Board(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        _become(order, board)
    after = order["after"]

    ends = [signal.SIGKILL, signal.Signals(order["signal"])]

    def end(_: int, frame: object) -> None:
        with suppress(ProcessLookupError):  # it may have ended in this moment
            os.kill(pid, ends.pop())
        if ends:
            signal.setitimer(signal.ITIMER_REAL, order["most"])

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, order["most"] if after is None else after)
    _, status = os.waitpid(pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    count, seconds = board.read(), time.monotonic() - began
    return {
        "code": os.waitstatus_to_exitcode(status),
        "changes": count.changes,
        "opens": count.opens,
        "reached": count.reached,
        "seconds": seconds,
    }


def _become(order: dict[str, Any], board: Board) -> None:
    """Be the command. Does not return."""
    for number, (path, flags) in enumerate(
        (
            (order["stdin"], os.O_RDONLY),
            (order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (order["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        )
    ):
        fd = os.open(path, flags, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sys.argv = ["perstack", *order["argv"]]
    _keep_a_ledger(order["ledger"])
    _set_ahead(round(order["ahead"] * 1e9))
    fault = order["fault"]
    arm(Path(order["root"]), None if fault is None else Fault(*fault), board)
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _command()()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:  # noqa: BLE001 - what Python would do with it: a traceback and status 1
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _set_ahead(nanoseconds: int) -> None:
    """Be a process that begins later."""
    now = time.time_ns

    def moved() -> int:
        return now() + nanoseconds

    time.time_ns = moved


def _keep_a_ledger(path: str) -> None:
    """Note each call that is really made, and when it has ended, where no fault is."""
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    perform = toolrun.perform_call

    async def noted(
        session: Session, call: Call, catalogue: Catalogue, around: toolrun.ToolSurroundings
    ) -> toolrun.Outcome:
        key = call_key(session.run, call)
        write_uncounted(ledger, f"began {key}\n".encode())
        outcome = await perform(session, call, catalogue, around)
        write_uncounted(ledger, f"ended {key}\n".encode())
        return outcome

    toolrun.perform_call = noted


if __name__ == "__main__":
    main()
