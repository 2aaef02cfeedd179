"""The choice of offered Experts, and the names of their tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

from perstack.core.definitions.project import Project
from perstack.core.definitions.skills import legal_tool_name
from perstack.errors import UsageError

_MAX_NAME_CHARS = 48  # maximum characters of a tool's name: clients prefix the server's name and limit both to 60 or 64


def only_experts(project: Project, only: Sequence[str]) -> frozenset[str]:
    """Return the keys of the named Experts; empty for all. Raises UsageError if one does not exist."""
    by_key = {key: project.expert(key) for key in only}
    for key, expert in by_key.items():
        if expert is None:
            project.check_broken(key)
            names = ", ".join(sorted(project.experts)) or "none"
            raise UsageError(f"--experts: there is no Expert {key!r} in {project.path}; there are: {names}")
    return frozenset(expert.key for expert in by_key.values() if expert is not None)


def tool_names(keys: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Return a legal tool name for each key, unique among them and different from those in `taken`.

    A name depends only on its key, unless two keys would get one name. In that case, and if the name is taken or
    too long, it gets a suffix hashed from the key. An Expert whose key is a legal name keeps it.
    """
    keys = tuple(keys)
    plain = {key: legal_tool_name(key) for key in keys}
    counts = Counter(plain.values())
    reserved = set(taken)
    names: dict[str, str] = {}
    for key, name in plain.items():
        is_own = name not in reserved and len(name) <= _MAX_NAME_CHARS and (name == key or counts[name] == 1)
        names[key] = name if is_own else _with_mark(key, name)
    return names


def _with_mark(key: str, name: str) -> str:
    mark = sha256(key.encode()).hexdigest()[:6]
    return f"{name[: _MAX_NAME_CHARS - len(mark) - 1]}_{mark}"
