"""Arguments of bwrap, computed from a file view, and handles of the mounted paths."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import PurePosixPath
from types import MappingProxyType

from perstack.core.definitions.sandbox import is_below
from perstack.dataclass import dataclass

_MIB = 1 << 20
DEFAULT_TMP_BYTES = 1024 * _MIB  # default size of /tmp in bytes
_SHARED_MEMORY_BYTES = 64 * _MIB
_SHM = "shm"
TMP = "/tmp"  # noqa: S108 - each program has its own
"""Directory for temporary files, which is also the home directory in the sandbox."""

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
"""Isolation options.

The user inside is never root, even if root starts the sandbox, so that programs do not assume root.
"""

_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/mtrr")
_EMPTIED = ("/proc/acpi", "/proc/scsi", "/proc/asound", "/proc/driver")
_COVERED_FILES = tuple(
    f"/proc/{name}" for name in ("kcore", "keys", "key-users", "latency_stats", "timer_list", "kmsg")
)
"""Paths in /proc that are covered: with root outside, its files there belong to the user inside, who could use them."""


@dataclass(frozen=True, slots=True)
class System:
    """The part of the machine that every program sees."""

    links: tuple[tuple[str, str], ...] = ()  # symbolic links such as /bin: target and link
    folders: tuple[str, ...] = ()  # directories and files mounted read-only at their own paths
    files: tuple[tuple[str, str], ...] = ()  # files of this package: source and path in the sandbox
    hidden: str = "/dev/null"  # empty file that is mounted over hidden files
    proc: frozenset[str] = frozenset()  # covered paths in /proc that exist on this machine


@dataclass(frozen=True, slots=True)
class FolderView:
    """The person's directories that a program sees, as absolute paths."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()  # directories shown as empty
    hidden: tuple[str, ...] = ()  # files shown with other content
    fixed: tuple[str, ...] = ()  # files and directories that can be read but not changed, moved or removed
    unmovable: tuple[str, ...] = ()  # directories that can be changed but not moved or removed
    anchored: tuple[str, ...] = ()
    """Files whose parent directories cannot be moved either, so that no other file can take their place."""


def arguments(
    system: System,
    view: FolderView,
    *,
    cwd: str,
    env: Mapping[str, str],
    tmp: int = DEFAULT_TMP_BYTES,
    extra_mounts: Sequence[str] = (),
    handles: Mapping[str, int] = MappingProxyType({}),
) -> bytes:
    """Return the arguments in the format of `bwrap --args`. Raises ValueError for a NUL, which would end an argument.

    `extra_mounts` are inserted before the options that make the rest read-only. A path without a handle is not mounted.
    """
    options = [
        *_ISOLATED,
        *(option for target, link in system.links for option in ("--symlink", target, link)),
        *_option_for_each("--ro-bind", system.folders),
        *(option for source, place in system.files for option in ("--ro-bind", source, place)),
        *_proc_mounts(system),
        *("--dev", "/dev", "--perms", "1777", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", f"/dev/{_SHM}"),
        *("--perms", "1777", "--size", str(tmp), "--tmpfs", TMP, "--dir", "/run"),
        *("--dir", "/var", "--symlink", TMP, f"/var{TMP}"),
        *_person_mounts(system, view, handles),
        *extra_mounts,
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd, "--clearenv"),
        *(option for name, value in env.items() for option in ("--setenv", name, value)),
    ]
    if any("\0" in option for option in options):
        raise ValueError("embedded null byte")
    if any(not name or "=" in name for name in env):
        raise ValueError("a variable has an invalid name")
    return b"".join(option.encode("utf-8", "surrogateescape") + b"\0" for option in options)


def environment(env: Mapping[str, str], view: FolderView) -> dict[str, str]:
    """Return a program's variables, with HOME, TMPDIR and the user set to what exists inside."""
    visible = (*view.readable, *view.writable)
    values = {"USER": "user", "LOGNAME": "user", "HOME": TMP, "TMPDIR": TMP}
    visible_names = {name for name in ("HOME", "TMPDIR") if name in env and is_below(env[name], visible)}
    return {**env, **{name: value for name, value in values.items() if name not in visible_names}}


