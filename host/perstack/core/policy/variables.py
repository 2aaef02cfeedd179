"""Which variables change what a program does, or which program it is."""

from __future__ import annotations

import re

_HARMLESS = re.compile(
    r"CI|DEBUG|VERBOSE|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONHASHSEED|NODE_ENV|RUST_BACKTRACE|RUST_LOG|OMP_NUM_THREADS"
)
_LOWER = re.compile(r"[a-z_][a-z0-9_]*")
_LOADED = re.compile(r".*_?(?:proxy)")


def is_harmless(name: str) -> bool:
    """Whether a program that is given it does no more than show things otherwise."""
    return _HARMLESS.fullmatch(name) is not None


def is_plain(name: str) -> bool:
    """Whether a script may set it for itself: what other programs know has capitals, but for proxies."""
    return is_harmless(name) or (_LOWER.fullmatch(name) is not None and _LOADED.fullmatch(name) is None)
