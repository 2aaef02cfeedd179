"""Enforcement of a policy's limits: by cgroups, otherwise by `pid_max` or rlimits.

Since Linux 6.14 `pid_max` is per PID namespace; it is set from outside before the program starts. Pids below 300 are
not reused after a wrap-around, so up to that many more processes than the limit may exist at first.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import cache
from itertools import count
from pathlib import Path
from threading import Lock

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.dataclass import dataclass
from perstack.errors import SkillError
from perstack_bubblewrap.cgroups import (
    Controller,
    JobCgroup,
    JobLimits,
    ProgramCgroup,
    available_controllers,
    cgroup_parents,
)
from perstack_bubblewrap.machine import run_trusted

SPARE_PIDS = 300
_MIN_KERNEL = (6, 14)
_CAP_SYS_ADMIN = 1 << 21
_REPORT_TIMEOUT_S = 10  # seconds to wait for bwrap to report the process it has started
_CHUNK_BYTES = 4096
_CHILD = re.compile(rb'"child-pid": (\d+)\D')
_SET = 'echo "$0" > /proc/sys/kernel/pid_max'


@cache
def is_possible() -> bool:
    """Return whether this process may set `pid_max`, and the kernel has one per PID namespace."""
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    return os.geteuid() == 0 and release >= _MIN_KERNEL and _may_administer() and _find_nsenter() is not None


@dataclass(slots=True)
class PausedProgram:
    """A program that is blocked until its sandbox has its limit."""

    processes: int
    info_fd: int
    release_fd: int
    # descriptors that bwrap inherits; `close_inherited` closes them in this process
    inherited: list[int] = field(default_factory=list[int])

    @property
    def bwrap_argv(self) -> tuple[str, ...]:
        """Arguments of bwrap that block the program."""
        return "--info-fd", str(self.inherited[0]), "--block-fd", str(self.inherited[1])

    async def bind(self) -> None:
        """Set the limit and let the program start. If that fails, the caller must end it. Raises SkillError."""
        self.close_inherited()
        try:
            async with asyncio.timeout(_REPORT_TIMEOUT_S):
                child = await self._read_child_pid()
        except TimeoutError:
            child = None
        if child is None:
            return  # the program has already ended, and its own result says why
        argv = (_find_nsenter() or "nsenter", f"--pid=/proc/{child}/ns/pid", "--", "/bin/sh", "-c", _SET)
        status, message = await run_trusted(*argv, str(self.processes + SPARE_PIDS))
        if status != 0:
            raise SkillError(f"the limit `processes` of [sandbox] cannot be set: {message.strip()}")
        with suppress(BrokenPipeError):
            os.write(self.release_fd, b"\n")

    def close_inherited(self) -> None:
        """Close the descriptors that bwrap has inherited."""
        while self.inherited:
            os.close(self.inherited.pop())

    async def _read_child_pid(self) -> int | None:
        """Return the pid of the program that bwrap reports; None if bwrap has ended."""
        loop, output = asyncio.get_running_loop(), b""
        while not (match := _CHILD.search(output)):
            ready = asyncio.Event()
            loop.add_reader(self.info_fd, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self.info_fd)
            chunk = os.read(self.info_fd, _CHUNK_BYTES)
            if not chunk:
                return None
            output += chunk
        return int(match[1])


@contextmanager
def paused_until_limited(processes: int | None) -> Generator[PausedProgram | None]:
    """Block a program until this limit is set; yields None without a limit."""
    if processes is None:
        yield None
        return
    info_fd, info_write = os.pipe()
    block_read, release_fd = os.pipe()
    program = PausedProgram(processes, info_fd, release_fd, [info_write, block_read])
    try:
        yield program
    finally:
        program.close_inherited()
        os.close(info_fd)
        os.close(release_fd)


def _find_nsenter() -> str | None:
    return shutil.which("nsenter", path="/usr/bin:/bin")


def _may_administer() -> bool:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                return bool(int(value, 16) & _CAP_SYS_ADMIN)
    return False


_JOIN_SCRIPT = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 126; shift; done; shift; exec "$@"'
_CONTROLLERS: Mapping[str, Controller] = {"memory": "memory", "processes": "pids", "cpu": "cpu"}


def limits_of(policy: SandboxPolicy) -> JobLimits:
    """Return the policy's limits that cgroups can enforce here."""
    controllers = available_controllers()
    return JobLimits(
        policy.memory if "memory" in controllers else None,
        policy.processes if "pids" in controllers else None,
        policy.cpu if "cpu" in controllers else None,
    )


def unenforced_limits(policy: SandboxPolicy) -> tuple[str, ...]:
    """Describe the limits of a policy that nothing enforces on this machine."""
    limits = {"memory": policy.memory, "processes": policy.processes, "cpu": policy.cpu}
    texts = enforcement()
    keys = (key for key, limit in limits.items() if limit is not None and not _is_enforced(key))
    return tuple(f"`{key}`: {texts[key]}" for key in keys)


