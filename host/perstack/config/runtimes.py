"""Where programs of tools run."""

from __future__ import annotations

from perstack.config.check import suggestion
from perstack.config.key_path import KeyPath
from perstack.config.source import Reporter, TomlValue
from perstack.errors import UsageError

LOCAL = ("local", "perstack")
"""In this process, with its rights. `perstack` is what the original once called `local`."""

OF_THE_ORIGINAL = ("docker", "cursor", "claude-code", "gemini")
"""Taken in a definition file, with a warning, so that files of the original can be used; they run locally."""


_KNOWN = (*LOCAL, *OF_THE_ORIGINAL)


def check_runtime(name: str, said: str = "runtime") -> None:
    """Raises UsageError for one that there is not: who asks for isolation must not be left without it unawares."""
    if name not in LOCAL:
        raise UsageError(f"{said} {name}: there is no such runtime, only `local`{suggestion(name, LOCAL[:1])}")


def check_runtimes(named: TomlValue | None, at: KeyPath, report: Reporter) -> bool:
    """Whether these are runtimes: the one, or the list of them, that a definition file names. Others are reported."""
    unknown = [name for name in (named if isinstance(named, list) else [named]) if _is_unknown(name)]
    for name in unknown:
        report.error(at, f"unknown runtime `{name}`, known are {', '.join(_KNOWN)}{suggestion(str(name), _KNOWN)}")
    return not unknown


def _is_unknown(name: TomlValue | None) -> bool:
    return isinstance(name, str) and name not in _KNOWN
