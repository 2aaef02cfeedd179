"""Which Experts are offered, and what their tools are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

from perstack.core.definitions import Project
from perstack.core.tools import legal_tool_name
from perstack.errors import UsageError

_LONGEST = 48
"""Clients put the server's name before a tool's, and hold both to 60 or 64 characters."""


def only_experts(project: Project, only: Sequence[str]) -> frozenset[str]:
    """The keys of the Experts that are named; none for all. Raises UsageError if one is not there."""
    found = {key: project.expert(key) for key in only}
    for key, expert in found.items():
        if expert is None:
            project.check_broken(key)
            known = ", ".join(sorted(project.experts)) or "none"
            raise UsageError(f"--experts: there is no Expert {key!r} in {project.path}; there are: {known}")
    return frozenset(expert.key for expert in found.values() if expert is not None)


def tool_names(keys: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """A legal name for each Expert's key, unique among them and beside those that are taken.

    A name depends on nothing but its key, as long as no two keys come to the same: then, and if it is taken, it bears a
    mark made from the key, like one that is too long. An Expert whose key is a legal name keeps it.
    """
    keys = tuple(keys)
    plain = {key: legal_tool_name(key) for key in keys}
    counts = Counter(plain.values())
    reserved = set(taken)
    names: dict[str, str] = {}
    for key, name in plain.items():
        is_own = name not in reserved and len(name) <= _LONGEST and (name == key or counts[name] == 1)
        names[key] = name if is_own else _marked(key, name)
    return names


def _marked(key: str, name: str) -> str:
    mark = sha256(key.encode()).hexdigest()[:6]
    return f"{name[: _LONGEST - len(mark) - 1]}_{mark}"
