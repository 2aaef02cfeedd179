"""The fork server of `warm`: it has imported the commands' modules and built their classes, and no more.

`python warm_server.py FD CALLS`; both are sockets. For each new process FD receives one byte together with its stdin,
stdout, stderr and its own socket; that socket carries its instructions, and in return its id and exit status. Each
connection to CALLS carries the same, once.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from chaos.fork_server import build_models, compile_dataclasses
from disk import do_not_wait_for_disk

from perstack.engine.plugins.registry import load_plugins
from perstack.system import plugin_modules

_PACKAGES = (
    *("perstack", "perstack_base", "perstack_filesystem", "perstack_mcp", "perstack_sqlite"),
    *("perstack_server", "perstack_acp"),
)
_LEFT_OUT = ("perstack.__main__", "perstack_tui", "perstack.testing")
"""Modules that run when imported, or are rarely needed and slow."""
_ALSO = ("perstack.testing.plugin", "acp", "jsonschema", "uvicorn")
_INSTALLED = plugin_modules._entry_points(tuple(sys.path))
"""The installed plugins: reading the metadata of all distributions takes a third of the time of a short command."""
_occupied: frozenset[str] = frozenset()
"""Names of modules that a new Python would import from the command's own folders first. Made before forking: to go
through `sys.modules` writes to a thousand pages, each of which the forked process would have to copy."""
_HUGE, _HUGEPAGE, _COLLAPSE = 2 << 20, 14, 25
"""Bytes of a huge page, and the advices to `madvise` that ask for them, in Linux's numbers."""
_PATIENCE = 10
"""Maximum seconds for a caller to send its instructions."""
_SIGNALS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGCHLD: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGPIPE: signal.SIG_IGN,
}
"""Signal handlers of a new Python."""


