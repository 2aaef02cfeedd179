"""Names of files, which are any bytes: how a tree spells them, and which are never recorded.

A name is spelled as its UTF-8 text. A byte that is no part of such text is `\\xHH`, and a backslash is `\\\\`: so every
name has one spelling, and every spelling means one name.
"""

from __future__ import annotations

import re

from perstack.core.protected import folded

LONGEST_NAME = 255
"""Bytes: what the file systems of today allow."""
LONGEST_PATH = 4096
DEEPEST = 128
"""How many folders may be one below the other; what is further down is not recorded."""

_ESCAPE = re.compile(rb"\\(\\|x[0-9a-f]{2})")


def spelled(name: bytes) -> str:
    """A name, or a path, as text that stands in JSON and that a person reads."""
    return name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def unspelled(text: str) -> bytes:
    """The name that a text spells. Raises ValueError for a text that `spelled` makes of none."""
    name = _ESCAPE.sub(_meant, text.encode())
    if spelled(name) != text:
        raise ValueError("this is not how a name is spelled")
    return name


STAGING = ".perstack-rewind-"
"""What the name of the folder begins with in which a rewind has files in readiness. It is in the workspace, for what is
moved has to be on its file system."""


def is_name(name: bytes) -> bool:
    """Whether a file may have that name: not if it could mean another place than one in its folder."""
    return 0 < len(name) <= LONGEST_NAME and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def is_never_recorded(name: bytes) -> bool:
    """Whether nothing of that name is recorded, nor ever written by a rewind, wherever it is: git's own folder, files
    of environment variables (whose names all begin with `.env`), and where a rewind prepares what it will do."""
    if not name.isascii():
        return _is_private(name.decode("utf-8", "replace"))
    return name.startswith(b".") and _is_private(name.decode())


def _is_private(name: str) -> bool:
    (plain,) = folded((name,))
    return plain == ".git" or plain.startswith((".env", STAGING))


def _meant(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    return escape if escape == b"\\" else bytes((int(escape[1:], 16),))
