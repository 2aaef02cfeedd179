"""Trees, the stored form of a folder: a tree has one blob for each folder, named by the sha256 of its bytes.

An unchanged folder keeps its digest, so it is stored once. The blob is compact JSON in UTF-8:

    {"tree":1,"entries":[["a folder","folder",DIGEST],["big.iso","leftOut","tooLarge"],["link","link","../x"],
                         ["run.sh","program",BYTES,DIGEST],["x.py","file",BYTES,DIGEST]]}

Entries are sorted by the bytes of their names; names and link targets are spelled as in `core.files.file_names`. A
folder has exactly one encoding, so that equal folders have equal digests, and `read_folder` rejects any other.

This module, ignore_rules.py, which decides what a snapshot leaves out, and tree_diff.py, which compares two trees and
plans a rewind, never read files themselves. Changing the encoding changes every digest, so it needs a new `_VERSION`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import assert_never, get_args

from pydantic import JsonValue

from perstack.core.base.ids import is_digest
from perstack.core.base.records import read_json
from perstack.core.files.file_names import MAX_PATH_BYTES, is_name, is_never_recorded, parse_spelling, spell
from perstack.core.runs.events.files import SkipReason
from perstack.dataclass import dataclass

MAX_ENTRIES = 1_000_000  # maximum entries of a tree; further ones are neither read nor recorded
MAX_FOLDER_BYTES = 256 << 20  # maximum bytes of one folder's blob
_VERSION = 1
_MAX_FILE_SIZE = 1 << 63

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class NotATree(ValueError):
    """Raised for bytes that are not a folder's blob; the message is a predicate of the digest."""


@dataclass(frozen=True, slots=True)
class File:
    """Ordinary file."""

    name: bytes
    size: int
    digest: str  # digest of the blob with its bytes: sha256 in hex
    is_program: bool = False  # True if its owner may execute it


@dataclass(frozen=True, slots=True)
class Link:
    """Symbolic link, which is never followed."""

    name: bytes
    target: bytes


@dataclass(frozen=True, slots=True)
class Subfolder:
    """Subfolder, possibly empty."""

    name: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """Entry that exists but is not recorded. Ignored and private files have no entry at all."""

    name: bytes
    reason: SkipReason


Entry = File | Link | Subfolder | SkippedEntry


@dataclass(frozen=True, slots=True)
class TreeFolder:
    """Entries of a folder, sorted by name."""

    entries: tuple[Entry, ...] = ()


def folder_of(entries: Iterable[Entry]) -> TreeFolder:
    """Return a folder with these entries; their names must differ."""
    return TreeFolder(tuple(sorted(entries, key=lambda entry: entry.name)))


def folder_blob(folder: TreeFolder) -> bytes:
    return _encode({"tree": _VERSION, "entries": [_to_row(entry) for entry in folder.entries]}).encode()


def digest_of(data: bytes) -> str:
    """Return the name of a blob: the sha256 of its bytes, in hex."""
    return sha256(data).hexdigest()


def read_folder(data: bytes) -> TreeFolder:
    """Return the folder in an untrusted blob. Raises NotATree for anything but the exact output of `folder_blob`."""
    if len(data) > MAX_FOLDER_BYTES:
        raise NotATree(f"has more than {MAX_FOLDER_BYTES} bytes")
    try:
        value = read_json(data)
    except ValueError as error:
        raise NotATree("is not JSON") from error
    rows = value.get("entries") if isinstance(value, dict) and value.get("tree") == _VERSION else None
    if not isinstance(rows, list):
        raise NotATree("is not a tree that this version knows")
    folder = TreeFolder(tuple(_parse_entry(row) for row in rows))
    names = [entry.name for entry in folder.entries]
    if any(name >= following for name, following in pairwise(names)):
        raise NotATree("has repeated names, or names out of order")
    if folder_blob(folder) != data:
        raise NotATree("is not in the only form that a folder has")
    return folder


def _to_row(entry: Entry) -> list[JsonValue]:
    name = spell(entry.name)
    match entry:
        case File():
            return [name, "program" if entry.is_program else "file", entry.size, entry.digest]
        case Link():
            return [name, "link", spell(entry.target)]
        case Subfolder():
            return [name, "folder", entry.digest]
        case SkippedEntry():
            return [name, "leftOut", entry.reason]
        case _:
            assert_never(entry)


def _parse_entry(row: JsonValue) -> Entry:
    match row:
        case [str(name), ("file" | "program") as kind, int(size), str(digest)] if _is_size(size) and is_digest(digest):
            return File(_parse_name(name), size, digest, kind == "program")
        case [str(name), "link", str(target)]:
            return Link(_parse_name(name), _parse_target(target))
        case [str(name), "folder", str(digest)] if is_digest(digest):
            return Subfolder(_parse_name(name), digest)
        case [str(name), "leftOut", str(reason)]:
            known_reason = next((item for item in get_args(SkipReason) if item == reason), None)
            if known_reason is not None:
                return SkippedEntry(_parse_name(name), known_reason)
        case _:
            pass
    raise NotATree("has an entry that this version does not know")


def _is_size(size: int) -> bool:
    return not isinstance(size, bool) and 0 <= size < _MAX_FILE_SIZE


def _parse_name(text: str) -> bytes:
    name = _parse_path(text)
    if not is_name(name) or is_never_recorded(name):
        raise NotATree("has a name that no file in a folder can have, or that is never recorded")
    return name


def _parse_target(text: str) -> bytes:
    target = _parse_path(text)
    if not 0 < len(target) < MAX_PATH_BYTES or b"\0" in target:
        raise NotATree("has a link that leads nowhere")
    return target


def _parse_path(text: str) -> bytes:
    try:
        return parse_spelling(text)
    except ValueError as error:
        raise NotATree("has a name with an invalid escape") from error
