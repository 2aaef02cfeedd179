"""What `[audit]` may say: where heads are sent, and which key signs them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os.path import normpath
from pathlib import Path
from urllib.parse import urlsplit

from perstack.config.check import read_table
from perstack.config.schema import AUDIT
from perstack.config.source import Reporter, TomlTable, TomlValue

_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def read_audit(raw: TomlValue, report: Reporter) -> TomlTable:
    """The table, as far as it is right; paths in it are seen from the file that says it."""
    fields = read_table(raw, AUDIT, ("audit",), report) or {}
    folder = report.source.path.parent
    anchor, key = fields.get("anchor"), fields.get("signingKey")
    if isinstance(anchor, str | list):
        given = anchor if isinstance(anchor, str) else [word for word in anchor if isinstance(word, str)]
        problem = wrong_anchor(given)
        if problem is not None:
            report.error(("audit", "anchor"), problem)
        elif isinstance(anchor, str):
            fields["anchor"] = _placed(anchor, folder)
    if isinstance(key, str):
        problem = wrong_key(key)
        if problem is not None:
            report.error(("audit", "signingKey"), problem)
        fields["signingKey"] = _placed(key, folder)
    return fields


def wrong_anchor(anchor: str | Sequence[str]) -> str | None:
    """What is wrong with an anchor; None if nothing is."""
    if not isinstance(anchor, str):
        return None if anchor and anchor[0] else "names no program: the first item of the list is what is run"
    if anchor.startswith("file:"):
        return None if anchor != "file:" else "names no file: write `file:PATH`"
    if not anchor.startswith(("https://", "http://")):
        return 'must be `file:PATH`, an `https://` address, or a program as a list: ["program", "argument"]'
    try:
        address = urlsplit(anchor)
        host = address.hostname
        has_user = address.username is not None or address.password is not None
    except ValueError:
        return "is no address"
    if has_user:
        return "must not have a user or a password in it: let a program send, which knows where to find them"
    if address.scheme == "http" and host not in _LOOPBACK:
        return "must be `https://`: what is sent in the clear can be changed on its way"
    return None if host else "is no address: the host is missing"


def wrong_key(key: str) -> str | None:
    """What is wrong with the name of a key; None if nothing is. The text itself is never shown: it may be a key."""
    if _VARIABLE.fullmatch(key) or (key.startswith("file:") and key != "file:"):
        return None
    return "must name a file, `file:PATH`, or a variable, `env:NAME`: the key itself does not belong here"


def _placed(value: str, folder: Path) -> str:
    """A `file:` name as an absolute one; that it ends with a slash says that it is a folder."""
    if not value.startswith("file:"):
        return value
    path = value.removeprefix("file:")
    slash = "/" if path.endswith("/") else ""
    return f"file:{normpath(folder.absolute() / Path(path).expanduser())}{slash}"
