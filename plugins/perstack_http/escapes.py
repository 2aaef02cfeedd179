"""JSON as servers write it, before it is parsed."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_MAY_BE_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def whole_escapes(text: str) -> str:
    """The same JSON with U+FFFD for each escape that is half of a surrogate pair: no parser takes one."""
    return _ESCAPE.sub(_whole, text) if _MAY_BE_HALF.search(text) else text


def _whole(found: re.Match[str]) -> str:
    return found.group() if found[1] is None else "\\ufffd"
