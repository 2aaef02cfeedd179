"""Replacing one piece of a text file, by bytes: what is not replaced stays as it was, whatever its encoding."""

from __future__ import annotations

from perstack.core.base import JsonObject
from perstack.errors import SkillError
from perstack_base.arguments import encoded, text
from perstack_base.reading import open_regular
from perstack_base.workspace import Workspace
from perstack_base.writing import echo, replace

MOST_BYTES = 64 * 1024 * 1024
"""Of a file that can be edited in one piece."""

_CRLF = b"\r\n"
_LF = b"\n"


def edit_text_file(workspace: Workspace, args: JsonObject) -> JsonObject:
    """`editTextFile`."""
    old, new = encoded(args, "oldText"), encoded(args, "newText")
    with workspace.place(text(args, "path"), change=True) as place:
        with open_regular(place) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise SkillError(f"{place.shown} is larger than {MOST_BYTES} bytes; edit it with exec sed")
        replace(place, edited(data, old, new, place.shown))
        return {"path": place.shown, "oldText": echo(text(args, "oldText")), "newText": echo(text(args, "newText"))}


def edited(data: bytes, old: bytes, new: bytes, shown: str) -> bytes:
    """The data with the one occurrence of `old` replaced. Raises SkillError if it is not exactly one."""
    if not old:
        raise SkillError("oldText is empty; give the text to replace, or use appendTextFile to add to the end")
    if old == new:
        raise SkillError("oldText and newText are the same; nothing would change")
    found = next((form for form in _forms(old) if form in data), None)
    if found is None:
        raise SkillError(
            f"oldText does not occur in {shown}; read the file and copy the text exactly, with its spaces and newlines"
        )
    if (at := data.find(found)) != data.rfind(found):
        lines = _lines_of(data, found)
        raise SkillError(f"oldText occurs more than once in {shown} (lines {lines}); give more of its surroundings")
    return data[:at] + _with_endings(new, _ending(found, data)) + data[at + len(found) :]


def _forms(old: bytes) -> tuple[bytes, ...]:
    """As it was given, and with either line ending: a model cannot see which one a file has."""
    plain = old.replace(_CRLF, _LF)
    return old, plain, plain.replace(_LF, _CRLF)


def _ending(found: bytes, data: bytes) -> bytes:
    sample = found if _LF in found else data
    return _CRLF if sample.count(_CRLF) * 2 > sample.count(_LF) else _LF


def _with_endings(new: bytes, ending: bytes) -> bytes:
    return new.replace(_CRLF, _LF).replace(_LF, ending)


def _lines_of(data: bytes, found: bytes) -> str:
    places: list[str] = []
    at = data.find(found)
    while at >= 0 and len(places) < 5:
        places.append(str(data.count(_LF, 0, at)))
        at = data.find(found, at + 1)
    return ", ".join(places) + (" …" if at >= 0 else "")
