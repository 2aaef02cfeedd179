"""Where the paths of a call lead, for permission rules: through links, and out of the workspace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perstack.core.policy.calls import Resolve


def resolver(workspace: Path) -> Resolve:
    """Says of a path of a call what its names are; see `Resolve`. It looks at the disk, and never raises."""
    root = os.path.realpath(workspace)

    def resolve(path: str, folder: str) -> Sequence[str]:
        found: tuple[str, ...]
        whole = os.path.join(root, folder, path)  # noqa: PTH118 - normpath needs what Path would drop
        plain = os.path.normpath(whole)  # file tools read `link/..` as a text, and programs as the system does
        try:
            own = os.path.join(os.path.realpath(os.path.dirname(plain)), os.path.basename(plain))  # noqa: PTH118, PTH119, PTH120
            found = (os.path.realpath(plain), os.path.realpath(whole), own)
        except (ValueError, OSError):
            found = (plain,)
        return tuple(dict.fromkeys(_seen_from(root, name) for name in found))

    return resolve


def _seen_from(root: str, name: str) -> str:
    if name == root:
        return "."
    return name.removeprefix(f"{root.rstrip('/')}/")
