"""Runtimes and sandboxes: where tools' programs run and what they may reach, as written and as enforced for a Run."""

import re
from collections.abc import Iterable, Iterator
from posixpath import normpath
from typing import Annotated, TypeVar

from pydantic import Field

from perstack.core.base.records import Record, falsy, fields_of
from perstack.core.definitions.keys import NOT_EMPTY, Key, Rule, at_least, domain_problem
from perstack.errors import UsageError

LOCAL = "local"  # runtime that confines nothing: programs have the rights of the host's user

SANDBOX = "bubblewrap"  # runtime for programs if no person can be asked about them

_SIZE = r"(\d{1,15})\s?([KMGT]i?B|B)?"
_PORT = r"[1-9][0-9]{0,4}"
_NUMBER = r"[0-9]+|0[xX][0-9a-fA-F]*"
_UNITS: dict[str, int] = {"": 1, "B": 1} | {
    f"{letter}{middle}B": int(base**power)
    for middle, base in (("", 1000), ("i", 1024))
    for power, letter in enumerate("KMGT", 1)
}

_T = TypeVar("_T", int, float)


def parse_size(size: str) -> int:
    """Return a size such as `2GiB` in bytes. Raises ValueError for an invalid one."""
    match = re.fullmatch(_SIZE, size)
    if match is None:
        raise ValueError(f"{size} is not a size")
    return int(match[1]) * _UNITS[match[2] or ""]


def size_problem(size: str) -> str | None:
    """Return what is wrong with a size, as a phrase that follows its key; None if it is valid."""
    if re.fullmatch(_SIZE, size) is None:
        return f'must be a size such as "512MiB" or "2GiB", not "{size}"'
    return None if parse_size(size) >= 1 << 20 else "must be at least 1MiB"


def folder_problem(path: str) -> str | None:
    """Return what is wrong with a file or folder of the host that programs get access to, or None."""
    if not path.strip():
        return "must name a file or folder"
    if any(char in path for char in "*?["):
        return f"must not be a pattern: name each file or folder instead of {path}"
    if "\0" in path:
        return "must not contain a NUL character: leave it out"
    if path.startswith("~") and path.partition("/")[0] != "~":
        return f"must not name another user's home folder by `~`: write it out instead of {path}"
    return None


def destination_problem(destination: str) -> str | None:
    """Return what is wrong with a network destination, or None."""
    host, _, port = destination.partition(":")
    if port and not (re.fullmatch(_PORT, port) and int(port) < 1 << 16):
        return f"has an invalid port {port}, use 1 to 65535: {destination}"
    if host.casefold() == "localhost":
        return None if port else "must say which port of this machine may be reached: `localhost:PORT`"
    return domain_problem(host) or _host_problem(host)


def _host_problem(host: str) -> str | None:
    """Check a host whose last part is a number, which every resolver takes for an IP address."""
    if not re.fullmatch(_NUMBER, host.rpartition(".")[2]):
        return None
    from perstack.core.definitions.public_addresses import is_public

    try:
        is_public_host = is_public(host)
    except ValueError:
        return f"is neither a domain nor an address: {host}"
    return None if is_public_host else f"is not a public address; for this machine write `localhost:PORT`: {host}"


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Return True if a path is one of `roots` or below one."""
    plain = normpath(path)
    return any(plain == root or root == "/" or plain.startswith(f"{root}/") for root in roots)


def share_problem(share: float) -> str | None:
    """Return what is wrong with a number of processors, or None."""
    return None if 0.01 <= share <= 4096 else "must be a number of processors, such as 0.5 or 2.0"


_LIMITS = ("memory", "processes", "cpu", "time", "tmp")
_Path = Annotated[str, Rule(folder_problem)]
_Milliseconds = Annotated[int | None, at_least(1), Key("milliseconds that one program may run", effect="narrows")]
_Place = Annotated[str, Rule(destination_problem)]
_Size = Annotated[str, Rule(size_problem)]


class Sandbox(Record):
    """`[sandbox]`: what tools' programs may reach in addition to the defaults, and their limits."""

    writable: Annotated[
        tuple[_Path, ...],
        Key("files and folders outside the workspace that may be changed, relative to this file", effect="writes"),
    ] = ()
    readable: Annotated[
        tuple[_Path, ...],
        Key("additional files and folders that may be read; a `.env` only if named here", effect="reads"),
    ] = ()
    env: Annotated[
        tuple[Annotated[str, NOT_EMPTY], ...], Key("names of your variables that every program gets", effect="reads")
    ] = ()
    network: Annotated[
        tuple[_Place, ...],
        Key(
            "reachable hosts, `example.com` (ports 80 and 443), `*.example.com:443`, `localhost:8080`", effect="reaches"
        ),
    ] = ()
    memory: Annotated[
        _Size | None, Key("memory for all programs of a Job together, such as `2GiB`", effect="narrows")
    ] = None
    processes: Annotated[
        int | None, at_least(8), Key("processes of all programs of a Job together, at least 8", effect="narrows")
    ] = None
    cpu: Annotated[
        float | None, Rule(share_problem), Key("processors for all programs of a Job together", effect="narrows")
    ] = None
    time: _Milliseconds = None
    tmp: Annotated[_Size | None, Key("size of a program's `/tmp`; default `1GiB`", effect="narrows")] = None


