"""The fork server: a process that has imported what victims need. It reads orders from stdin, one per line."""

from __future__ import annotations

import sys
from contextlib import suppress

from disk import do_not_wait_for_disk
from pydantic import BaseModel, PydanticUndefinedAnnotation, ValidationError

from chaos.faults import Board, Fault, arm, prepare, write_uncounted
from perstack.core.runs.events import parse_event
from perstack.iterations.state import parse_series_event
from perstack.tasks.events import parse_task_event

# Work that each process would do at the first use of a class, done once before forking.


def build_models() -> None:
    """Build the validators of all imported models, which take most of a process's time."""
    pending = BaseModel.__subclasses__()
    while pending:
        model = pending.pop()
        pending += model.__subclasses__()
        if not model.__pydantic_complete__:
            with suppress(AttributeError, PydanticUndefinedAnnotation):  # an abstract base
                model.model_rebuild()
    for parse in (parse_event, parse_task_event, parse_series_event):
        with suppress(ValidationError):
            parse(b"{}")


def compile_dataclasses() -> None:
    """Compile the constructors of all imported dataclasses of perstack."""
    for name, module in list(sys.modules.items()):
        if name.startswith("perstack"):
            for value in list(vars(module).values()):
                if isinstance(value, type):
                    getattr(value, "__init__")  # noqa: B009 - the access compiles it; type checkers forbid the plain form


# ruff: noqa: E402 - the counters must be installed before importing what they count


do_not_wait_for_disk()
prepare()

import gc
import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import perstack.engine.runs.tool_calls as toolrun
from perstack.core.runs.commands import Call
from perstack.core.runs.state import call_key
from perstack.engine.plugins.registry import load_plugins
from perstack.engine.runs.job_drive import RunDrive

_PRELOADED = (
    "perstack.doors.cli.main",
    "perstack.doors.cli.run",
    "perstack.doors.cli.resume",
    "perstack.doors.cli.inbox",
    "perstack.doors.cli.iterations",
    "perstack.doors.cli.jobs",
    "perstack.doors.cli.log",
    "perstack.doors.cli.log_print",
    "perstack.doors.cli.log_selection",
    "perstack.doors.cli.files",
    "perstack.doors.cli.tasks",
    "perstack.doors.cli.scheduler",
    "perstack.doors.cli.audit",
    "perstack.host",
    "perstack.core.permissions.programs",
    "perstack.core.permissions.shell",
    "perstack.engine.runs.loop",
    "perstack.engine.runs.generation",
    "perstack.engine.permissions.rulings",
    "perstack.snapshots.rewind_journal",
    "perstack.snapshots.rewind",
    "perstack.engine.permissions.rulings",
    "perstack.audit.receipts",
    "perstack.engine.context.host_setup",
    "perstack.snapshots.snapshots",
    "perstack.audit.verify",
    "perstack.audit.auditor",
    "perstack.audit.auditor",
    "perstack.engine.runs.job_drive",
    "perstack.system.files",
    "perstack.system.processes",
    "perstack.testing.plugin",
    "perstack_base.tools",
    "perstack_base.exec",
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
    "ulid",
)


def main() -> None:
    """Serve orders until stdin ends."""
    for name in _PRELOADED:
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
    (script,) = entry_points(group="console_scripts", name="perstack")
    command: Callable[[], object] = script.load()
    return command


def _serve(order: dict[str, Any]) -> dict[str, Any]:
    board, began = Board(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run_victim(order, board)
    after = order["after"]

    signals = [signal.SIGKILL, signal.Signals(order["signal"])]

    def end(_: int, frame: object) -> None:
        with suppress(ProcessLookupError):  # it may have just ended
            os.kill(pid, signals.pop())
        if signals:
            signal.setitimer(signal.ITIMER_REAL, order["timeout"])

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, order["timeout"] if after is None else after)
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


def _run_victim(order: dict[str, Any], board: Board) -> None:
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
    _record_calls(order["ledger"])
    _move_clock_ahead(round(order["ahead"] * 1e9))
    fault = order["fault"]
    arm(Path(order["root"]), None if fault is None else Fault(*fault), board)
    code: object = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _command()()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:  # noqa: BLE001 - do as Python would: a traceback and status 1
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _move_clock_ahead(nanoseconds: int) -> None:
    real_time_ns = time.time_ns

    def moved_clock() -> int:
        return real_time_ns() + nanoseconds

    time.time_ns = moved_clock


def _record_calls(path: str) -> None:
    """Record the beginning and end of each tool call that is really made, without counting these writes."""
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    perform = toolrun.perform_call

    async def note_call(context: RunDrive, call: Call) -> toolrun.ToolOutcome:
        key = call_key(context.session.run, call)
        write_uncounted(ledger, f"began {key}\n".encode())
        outcome = await perform(context, call)
        write_uncounted(ledger, f"ended {key}\n".encode())
        return outcome

    toolrun.perform_call = note_call
