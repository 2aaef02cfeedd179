"""How each limit of a policy is kept on this machine, and what is said of a program that ran into one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from perstack.core.sandbox import SandboxPolicy
from perstack_bubblewrap.cgroups import Controller, Limits, Member, enforceable, places
from perstack_bubblewrap.pid_max import SPARE, is_possible

_JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 126; shift; done; shift; exec "$@"'
_CONTROLLERS: Mapping[str, Controller] = {"memory": "memory", "processes": "pids", "cpu": "cpu"}


def limits_of(policy: SandboxPolicy) -> Limits:
    """What the kernel is to count, as far as it can here."""
    there = enforceable()
    return Limits(
        policy.memory if "memory" in there else None,
        policy.processes if "pids" in there else None,
        policy.cpu if "cpu" in there else None,
    )


def unenforced(policy: SandboxPolicy) -> tuple[str, ...]:
    """What of a policy nothing keeps on this machine, each with why."""
    asked = {"memory": policy.memory, "processes": policy.processes, "cpu": policy.cpu}
    how = ways()
    return tuple(f"`{key}`: {how[key]}" for key, limit in asked.items() if limit is not None and not _is_kept(key))


def ways() -> dict[str, str]:
    """How each limit is kept here, or why it is not, in words that follow its name."""
    found: dict[str, str] = {}
    for key, controller in _CONTROLLERS.items():
        version = next(("v2" if one.is_second else "v1" for one in places() if controller in one.controllers), None)
        if version is not None:
            found[key] = f"holds for all programs of a Job together (cgroups {version})"
        elif key == "processes" and _by_number():
            found[key] = f"holds for each program, give or take {SPARE} (pid_max): no cgroup can be made here"
        elif _by_rlimit(key):
            what = "address space of each process" if key == "memory" else "processes of each program"
            found[key] = f"holds for the {what} (rlimit): no cgroup can be made here"
        else:
            found[key] = "nothing keeps it here: no cgroup can be made (run perstack where one is delegated to it)"
    found["time"] = "holds for each program"
    found["tmp"] = "holds for each program"
    return found


def own_limits(policy: SandboxPolicy, member: Member | None) -> tuple[str, ...]:
    """What is put before a program inside, for limits that are not counted outside."""
    there = enforceable() if member is not None else frozenset[str]()
    words: list[str] = []
    if policy.memory is not None and "memory" not in there:
        words.append(f"--as={policy.memory}")
    if policy.processes is not None and "pids" not in there and _by_rlimit("processes"):
        words.append(f"--nproc={policy.processes}")
    return ("prlimit", *words, "--") if words else ()


def numbered(policy: SandboxPolicy, member: Member | None) -> int | None:
    """The number of processes that is to be set for a program's own space, where nothing else counts them."""
    is_counted = member is not None and "pids" in enforceable()
    return policy.processes if not is_counted and _by_number() else None


def joined(member: Member | None) -> tuple[str, ...]:
    """What is put before bwrap, so that it is in its group before it does anything."""
    return () if member is None else ("/bin/sh", "-c", _JOIN, "sh", *member.doors, "--")


def in_words(over: Controller, policy: SandboxPolicy) -> str:
    """What a program did that ran into a limit."""
    match over:
        case "memory":
            mib = (policy.memory or 0) >> 20
            return f"it used more than the {mib:,} MiB of memory that all programs of the Job may have together"
        case "pids":
            return f"it started more than the {policy.processes} processes that all programs of the Job may be together"
        case "cpu":
            return "it used more processor time than it may"


def _is_kept(key: str) -> bool:
    return _CONTROLLERS[key] in enforceable() or _by_rlimit(key) or (key == "processes" and _by_number())


def _by_number() -> bool:
    """For root, whom no rlimit binds."""
    return not _by_rlimit("processes") and is_possible()


def _by_rlimit(key: str) -> bool:
    """The number of processes of root's is not bound by one."""
    if key == "cpu" or shutil.which("prlimit", path="/usr/bin:/bin") is None:
        return False
    return key == "memory" or os.geteuid() != 0
