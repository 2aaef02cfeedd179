"""Parts of the machine that a sandbox needs: bwrap, the seccomp filter, and the system files shown inside."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from perstack.errors import UsageError
from perstack_bubblewrap.bwrap_arguments import COVERED, FolderView, System, arguments
from perstack_bubblewrap.seccomp import MACHINES, filter_of


@contextmanager
def memory_files(*contents: bytes) -> Generator[tuple[int, ...]]:
    """Yield one memory file per content, positioned at its start, so that data is neither on disk nor in argv."""
    if sys.platform != "linux":
        raise UsageError("the runtime bubblewrap needs Linux: use another runtime")
    with ExitStack() as stack:
        handles: list[int] = []
        for data in contents:
            handle = os.memfd_create("perstack")
            stack.callback(os.close, handle)
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(handle, remaining) :]
            os.lseek(handle, 0, os.SEEK_SET)
            handles.append(handle)
        yield tuple(handles)


_MIN_VERSION = (0, 8)
_REQUIRED_OPTION = "--ro-bind-fd"
"""The option that mounts a descriptor: added in 0.10, and backported to older versions as a fix."""
_TRIAL_TIMEOUT_S = 10  # seconds that a trivial program may take to start and end

_FILES = Path(__file__).parent / "files"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_ETC_ENTRIES = (
    "alternatives", "ca-certificates", "fonts", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "os-release", "pki/ca-trust", "pki/tls/cert.pem",
    "pki/tls/certs", "pki/tls/openssl.cnf", "protocols", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo",
    "timezone",
)  # fmt: skip
"""Entries of /etc that programs need and that reveal nothing about users or services. Each costs 0.3 ms."""
_OWN_ETC_FILES = ("passwd", "group", "hosts", "nsswitch.conf")

HIDDEN = str(_FILES / "hidden")


@cache
def system() -> System:
    """Return the part of the system that every program sees."""
    links: list[tuple[str, str]] = []
    folders: list[str] = []
    for name in _SYSTEM:
        if Path(name).is_symlink():
            links.append((str(Path(name).readlink()), name))
        elif Path(name).is_dir():
            folders.append(name)
    folders += [path for path in (f"/etc/{name}" for name in _ETC_ENTRIES) if Path(path).exists()]
    files = tuple((str(_FILES / name), f"/etc/{name}") for name in _OWN_ETC_FILES)
    present = frozenset(path for path in COVERED if Path(path).exists())
    return System(tuple(links), tuple(folders), files, HIDDEN, present)


@cache
def seccomp() -> bytes:
    """Return the seccomp filter for this machine. Raises UsageError for an unsupported one."""
    machine = MACHINES.get(platform.machine())
    if machine is None or sys.maxsize < 1 << 32:
        raise UsageError(
            f"the runtime bubblewrap has no filter of system calls for {platform.machine()}, only for"
            f" {' and '.join(MACHINES)}: run it on one of these"
        )
    return filter_of(machine)


def find_bwrap(env: Mapping[str, str], *, path: str = os.defpath) -> str:
    """Return the path of bwrap in PATH or `path`. Raises UsageError, which says how to install it.

    Relative directories are skipped: a sandboxed program could replace bwrap in the workspace.
    """
    folders = os.pathsep.join(filter(os.path.isabs, env.get("PATH", path).split(os.pathsep)))
    candidates = (shutil.which("bwrap", path=search_path) for search_path in (folders, path) if search_path)
    bwrap = next(filter(None, candidates), None)
    if sys.platform != "linux":
        raise UsageError("the runtime bubblewrap needs Linux: use another runtime")
    if bwrap is None:
        raise UsageError(
            "the runtime bubblewrap needs the program bwrap, which was not found: install it (apt install bubblewrap,"
            " dnf install bubblewrap), or use another runtime"
        )
    return bwrap


_usable: set[str] = set()


async def check_bwrap(bwrap: str) -> None:
    """Raise UsageError if bwrap is too old, or the kernel does not let it create a sandbox."""
    if bwrap in _usable:
        return
    status, output = await run_trusted(bwrap, "--version")
    version = tuple(int(part) for part in re.findall(r"\d+", output)[:2])
    _, options = await run_trusted(bwrap, "--help")
    if status != 0 or version < _MIN_VERSION or _REQUIRED_OPTION not in options:
        raise UsageError(
            f"{bwrap} is {output.strip() or 'of no known version'}: bubblewrap 0.10 is needed, or an older one with the"
            f" option {_REQUIRED_OPTION}, as distributions have it: update it"
        )
    with memory_files(arguments(system(), FolderView(), cwd="/", env={}), seccomp()) as (args_fd, filter_fd):
        status, output = await run_trusted(
            bwrap, "--args", str(args_fd), "--seccomp", str(filter_fd), "--", "/bin/true", kept_fds=(args_fd, filter_fd)
        )
    if status != 0:
        last = (output.strip().splitlines() or [f"exit status {status}"])[-1]
        raise UsageError(
            f"the kernel does not let bwrap create a sandbox ({last}): allow it user namespaces"
            " (user.max_user_namespaces, kernel.unprivileged_userns_clone, or an AppArmor profile for bwrap), or use"
            " another runtime"
        )
    _usable.add(bwrap)


async def run_trusted(*argv: str, kept_fds: tuple[int, ...] = ()) -> tuple[int, str]:
    """Run a trusted program with a timeout; return its exit status and all its output."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env={}, pass_fds=kept_fds, start_new_session=True
    )
    try:
        async with asyncio.timeout(_TRIAL_TIMEOUT_S):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return 1, f"no answer within {_TRIAL_TIMEOUT_S} s"
    return process.returncode or 0, (stdout + stderr).decode("utf-8", "replace")
