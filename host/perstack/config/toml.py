"""TOML of strangers, within bounds: `tomllib` has none of its own."""

from __future__ import annotations

import re
import tomllib
from itertools import groupby
from pathlib import Path

from perstack.config.source import TomlTable
from perstack.core.depth import layers

LARGEST = 8 << 20
"""Bytes of one file."""
DEEPEST = 64
"""Levels of tables and arrays."""

_QUOTED = r'"[^"\n]*"|\'[^\'\n]*\''
_BETWEEN_KEYS = r"[^\w\-. \t]"


class NotRead(ValueError):
    """Why a file was not taken, in words that follow its name."""


def read_bounded(path: Path, most: int = LARGEST) -> bytes:
    """A file's content. Raises NotRead for one that is larger or no ordinary file, and OSError."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise NotRead(f"is larger than {most >> 20} MiB: make it smaller")
    return data


def parse_toml(text: str) -> TomlTable:
    """The file's table. Raises NotRead for one that is nested too deep, and tomllib.TOMLDecodeError."""
    too_deep = NotRead(f"is nested more than {DEEPEST} levels deep: make it flatter")
    if any(_has_endless_key(line) for line in text.splitlines() if line.count(".") > DEEPEST):
        raise too_deep
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    if any(level > DEEPEST for level, _ in enumerate(layers(table))):
        raise too_deep
    return table


def _has_endless_key(line: str) -> bool:
    """Whether a line has a dotted key of too many parts, for which `tomllib` would take the square of their number."""
    for piece in re.split(_BETWEEN_KEYS, re.sub(_QUOTED, "q", line)):
        # words with a blank in them are prose, in a text of several lines
        parts = (bool(part.strip()) and len(part.split()) == 1 for part in piece.split("."))
        if any(is_key and len(list(run)) > DEEPEST for is_key, run in groupby(parts)):
            return True
    return False
