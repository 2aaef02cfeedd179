"""The way to a value of a definition file."""

from __future__ import annotations

import json
import re
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The way to a value from the top of the file: names of tables and places in arrays (from 0)."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def spell(path: KeyPath) -> str:
    """The path as TOML spells it: `experts."@org/a".delegates[0]`."""
    spelt = ""
    for part in path:
        if isinstance(part, int):
            spelt += f"[{part}]"
            continue
        name = part if _BARE.fullmatch(part) else json.dumps(part, ensure_ascii=False)
        spelt += f".{name}" if spelt else name
    return spelt
