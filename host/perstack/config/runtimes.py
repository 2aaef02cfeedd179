"""Where programs of tools run, by the names that definition files may have. Which there are is for plugins to say."""

from __future__ import annotations

from perstack.config.key_path import KeyPath
from perstack.config.source import Reporter, TomlTable
from perstack.core.sandbox import LOCAL

_ALSO_LOCAL = "perstack"
"""What the original once called `local`."""

OF_THE_ORIGINAL = ("docker", "cursor", "claude-code", "gemini")
"""Taken in a definition file, with a warning, so that files of the original can be used; they run locally."""


def runtime_of(*named: str | None) -> str:
    """The first that is named, by the name of its plugin."""
    name = next((one for one in named if one is not None), LOCAL)
    return LOCAL if name in (_ALSO_LOCAL, *OF_THE_ORIGINAL) else name


def warn_of_runtime(runtime: str | None, at: KeyPath, report: Reporter) -> None:
    """Report one of the original's that is not there."""
    if runtime in OF_THE_ORIGINAL:
        report.warn(at, f"`{runtime}` has no effect: programs run locally, without its isolation")


def without_list(raw: TomlTable, at: KeyPath, report: Reporter) -> TomlTable:
    """An Expert of the original may list the runtimes that it is fit for, which says nothing of where it is to run."""
    if not isinstance(raw.get("runtime"), list):
        return raw
    report.warn((*at, "runtime"), "a list has no effect: name the one runtime that programs are to run in")
    return {name: value for name, value in raw.items() if name != "runtime"}
