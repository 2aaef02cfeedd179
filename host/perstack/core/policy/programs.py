"""Programs that run other programs: what is known of them before they run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from perstack.core.policy.lines import Command, Part

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "yash", "fish", "csh", "tcsh", "busybox"})
_RUNNERS = frozenset(
    {
        "env",
        "xargs",
        "sudo",
        "doas",
        "nohup",
        "nice",
        "ionice",
        "timeout",
        "ssh",
        "watch",
        "time",
        "setsid",
        "chroot",
    }
)
_HARMLESS = re.compile(
    r"CI|DEBUG|VERBOSE|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONHASHSEED|NODE_ENV|RUST_BACKTRACE|GOFLAGS_NONE"
)


def harmless(name: str) -> bool:
    """Whether a variable of this name changes no more than what a program shows."""
    return _HARMLESS.fullmatch(name) is not None


def parts_of(words: Sequence[str]) -> Iterator[Part]:
    """What a program with its arguments comes to."""
    name = words[0].rpartition("/")[2]
    if name in _SHELLS or name in _RUNNERS:
        yield Command(tuple(words), reason=f"{name} runs other programs")
        return
    yield Command(tuple(words))