def enforcement() -> dict[str, str]:
    """Return how each limit is enforced here, or why it is not, as a text that follows the limit's name."""
    texts: dict[str, str] = {}
    for key, controller in _CONTROLLERS.items():
        version = next(
            ("v2" if parent.is_v2 else "v1" for parent in cgroup_parents() if controller in parent.controllers), None
        )
        if version is not None:
            texts[key] = f"holds for all programs of a Job together (cgroups {version})"
        elif key == "processes" and _uses_pid_max():
            texts[key] = f"holds for each program, give or take {SPARE_PIDS} (pid_max): cgroups are not available here"
        elif _uses_rlimit(key):
            subject = "address space of each process" if key == "memory" else "processes of each program"
            texts[key] = f"holds for the {subject} (rlimit): cgroups are not available here"
        else:
            texts[key] = "is not enforced here: cgroups are not available (run perstack in a delegated cgroup)"
    texts["time"] = "holds for each program"
    texts["tmp"] = "holds for each program"
    return texts


def rlimit_argv(policy: SandboxPolicy, cgroup: ProgramCgroup | None) -> tuple[str, ...]:
    """Return the prefix of the program's command line for limits set by rlimit; empty if none are needed."""
    controllers = available_controllers() if cgroup is not None else frozenset[str]()
    options: list[str] = []
    if policy.memory is not None and "memory" not in controllers:
        options.append(f"--as={policy.memory}")
    if policy.processes is not None and "pids" not in controllers and _uses_rlimit("processes"):
        options.append(f"--nproc={policy.processes}")
    return ("prlimit", *options, "--") if options else ()


def pid_limit(policy: SandboxPolicy, cgroup: ProgramCgroup | None) -> int | None:
    """Return the `pid_max` to set for a program; None if another mechanism counts the processes."""
    is_counted = cgroup is not None and "pids" in available_controllers()
    return policy.processes if not is_counted and _uses_pid_max() else None


def join_cgroup_argv(cgroup: ProgramCgroup | None) -> tuple[str, ...]:
    """Return the prefix of bwrap's command line that first joins the cgroup."""
    return () if cgroup is None else ("/bin/sh", "-c", _JOIN_SCRIPT, "sh", *cgroup.procs_files, "--")


def describe_excess(controller: Controller, policy: SandboxPolicy) -> str:
    """Describe how a program exceeded a limit."""
    match controller:
        case "memory":
            mib = (policy.memory or 0) >> 20
            return f"it used more than the {mib:,} MiB of memory that all programs of the Job may have together"
        case "pids":
            return (
                f"it started more than the {policy.processes} processes that all programs of the Job together may have"
            )
        case "cpu":
            return "it used more processor time than it may"


def _is_enforced(key: str) -> bool:
    return _CONTROLLERS[key] in available_controllers() or _uses_rlimit(key) or (key == "processes" and _uses_pid_max())


def _uses_pid_max() -> bool:
    """Return whether `pid_max` enforces the limit: as root, for whom rlimits do not count."""
    return not _uses_rlimit("processes") and is_possible()


def _uses_rlimit(key: str) -> bool:
    """Return whether an rlimit enforces the limit. No rlimit bounds the number of root's processes."""
    if key == "cpu" or shutil.which("prlimit", path="/usr/bin:/bin") is None:
        return False
    return key == "memory" or os.geteuid() != 0


# Cgroups of the running Jobs. Runs of a Job share them, although their policies may differ.

_LOCK = Lock()
_SHARED_CGROUPS: dict[tuple[str, JobLimits], SharedCgroup] = {}
_NUMBERS = count(1)


@dataclass(slots=True)
class SharedCgroup:
    """A cgroup with the number of its users."""

    key: tuple[str, JobLimits]
    group: JobCgroup
    users: int = 0

    def leave(self) -> None:
        """End a use. The last user removes the cgroup."""
        with _LOCK:
            self.users -= 1
            if self.users == 0:
                _SHARED_CGROUPS.pop(self.key, None)
                self.group.remove()


def cgroup_of(policy: SandboxPolicy, job_id: str) -> SharedCgroup | None:
    """Return the cgroup of a Job's policy, to be left with `leave`; None if nothing needs one. Raises SkillError."""
    job_limits = limits_of(policy)
    if not job_limits.controllers:
        return None
    with _LOCK:
        key = (job_id or f"none-{next(_NUMBERS)}", job_limits)
        shared_cgroup = _SHARED_CGROUPS.get(key)
        if shared_cgroup is None:
            try:
                shared_cgroup = _SHARED_CGROUPS[key] = SharedCgroup(key, JobCgroup(job_limits, f"{next(_NUMBERS)}"))
            except OSError as error:
                raise SkillError(f"no cgroup can be created for the limits of [sandbox]: {error}") from error
        shared_cgroup.users += 1
        return shared_cgroup