def serve(control: socket.socket, calls: socket.socket) -> None:
    """Fork a process for each byte, until no caller is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests: the server ends with them
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    woken, waker = os.pipe()
    for end in (woken, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    reports: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, calls, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ended(reports)
        if calls in ready:
            with calls.accept()[0] as caller, suppress(TimeoutError):
                caller.settimeout(_PATIENCE)
                _fork(socket.recv_fds(caller, 1, 4)[1], reports)
        if control in ready:
            asked, fds, _, _ = socket.recv_fds(control, 1, 4)
            if not asked:
                return
            _fork(fds, reports)


def _fork(fds: list[int], reports: dict[int, int]) -> None:
    """Fork a new process with these files, the last of which receives the reports."""
    if len(fds) != 4:
        return  # the caller has died meanwhile
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        os._exit(_run_command(fds))
    for fd in fds[:3]:
        os.close(fd)
    reports[pid] = fds[3]
    with suppress(OSError):  # nobody may wait for it
        os.write(fds[3], b"%d\n" % pid)


def _report_ended(reports: dict[int, int]) -> None:
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        report = reports.pop(pid)
        with suppress(OSError):  # nobody may wait for it
            os.write(report, b"%d\n" % status)
        os.close(report)


def _run_command(fds: list[int]) -> int:
    """Set up the new process as a command finds it, run the command, and return its status."""
    with open(fds[3], "rb", closefd=False) as instructions:
        asked: dict[str, Any] = json.load(instructions)
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for signum, handler in _SIGNALS.items():
        signal.signal(signum, signal.SIG_IGN if signum in asked["ignored"] else handler)
    if asked["session"]:
        os.setsid()
    os.umask(asked["umask"])
    os.chdir(asked["cwd"])
    kept = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}  # set by Python at its start
    os.environ.clear()
    os.environ.update(kept | asked["env"])
    time.tzset()
    others = [str(Path(entry).absolute()) for entry in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    script = asked["script"]
    before = [str(Path(script).resolve().parent if script else Path.cwd()), *others]
    if _hides_what_is_imported(before):
        command = [sys.executable, *([script] if script else ["-m", "perstack"]), *asked["args"]]
        os.execve(sys.executable, command, asked["env"])
    sys.path[:] = [*before, *sys.path[1:]]
    if not _contains_distributions(before):
        _reuse_entry_points(before)
    _open_streams()
    sys.argv = [script or "perstack", *asked["args"]]
    status = _run_script(script)
    return _finish() or status


def _hides_what_is_imported(folders: list[str]) -> bool:
    """Return whether a new Python would find other modules in these folders."""
    found = (path for folder in folders if os.path.isdir(folder) for path in Path(folder).iterdir())  # noqa: PTH112
    return any(path.stem in _occupied and (path.suffix == ".py" or (path / "__init__.py").exists()) for path in found)


def _contains_distributions(folders: list[str]) -> bool:
    """Return whether a new Python would find installed distributions in these folders."""
    found = (path for folder in folders if os.path.isdir(folder) for path in Path(folder).iterdir())  # noqa: PTH112
    return any(path.suffix in (".dist-info", ".egg-info", ".egg") for path in found)


def _reuse_entry_points(before: list[str]) -> None:
    """Find the installed plugins without reading metadata, as long as the path has only `before` besides the rest."""
    read, rest = plugin_modules._entry_points, sys.path[len(before) :]

    def find(path: tuple[str, ...]) -> Any:
        return _INSTALLED if [entry for entry in path if entry not in before] == rest else read(path)

    plugin_modules._entry_points = find  # type: ignore[assignment]


def _open_streams() -> None:
    """Open the standard streams as Python does at its start: buffered, or by line for terminals."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "w" if number else "r"
        raw: Any = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        old = getattr(sys, name)
        new: Any = io.TextIOWrapper(
            io.BufferedWriter(raw) if number else io.BufferedReader(raw),
            old.encoding,
            old.errors,
            newline="\n" if number else None,
            line_buffering=name == "stderr" or raw.isatty(),
        )
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _run_script(script: str | None) -> int:
    """Run `python -m perstack` or the console script, and return the exit status that Python would use."""
    try:
        if script:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module("perstack", run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - any error ends the program
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _finish() -> int:
    """Do what Python does at exit, except freeing objects, which is half of the cost of a short command."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}", file=sys.stderr)
        return 120
    sys.stderr.flush()
    return 0


def _modules_to_import() -> Iterator[str]:
    """Yield the modules to import beforehand."""
    yield from _ALSO
    for point in entry_points(group="perstack"):
        yield point.module
    for package in _PACKAGES:
        yield package
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.startswith(_LEFT_OUT):
                yield module.name


def _rehearse() -> None:
    """Import and compile what a short Job needs, by running one in a forked process: each command would repeat it."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(_report_rehearsal(theirs))
    os.close(theirs)
    with os.fdopen(ours, encoding="utf-8") as report:
        modules, patterns = json.load(report)
    os.waitpid(pid, 0)
    for name in modules:
        importlib.import_module(name)
    for pattern, flags in patterns:
        re.compile(pattern, flags)


def _report_rehearsal(report: int) -> int:
    """Run a short Job, and write what it imported and which patterns it compiled."""
    imported, compiled, compile_pattern = set(sys.modules), [], re._compiler.compile  # type: ignore[attr-defined]

    def note(pattern: Any, flags: int = 0) -> Any:
        if isinstance(pattern, str):
            compiled.append((pattern, int(flags)))
        return compile_pattern(pattern, flags)

    re._compiler.compile = note  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        os.chdir(folder)
        os.environ.update(XDG_STATE_HOME=folder, PERSTACK_TRUST=folder, PERSTACK_PLUGINS="perstack.testing.plugin")
        os.environ["PERSTACK_SCRIPT"] = str(Path(folder, "script.json"))
        Path("script.json").write_text('{"experts": {"one": {"turns": [{"text": "done"}]}}}')
        Path("perstack.toml").write_text('[experts.one]\ninstruction = "You rehearse."\n')
        sys.argv = ["perstack", "run", "one", "rehearse", "--provider", "scripted"]
        sys.stdout = sys.stderr = nowhere
        assert _run_script(None) == 0
    with os.fdopen(report, "w", encoding="utf-8") as file:
        json.dump([sorted(set(sys.modules) - imported), compiled], file)
    return 0


def _use_huge_pages() -> None:
    """Put the memory in pages of 2 MB, where the system can: a fork has to copy the table of its pages."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, mode, _, _, _, *name = line.split(maxsplit=5)
        start, end = (int(one, 16) for one in place.split("-"))
        if mode == "rw-p" and name in ([], ["[heap]"]) and end - start >= 2 * _HUGE:
            for advice in (_HUGEPAGE, _COLLAPSE):  # refused by an older system, and then it stays as it is
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


if __name__ == "__main__":
    for _name in _modules_to_import():
        importlib.import_module(_name)
    build_models()
    compile_dataclasses()
    for _factory in load_plugins().providers.values():
        if _factory.prices is not None:
            _factory.prices.models()  # cached: `init`, `doctor` and `models` need the price of every model
    _rehearse()
    do_not_wait_for_disk()
    assert threading.active_count() == 1, threading.enumerate()
    _occupied = frozenset({*sys.modules, "sitecustomize", "usercustomize"})
    gc.collect()
    gc.freeze()  # keep memory shared with forked processes
    _use_huge_pages()
    serve(*(socket.socket(fileno=int(fd)) for fd in sys.argv[1:]))
