"""The change that a call makes to a text file, as a unified diff."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

from pydantic import JsonValue

from perstack.config.source import NotRead, read_bounded
from perstack.core.base.records import JsonObject
from perstack.core.base.text import approvable_text

_EDIT = ("oldText", "newText")
_WHOLE = ("text",)  # arguments that a diff shows
_MAX_FILE_BYTES = 1 << 20  # maximum bytes of a file that is compared with its new content
_MAX_SHOWN_CHARS = 40_000  # maximum characters of a diff
_MOST_LINES = 2_000  # maximum lines of two compared texts together: the time of a comparison grows with their square


def change_of(
    tool_name: str, args: JsonObject, workspace: Path | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arguments that a diff shows, and its lines; empty tuples if the call edits no text."""
    path, old, new, whole = (_text(args.get(name)) for name in ("path", "oldText", "newText", "text"))
    shows: tuple[str, ...] = _EDIT
    if path is None:
        return (), ()
    if (old is None or new is None) and whole is not None and tool_name == "writeTextFile":
        shows, old, new = _WHOLE, None if workspace is None else _content(workspace, path), whole
    found = () if old is None or new is None else _diff(old, new, path)
    return (shows, found) if found else ((), ())


def _diff(old: str, new: str, path: str) -> tuple[str, ...]:
    """Return the diff; empty for texts that are too long, which are shown as arguments instead."""
    before, after = old.split("\n"), new.split("\n")
    if len(before) + len(after) > _MOST_LINES or len(old) + len(new) > _MAX_SHOWN_CHARS:
        return ()
    return tuple(map(approvable_text, unified_diff(before, after, path, path, lineterm="")))


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _content(workspace: Path, path: str) -> str | None:
    """Return the text of a file in the workspace; None if it is missing, outside, too large or not text."""
    try:
        place = (workspace / path).resolve()
        if not place.is_relative_to(workspace.resolve()) or not place.is_file():
            return None
        return read_bounded(place, _MAX_FILE_BYTES).decode()
    except (NotRead, OSError, ValueError, RuntimeError):
        return None