class SandboxPolicy(Record):
    """Sandbox of a Run's programs, fixed when the Run starts. Paths are absolute."""

    runtime: str = LOCAL
    writable: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    readable: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    env: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    network: tuple[str, ...] = Field(default=(), exclude_if=falsy)
    memory: int | None = None  # bytes for all programs of the Job together
    processes: int | None = None
    cpu: float | None = None  # number of processors
    time: int | None = None  # milliseconds
    tmp: int | None = None  # bytes

    @property
    def limited(self) -> tuple[str, ...]:
        """The keys of limits that only a sandbox can enforce."""
        limits = tuple(key for key in _LIMITS if getattr(self, key) is not None)
        return ("network", *limits) if self.network else limits


def policy_of(runtime: str, sandbox: Sandbox | None) -> SandboxPolicy | None:
    """Return the policy to record for a runtime and a `[sandbox]` table; None if they change nothing."""
    table = sandbox or Sandbox()
    sizes = {name: None if (size := getattr(table, name)) is None else parse_size(size) for name in ("memory", "tmp")}
    policy = SandboxPolicy(**fields_of(table, SandboxPolicy, **sizes, runtime=runtime))
    return None if policy == SandboxPolicy() else policy


def narrow_policy(own_policy: SandboxPolicy | None, callers_policy: SandboxPolicy | None) -> SandboxPolicy | None:
    """Return a delegate's policy, restricted to its caller's. Raises UsageError if no runtime can satisfy both."""
    if callers_policy is None:
        return own_policy
    delegates_policy = own_policy or SandboxPolicy()
    runtimes = {delegates_policy.runtime, callers_policy.runtime} - {LOCAL}
    if len(runtimes) > 1:
        raise UsageError(
            f"a delegate that asks for the runtime {delegates_policy.runtime} is called by an Expert whose runtime is"
            f" {callers_policy.runtime}: give both the same runtime"
        )
    policy = SandboxPolicy(
        runtime=next(iter(runtimes), LOCAL),
        writable=_common_paths(delegates_policy.writable, callers_policy.writable),
        readable=_common_paths(delegates_policy.readable, (*callers_policy.readable, *callers_policy.writable)),
        env=tuple(name for name in delegates_policy.env if name in callers_policy.env),
        network=tuple(_common_destinations(delegates_policy.network, callers_policy.network)),
        **{name: _lower_limit(getattr(delegates_policy, name), getattr(callers_policy, name)) for name in _LIMITS},
    )
    # an empty policy confines nothing, like None
    return None if policy == SandboxPolicy() else policy


def _common_destinations(own: Iterable[str], caller: Iterable[str]) -> Iterator[str]:
    """Yield the delegate's entries that the caller's entries fully cover."""
    allowed = {destination.casefold() for destination in caller}
    for destination in own:
        host, _, port = destination.casefold().partition(":")
        parts = host.removeprefix("*.").split(".")
        levels = range(0 if host.startswith("*.") else 1, len(parts))
        names = (host, *(f"*.{'.'.join(parts[level:])}" for level in levels))
        ports = (f":{port}" if port else "", *([""] if port in ("80", "443") else []))
        if any(f"{name}{ending}" in allowed for name in names for ending in ports):
            yield destination


def _lower_limit(own: _T | None, caller: _T | None) -> _T | None:
    return min((limit for limit in (own, caller) if limit is not None), default=None)


def _common_paths(own: Iterable[str], caller: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that both sets cover: of two nested paths the inner one."""
    paths = (
        inner
        for path in own
        for caller_path in caller
        for inner in (_inner_path(path, caller_path), _inner_path(caller_path, path))
        if inner
    )
    return tuple(dict.fromkeys(paths))


def _inner_path(path: str, root: str) -> str | None:
    return path if is_below(path, (root,)) else None


EARLIER_LOCAL = "perstack"  # earlier name of `local` in the original

# Runtimes of the original. Accepted with a warning and without effect, so that its files and commands can be used.
IGNORED_RUNTIMES = ("docker", "cursor", "claude-code", "gemini")


def runtime_of(*names: str | None) -> str:
    """Return the plugin of the first runtime that is not None; `local` without one, or for an ignored runtime."""
    name = next((item for item in names if item is not None), LOCAL)
    return LOCAL if name in (EARLIER_LOCAL, *IGNORED_RUNTIMES) else name
