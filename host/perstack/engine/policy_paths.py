"""Where the paths of a call lead, for permission rules: through links, and out of the workspace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from perstack.core.policy.calls import Resolve


def resolver(workspace: Path, *, remembers: bool = False) -> Resolve:
    """Says of a path of a call what its names are; see `Resolve`. It looks at the disk, and never raises.

    One that `remembers` looks at each folder once: for calls that are not about to run.
    """
    root = os.path.realpath(workspace)

    def looked_up(folder: str) -> str:
        return os.path.realpath(folder)

    real = lru_cache(maxsize=100_000)(looked_up) if remembers else looked_up

    def leads(path: str) -> tuple[str, str]:
        """The path's own name, in the folder that it is really in, and where it leads."""
        folder, name = os.path.split(path)
        own = f"{real(folder).rstrip('/')}/{name}" if name not in ("", ".", "..") else real(path)
        return own, os.path.realpath(own) if os.path.islink(own) else own  # noqa: PTH114 - nothing but names

    def resolve(path: str, folder: str) -> Sequence[str]:
        whole = os.path.join(root, folder, path)  # noqa: PTH118 - normpath needs what Path would drop
        plain = os.path.normpath(whole)  # file tools read `link/..` as a text, and programs as the system does
        found: tuple[str, ...]
        try:
            own, leads_to = leads(plain)
            found = (leads_to, *(() if whole == plain else leads(whole)[1:]), own)
        except (ValueError, OSError):
            found = (plain,)
        return tuple(dict.fromkeys(_seen_from(root, name) for name in found))

    return resolve


def _seen_from(root: str, name: str) -> str:
    if name == root:
        return "."
    return name.removeprefix(f"{root.rstrip('/')}/")
