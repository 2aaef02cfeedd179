"""A command as people give it: one line for `sh`, or a program and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")
_SHELL = ("sh", "-c")


def argv_of(command: str | _T) -> tuple[str, ...] | _T:
    """What is started: a line by `sh`, an empty one not at all; a program and its arguments as they are."""
    if not isinstance(command, str):
        return command
    return (*_SHELL, command) if command.strip() else ()


def is_line(argv: Sequence[str]) -> bool:
    """Whether it is a line for `sh`."""
    return len(argv) == 3 and tuple(argv[:2]) == _SHELL


def line_of(argv: Sequence[str]) -> str:
    """The same for people to read: the line that `sh` has, or the words."""
    return argv[2] if is_line(argv) else " ".join(argv)
