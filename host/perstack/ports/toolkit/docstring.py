"""What a docstring says of a tool and of its parameters: Google style, the section `Args:`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import cleandoc

from perstack.dataclass import dataclass

_SECTION = re.compile(r"(?:Args|Arguments|Parameters):\s*")
_PARAMETER = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


@dataclass(frozen=True, slots=True)
class Documented:
    """A docstring, taken apart."""

    description: str
    """All but the section of the parameters."""
    parameters: Mapping[str, str]
    """What is said of each, on one line."""


def read_docstring(docstring: str) -> Documented:
    """Take a docstring apart. Lines that are indented deeper than a parameter's first go on with it."""
    around: list[str] = []
    section: list[str] = []
    is_inside = False
    for line in cleandoc(docstring).splitlines():
        if _SECTION.fullmatch(line):
            is_inside = True
            continue
        is_inside = is_inside and (not line or line.startswith(" "))
        (section if is_inside else around).append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(around)).strip()
    return Documented(description, _parameters(cleandoc("\n".join(["", *section])).splitlines()))


def _parameters(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        begun = _PARAMETER.fullmatch(line)
        if begun is not None:
            current = found.setdefault(begun[1], [])
        current.append(begun[2] if begun is not None else line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}