@dataclass(frozen=True, slots=True)
class InnerMounts:
    """Paths in writable directories that are mounted onto themselves, to protect them."""

    changeable: tuple[str, ...]
    fixed: tuple[str, ...]


def find_inner_mounts(view: FolderView) -> InnerMounts:
    ancestors = (str(parent) for path in view.anchored for parent in PurePosixPath(path).parents)
    paths = (path for path in (*ancestors, *view.unmovable) if path not in view.writable)
    changeable = (path for path in paths if is_below(path, view.writable))
    fixed = (path for path in (*view.fixed, *view.readable) if is_below(path, view.writable))
    return InnerMounts(tuple(dict.fromkeys(changeable)), tuple(dict.fromkeys(fixed)))


def _person_mounts(system: System, view: FolderView, handles: Mapping[str, int]) -> Iterable[str]:
    """Yield the mounts of the person's files. Parents come first, since a later mount would cover its content."""
    visible, inner_mounts = (*view.readable, *view.writable), find_inner_mounts(view)
    mounts: dict[str, tuple[str, ...]] = {}
    for path in view.readable:
        if path not in inner_mounts.fixed:
            mounts[path] = ("--ro-bind", path, path)
    for path in view.writable:
        mounts[path] = ("--bind", path, path)
    for option, paths in (("--bind-fd", inner_mounts.changeable), ("--ro-bind-fd", inner_mounts.fixed)):
        mounts |= {path: (option, str(handles[path]), path) for path in paths if path in handles}
    mounts |= {path: ("--ro-bind", system.hidden, path) for path in view.hidden if is_below(path, visible)}
    emptied = [path for path in view.emptied if is_below(path, visible)]
    mounts |= {path: ("--size", "4096", "--tmpfs", path) for path in emptied}
    for path in sorted(mounts, key=lambda path: path.count("/") if path != "/" else 0):
        yield from mounts[path]
    for path in emptied:  # last, because a readable folder may be in an emptied one
        yield from ("--remount-ro", path)


def _proc_mounts(system: System) -> Iterable[str]:
    yield from ("--proc", "/proc")
    for path in _READ_ONLY:
        if path in system.proc:
            yield from ("--ro-bind", path, path)
    for path in _EMPTIED:
        if path in system.proc:
            yield from ("--size", "4096", "--tmpfs", path, "--remount-ro", path)
    for path in _COVERED_FILES:
        if path in system.proc:
            yield from ("--ro-bind", "/dev/null", path)


def _option_for_each(option: str, paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        yield from (option, path, path)


COVERED = (*_READ_ONLY, *_EMPTIED, *_COVERED_FILES)  # paths in /proc that are covered where they exist


# Handles of the inner paths, held open while a sandbox is created.
#
# A concurrent program may replace any path with a link. A mount by name would then expose the link's target, anywhere
# on the machine; a mount by handle exposes the checked file.

if sys.platform == "linux":
    _PATH_FLAGS = os.O_PATH
else:  # this system has no bwrap: the runtime is refused earlier
    _PATH_FLAGS = os.O_RDONLY
_COMPONENT_FLAGS = _PATH_FLAGS | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def open_mount_sources(view: FolderView) -> Generator[dict[str, int]]:
    """Open the inner paths of a view; a path that is gone or has become a link gets no handle."""
    with ExitStack() as stack:
        handles: dict[str, int] = {}
        for path in (*find_inner_mounts(view).changeable, *find_inner_mounts(view).fixed):
            root = next(root for root in view.writable if is_below(path, (root,)))
            handle = open_below(root, PurePosixPath(path).relative_to(root).parts)
            if handle is not None:
                stack.callback(os.close, handle)
                handles[path] = handle
        yield handles


def open_below(root: str, parts: tuple[str, ...]) -> int | None:
    """Open a path below `root` component by component, following no link; None if it is gone."""
    try:
        handle = os.open(root, _PATH_FLAGS | os.O_CLOEXEC)
    except OSError:
        return None
    for part in parts:
        try:
            child = os.open(part, _COMPONENT_FLAGS, dir_fd=handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        handle = child
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            os.close(handle)
            return None
    return handle
