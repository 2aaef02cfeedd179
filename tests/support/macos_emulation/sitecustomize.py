"""Make Python on Linux look like Python on macOS, as far as possible: names that only Linux has are removed.

    PYTHONPATH=tests/support/macos_emulation .venv/bin/python -m pytest -m "not linux"

This finds uses of such names without a check. It is not a Mac: kernel, file system and C library are Linux's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posix
import resource
import signal
import socket
import sys
import types
from collections.abc import Callable

LINUX_ALONE = {
    (os, posix): (
        *("O_PATH", "O_TMPFILE", "O_DIRECT", "O_NOATIME", "O_RSYNC", "O_LARGEFILE", "memfd_create", "fdatasync"),
        *("pidfd_open", "eventfd", "eventfd_read", "eventfd_write", "splice", "copy_file_range", "getrandom"),
        *("pipe2", "setns", "unshare", "posix_fadvise", "posix_fallocate", "getxattr", "setxattr", "listxattr"),
        *("removexattr", "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "sched_getparam"),
        *("sched_setparam", "sched_rr_get_interval", "P_PIDFD", "getresuid", "getresgid", "setresuid", "setresgid"),
        *("login_tty",),
    ),
    (signal,): (
        "SIGRTMIN",
        "SIGRTMAX",
        "SIGPWR",
        "SIGSTKFLT",
        "SIGPOLL",
        "sigtimedwait",
        "sigwaitinfo",
        "pidfd_send_signal",
    ),
    (resource,): ("prlimit", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_RTTIME"),
    (socket,): (
        "SO_PEERCRED",
        "SO_PASSCRED",
        "SO_DOMAIN",
        "SO_PROTOCOL",
        "SOCK_CLOEXEC",
        "SOCK_NONBLOCK",
        "AF_NETLINK",
    ),
}
F_FULLFSYNC = 51
_fcntl = fcntl.fcntl


def _full_sync(fd: int, command: int, argument: int | bytes = 0) -> int | bytes:
    """Do a plain sync for F_FULLFSYNC, a command of macOS."""
    if command == F_FULLFSYNC:
        os.fsync(fd)
        return 0
    return _fcntl(fd, command, argument)


def _no_proc(event: str, arguments: tuple[object, ...]) -> None:
    """Hide /proc, /sys and cgroups, which macOS does not have."""
    if event in ("open", "os.listdir", "os.scandir", "os.chdir") and arguments:
        _hide(arguments[0])


def _hide(path: object) -> None:
    name = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    if name.startswith(("/proc/", "/sys/")) or name in ("/proc", "/sys"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _hiding(real: Callable[..., object]) -> Callable[..., object]:
    def look(path: object, *args: object, **named: object) -> object:
        _hide(path)
        return real(path, *args, **named)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if real in able:
            able.add(look)
    return look


def look_like_macos() -> None:
    """Change this process from now on."""
    import sysconfig

    # the file with Python's build settings has another name on macOS
    os.environ.setdefault("_PYTHON_SYSCONFIGDATA_NAME", sysconfig._get_sysconfigdata_name())  # type: ignore[attr-defined]
    sys.platform = "darwin"
    for modules, names in LINUX_ALONE.items():
        for module in modules:
            for name in names:
                if hasattr(module, name):
                    delattr(module, name)
    fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined]
    fcntl.fcntl = _full_sync  # type: ignore[assignment]
    proxies = types.ModuleType("_scproxy")  # urllib reads the system settings with it
    proxies.__dict__.update(_get_proxies=dict, _get_proxy_settings=dict)
    sys.modules["_scproxy"] = proxies
    sys.addaudithook(_no_proc)
    for name in ("stat", "lstat", "readlink", "access"):  # audit hooks do not see these calls
        setattr(os, name, _hiding(getattr(os, name)))


look_like_macos()
