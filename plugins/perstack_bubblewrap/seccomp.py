"""System call filter as a program for the kernel's packet filter (classic BPF).

It refuses what container engines refuse by default: calls that change the machine, load kernel code, create or join
namespaces, mount, access keyrings or profiling, or have been used to escape from containers. Calls newer than this
table are answered with ENOSYS, so that nothing unreviewed is allowed.

It is assembled here, not with libseccomp: that is a system library of varying versions, and without it the filter would
have to be optional.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence

from perstack.dataclass import dataclass

_NEWEST = 466  # removexattrat of Linux 6.13; from 424 on the numbers are equal on all machines

_DENIED_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "set_mempolicy_home_node": 450,
}
_DENIED_X86_64 = {
    "syslog": 103,
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "vhangup": 153,
    "pivot_root": 155,
    "_sysctl": 156,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "init_module": 175,
    "delete_module": 176,
    "get_kernel_syms": 177,
    "query_module": 178,
    "quotactl": 179,
    "nfsservctl": 180,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "mbind": 237,
    "set_mempolicy": 238,
    "get_mempolicy": 239,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_DENIED_AARCH64 = {
    "lookup_dcookie": 18,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "nfsservctl": 42,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "mbind": 235,
    "get_mempolicy": 236,
    "set_mempolicy": 237,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "kcmp": 272,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}

_NAMESPACES = 0x7E020000  # flags of clone that create a namespace
_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6 and netlink: the socket families that ordinary programs use
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX insert input into a terminal as if it were typed
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_X32 = 0x40000000


@dataclass(frozen=True, slots=True)
class Machine:
    """Values of a filter that differ between machines."""

    audit: int  # architecture number that the kernel passes to a filter (AUDIT_ARCH)
    denied: Sequence[int]
    clone: int
    clone3: int
    socket: int
    ioctl: int
    personality: int
    has_x32: bool = False


MACHINES = {
    "x86_64": Machine(
        0xC000003E,
        tuple(sorted({*_DENIED_X86_64.values(), *_DENIED_EVERYWHERE.values()})),
        clone=56,
        clone3=435,
        socket=41,
        ioctl=16,
        personality=135,
        has_x32=True,
    ),
    "aarch64": Machine(
        0xC00000B7,
        tuple(sorted({*_DENIED_AARCH64.values(), *_DENIED_EVERYWHERE.values()})),
        clone=220,
        clone3=435,
        socket=198,
        ioctl=29,
        personality=92,
    ),
}

_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]  # instruction: operation, jump offsets if true and if false, and a value


def filter_of(machine: Machine) -> bytes:
    """Return the filter in the format of `bwrap --seccomp`."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program_of(machine))


def program_of(machine: Machine) -> list[Instruction]:
    """Return the filter's instructions."""
    unknown, refused = _return_value(errno.ENOSYS), _return_value(errno.EPERM)
    program: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, machine.audit), unknown, (_LOAD, 0, 0, _NUMBER)]
    if machine.has_x32:
        program += [(_AT_LEAST, 0, 1, _X32), unknown]
    program += [(_GREATER, 0, 1, _NEWEST), unknown]
    # clone3 passes its flags in memory, which a filter cannot read; with ENOSYS the C library falls back to clone.
    program += [(_EQUAL, 0, 1, machine.clone3), unknown]
    for number in machine.denied:
        program += [(_EQUAL, 0, 1, number), refused]
    program += _check_call(machine.clone, 0, [(_ANY_BIT, 0, 1, _NAMESPACES), refused])
    checks = [instruction for code in _TERMINAL_INPUT for instruction in ((_EQUAL, 0, 1, code), refused)]
    program += _check_call(machine.ioctl, 1, checks)
    program += _check_call(machine.socket, 0, _allow_only(_FAMILIES))
    program += _check_call(machine.personality, 0, _allow_only(_PERSONALITIES))
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _check_call(number: int, argument: int, checks: Sequence[Instruction]) -> list[Instruction]:
    body = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *checks, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(body), number), *body]


def _allow_only(values: Iterable[int]) -> list[Instruction]:
    allowed = [instruction for value in values for instruction in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
    return [*allowed, _return_value(errno.EPERM)]


def _return_value(number: int) -> Instruction:
    return _RETURN, 0, 0, _ERROR | number
