"""What of the host's environment reaches a program that a tool starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

INHERITED = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TMPDIR", "TZ", "COLORTERM", "NO_COLOR")
)
"""Variables of the host that every program gets, besides LC_*."""


def inherited(env: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """The harmless variables of an environment, and those that are named."""
    wanted = INHERITED.union(more)
    return {name: value for name, value in env.items() if name in wanted or name.startswith("LC_")}
