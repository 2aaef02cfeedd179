"""What a program in a sandbox sees: the arguments of bwrap. Nothing here touches the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType

from perstack.core.sandbox import is_below
from perstack.dataclass import dataclass

_MIB = 1 << 20
DEFAULT_TMP = 1024 * _MIB
"""Bytes that /tmp may hold if nothing is said of it."""
_SHARED_MEMORY = 64 * _MIB
_SHM = "shm"
TMP = "/tmp"  # noqa: S108 - each program has its own
"""Also the home folder inside."""

_ISOLATED = (
    "--unshare-user",
    "--disable-userns",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--uid",
    "1000",
    "--gid",
    "1000",
    "--hostname",
    "sandbox",
)
"""The user inside is an ordinary one, whoever it is outside: even root's programs do not take themselves for root."""

_ONLY_READ = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/mtrr")
_EMPTIED = ("/proc/acpi", "/proc/scsi", "/proc/asound", "/proc/driver")
_NOT_SHOWN = ("/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/latency_stats", "/proc/timer_list", "/proc/kmsg")
"""Root's files in /proc belong to the user inside if root is outside: by its owner each could be read or written."""


@dataclass(frozen=True, slots=True)
class System:
    """What of the machine every program sees."""

    links: tuple[tuple[str, str], ...] = ()
    """Such as /bin, with where they lead."""
    folders: tuple[str, ...] = ()
    """Folders and files that may be read, at their own places."""
    files: tuple[tuple[str, str], ...] = ()
    """Files of ours, each with the place that it has inside."""
    hidden: str = "/dev/null"
    """A file that stands in for those that are hidden."""
    proc: frozenset[str] = frozenset()
    """What there is in /proc, of those that are covered."""


@dataclass(frozen=True, slots=True)
class View:
    """What of the folders of a person a program sees. Absolute paths."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    """Folders that seem empty."""
    hidden: tuple[str, ...] = ()
    """Files that have another content."""
    fixed: tuple[str, ...] = ()
    """Files and folders that can be read and not changed, moved or removed."""
    held: tuple[str, ...] = ()
    """Folders that can be changed, and not moved or removed."""
    anchored: tuple[str, ...] = ()
    """Files whose folders are held up to the top, so that no other file takes the place of one."""


def arguments(
    system: System,
    view: View,
    *,
    cwd: str,
    env: Mapping[str, str],
    tmp: int = DEFAULT_TMP,
    more: Sequence[str] = (),
    handles: Mapping[str, int] = MappingProxyType({}),
) -> bytes:
    """The arguments, as `bwrap --args` reads them. `more` go before those that make the rest read-only. `handles`
    are those of what is `inner`; what has none is left as it is.

    Raises ValueError if one has a NUL in it, which would end it: what comes after would be an argument of its own.
    """
    words = [
        *_ISOLATED,
        *(word for target, link in system.links for word in ("--symlink", target, link)),
        *_each("--ro-bind", system.folders),
        *(word for source, place in system.files for word in ("--ro-bind", source, place)),
        *_proc(system),
        *("--dev", "/dev", "--perms", "1777", "--size", str(_SHARED_MEMORY), "--tmpfs", f"/dev/{_SHM}"),
        *("--perms", "1777", "--size", str(tmp), "--tmpfs", TMP, "--dir", "/run"),
        *("--dir", "/var", "--symlink", TMP, f"/var{TMP}"),
        *_person(system, view, handles),
        *more,
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd, "--clearenv"),
        *(word for name, value in env.items() for word in ("--setenv", name, value)),
    ]
    if any("\0" in word for word in words):
        raise ValueError("embedded null byte")
    if any(not name or "=" in name for name in env):
        raise ValueError("a variable has an invalid name")
    return b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


def environment(env: Mapping[str, str], view: View) -> dict[str, str]:
    """The variables of a program, with those that name what is not there naming what is."""
    seen = (*view.readable, *view.writable)
    inside = {"USER": "user", "LOGNAME": "user", "HOME": TMP, "TMPDIR": TMP}
    kept = {name for name in ("HOME", "TMPDIR") if name in env and is_below(env[name], seen)}
    return {**env, **{name: value for name, value in inside.items() if name not in kept}}


@dataclass(frozen=True, slots=True)
class Inner:
    """What is mounted upon itself, in folders that programs may change."""

    changeable: tuple[str, ...]
    fixed: tuple[str, ...]


def inner(view: View) -> Inner:
    """Of a view."""
    ways = (str(above) for path in view.anchored for above in PurePosixPath(path).parents)
    changeable = (path for path in (*ways, *view.held) if is_below(path, view.writable) and path not in view.writable)
    fixed = (path for path in (*view.fixed, *view.readable) if is_below(path, view.writable))
    return Inner(tuple(dict.fromkeys(changeable)), tuple(dict.fromkeys(fixed)))


def _person(system: System, view: View, handles: Mapping[str, int]) -> Iterable[str]:
    """What is above comes before what is in it, which would be covered otherwise."""
    seen, within = (*view.readable, *view.writable), inner(view)
    steps: dict[str, tuple[str, ...]] = {}
    for path in view.readable:
        if path not in within.fixed:
            steps[path] = ("--ro-bind", path, path)
    for path in view.writable:
        steps[path] = ("--bind", path, path)
    for option, paths in (("--bind-fd", within.changeable), ("--ro-bind-fd", within.fixed)):
        steps |= {path: (option, str(handles[path]), path) for path in paths if path in handles}
    for path in view.hidden:
        if is_below(path, seen):
            steps[path] = ("--ro-bind", system.hidden, path)
    for path in view.emptied:
        if is_below(path, seen):
            steps[path] = ("--size", "4096", "--tmpfs", path, "--remount-ro", path)
    for path in sorted(steps, key=lambda path: path.count("/") if path != "/" else 0):
        yield from steps[path]


def _proc(system: System) -> Iterable[str]:
    yield from ("--proc", "/proc")
    for path in _ONLY_READ:
        if path in system.proc:
            yield from ("--ro-bind", path, path)
    for path in _EMPTIED:
        if path in system.proc:
            yield from ("--size", "4096", "--tmpfs", path, "--remount-ro", path)
    for path in _NOT_SHOWN:
        if path in system.proc:
            yield from ("--ro-bind", "/dev/null", path)


def _each(option: str, paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        yield from (option, path, path)


COVERED = (*_ONLY_READ, *_EMPTIED, *_NOT_SHOWN)
"""What of /proc is covered where it is there."""
