r"""A tree: one blob for each folder, named by the sha256 of its bytes, so that an unchanged folder costs nothing.

    {"tree":1,"entries":[["a folder","folder",DIGEST],["big.iso","leftOut","tooLarge"],["link","link","../x"],
                         ["run.sh","program",BYTES,DIGEST],["x.py","file",BYTES,DIGEST]]}

Compact JSON in UTF-8, the entries in the order of their names' bytes, names and targets spelled as in
`core.snapshots.names`. One folder has one text, so that equal folders have equal digests; the reader takes no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import Literal, assert_never, get_args

from pydantic import JsonValue

from perstack.core.json_reading import read_json
from perstack.core.snapshots.names import LONGEST_PATH, is_name, spelled, unspelled
from perstack.dataclass import dataclass

Reason = Literal["tooLarge", "tooDeep", "unreadable", "changing", "special"]
"""Why something is not recorded: it has more bytes than the limit, is too far down, may not be read or
is on a medium that fails, changed all the while that it was read, or is no file, link or folder."""

MOST_ENTRIES = 1_000_000
"""Of a whole tree: what is beyond it is not recorded, and not read."""
LONGEST_FOLDER = 256 << 20
"""Bytes that the blob of one folder may have."""
_VERSION = 1
_HEX = frozenset("0123456789abcdef")
_MOST_BYTES = 1 << 63

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class NotATree(ValueError):
    """Why some bytes are no folder of a tree, in words that follow its digest."""


@dataclass(frozen=True, slots=True)
class File:
    """An ordinary file."""

    name: bytes
    size: int
    digest: str
    """The sha256 of its bytes, in hex: a blob."""
    is_program: bool = False
    """Its owner may execute it."""


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, which is never followed."""

    name: bytes
    target: bytes


@dataclass(frozen=True, slots=True)
class Below:
    """A folder in a folder, which may be empty."""

    name: bytes
    digest: str
    """Of the blob that has its entries."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that is there, and not recorded. What is ignored or private is not even named."""

    name: bytes
    reason: Reason


Entry = File | Link | Below | LeftOut


@dataclass(frozen=True, slots=True)
class Folder:
    """What a folder holds, in the order of the names."""

    entries: tuple[Entry, ...] = ()


def folder_of(entries: Iterable[Entry]) -> Folder:
    """A folder of entries in any order, whose names differ."""
    return Folder(tuple(sorted(entries, key=lambda entry: entry.name)))


def folder_blob(folder: Folder) -> bytes:
    """The bytes that stand for a folder."""
    return _encode({"tree": _VERSION, "entries": [_row(entry) for entry in folder.entries]}).encode()


def digest_of(data: bytes) -> str:
    """What a blob is named by."""
    return sha256(data).hexdigest()


def read_folder(data: bytes) -> Folder:
    """The folder that some bytes of anybody stand for. Raises NotATree for bytes that `folder_blob` makes of none."""
    if len(data) > LONGEST_FOLDER:
        raise NotATree(f"has more than {LONGEST_FOLDER} bytes")
    try:
        value = read_json(data)
    except ValueError as error:
        raise NotATree("is not JSON") from error
    rows = value.get("entries") if isinstance(value, dict) and value.get("tree") == _VERSION else None
    if not isinstance(rows, list):
        raise NotATree("is not a tree that this version knows")
    folder = Folder(tuple(_entry(row) for row in rows))
    names = [entry.name for entry in folder.entries]
    if any(name >= after for name, after in pairwise(names)):
        raise NotATree("has names twice or out of order")
    if folder_blob(folder) != data:
        raise NotATree("is written as no folder is")
    return folder


def _row(entry: Entry) -> list[JsonValue]:
    name = spelled(entry.name)
    match entry:
        case File():
            return [name, "program" if entry.is_program else "file", entry.size, entry.digest]
        case Link():
            return [name, "link", spelled(entry.target)]
        case Below():
            return [name, "folder", entry.digest]
        case LeftOut():
            return [name, "leftOut", entry.reason]
        case _:
            assert_never(entry)


def _entry(row: JsonValue) -> Entry:
    match row:
        case [str(name), ("file" | "program") as kind, int(size), str(digest)] if _is_size(size) and is_digest(digest):
            return File(_name(name), size, digest, kind == "program")
        case [str(name), "link", str(target)]:
            return Link(_name(name), _target(target))
        case [str(name), "folder", str(digest)] if is_digest(digest):
            return Below(_name(name), digest)
        case [str(name), "leftOut", str(reason)]:
            known = next((one for one in get_args(Reason) if one == reason), None)
            if known is not None:
                return LeftOut(_name(name), known)
        case _:
            pass
    raise NotATree("has an entry that is none of this version")


def is_digest(text: str) -> bool:
    """Whether a text can be the sha256 of something, in hex."""
    return len(text) == 64 and _HEX.issuperset(text)


def _is_size(size: int) -> bool:
    return not isinstance(size, bool) and 0 <= size < _MOST_BYTES


def _name(text: str) -> bytes:
    name = _unspelled(text)
    if not is_name(name):
        raise NotATree("has a name that no file in a folder can have")
    return name


def _target(text: str) -> bytes:
    target = _unspelled(text)
    if not 0 < len(target) < LONGEST_PATH or b"\0" in target:
        raise NotATree("has a link that leads nowhere")
    return target


def _unspelled(text: str) -> bytes:
    try:
        return unspelled(text)
    except ValueError as error:
        raise NotATree("has a name that is not spelled as names are") from error
