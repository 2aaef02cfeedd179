"""Parts of a command line, and variables that change what a command does."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import takewhile

from perstack.dataclass import dataclass


def split_names(text: str) -> frozenset[str]:
    """Return the names in a text, which white space separates: a table of names that reads like one."""
    return frozenset(text.split())


@dataclass(frozen=True)
class ShellCommand:
    """Simple command."""

    words: tuple[str | None, ...]  # None for a word that is known only at run time and may expand to several
    assignments: tuple[str, ...] = ()  # `NAME=value` before the command that can change what it does
    reason: str = ""  # why a person is asked: the command runs more than its name says
    # True for a wrapper whose inner commands are parsed too, and for a guess: only rules that name the program apply
    is_wrapper: bool = False
    is_by_option: bool = False  # True if `reason` comes from options alone, which an `allow` rule may name
    has_unknown_folder: bool = False  # True if its script changes the folder, so that it may run in any

    @cached_property
    def known(self) -> tuple[str, ...]:
        """The words before the first unknown one."""
        return tuple(word for word in takewhile(lambda word: word is not None, self.words) if word is not None)

    @property
    def is_known(self) -> bool:
        """True if every word is known before it runs."""
        return None not in self.words


@dataclass(frozen=True, slots=True)
class Redirect:
    """File that the shell itself reads or writes."""

    shown: str
    path: str | None  # path; None if it is known only at run time
    is_read: bool = False
    text: str = ""  # path as written, if it is relative to a folder that is known only at run time
    is_guess: bool = False  # True in a script that cannot be parsed: only rules that deny apply


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Part that cannot be parsed, or is known only at run time."""

    shown: str
    reason: str


Part = ShellCommand | Redirect | Unparsed


# Variables that change what a program does, or which program runs.

_HARMLESS_VARIABLE = re.compile(
    r"CI|DEBUG|VERBOSE|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONHASHSEED|NODE_ENV|RUST_BACKTRACE|RUST_LOG|OMP_NUM_THREADS"
)
_LOWER_CASE_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_SHELL_VARIABLE = re.compile(r".*_?proxy|path|fpath|cdpath|histchars")


def is_harmless(name: str) -> bool:
    """Return True if a variable changes at most how a program displays things."""
    return _HARMLESS_VARIABLE.fullmatch(name) is not None


def is_plain(name: str) -> bool:
    """Return True if a script may set this variable for itself: programs mostly read names in capitals."""
    return is_harmless(name) or (
        _LOWER_CASE_NAME.fullmatch(name) is not None and _SHELL_VARIABLE.fullmatch(name) is None
    )
