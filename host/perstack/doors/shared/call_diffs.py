"""The change that a call makes to a text file, as a unified diff.

Before the call runs, `edit_in_workspace` reads the file, so that the diff has its line numbers and the lines around the
change; it finds the place and the new text with the code of the tool. `edit_from_args` uses only the call and its
result, for past calls, whose file may have changed since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import approvable_line, approvable_text
from perstack.core.files.line_diff import CONTEXT, Effort, Hunk, as_text, is_text, line_diff, split_lines
from perstack.core.files.text_edit import Replacement, find_replacement
from perstack.engine.permissions.changed_files import changed_path, is_edit, read_changed_file, reason_unreadable
from perstack.errors import SkillError

_EDIT_ARGS = ("oldText", "newText")
_WRITE_ARGS = ("text",)
_MAX_SHOWN_CHARS = 40_000  # maximum characters of a diff, and of texts that are compared without their file
_MAX_NAME_CHARS = 200
_MAX_LINE = 1 << 30  # maximum lines of a file: tools edit no longer ones
_MAX_STEPS = 100_000  # steps of a comparison: at most a fraction of a second, while a person waits
_ADVICE = r"( \(lines [\d, …]*\))?;[^;]*\Z"  # lines in a result for the model count from 0
_NO_NEWLINE = "\\ No newline at end of file"


class FileEdit(NamedTuple):
    """The change that a call makes to a file, for a person."""

    arguments: tuple[
        str, ...
    ] = ()  # names of arguments that the diff shows completely, so that a page need not repeat them
    lines: tuple[str, ...] = ()  # unified diff
    note: str = ""  # notes for the person, such as why the diff is not against the file


def edit_from_args(tool_name: str, args: JsonObject, result: str | None = None) -> FileEdit:
    """Return a diff from a call's arguments alone; empty if the call replaces no text.

    Line numbers start at the line that the tool's result names, otherwise at 1.
    """
    path, old, new = (_text_or_none(args.get(name)) for name in ("path", *_EDIT_ARGS))
    if path is None or old is None or new is None or len(old) + len(new) > _MAX_SHOWN_CHARS:
        return FileEdit()
    before, after = ([line.encode("utf-8", "surrogatepass") for line in text.split("\n")] for text in (old, new))
    shift = 0 if result is None else _edited_line(result)
    hunks = line_diff(before, after, Effort(_MAX_STEPS)).hunks
    return _as_diff(_EDIT_ARGS, path, [hunk._replace(old=hunk.old + shift, new=hunk.new + shift) for hunk in hunks])


def _edited_line(result: str) -> int:
    """Return the first line of an edit, counted from 0, as named in the result; 0 if it names none."""
    try:
        document: JsonValue = json.loads(result)
    except (ValueError, RecursionError):
        return 0
    line = document.get("from") if isinstance(document, dict) else None
    return line if isinstance(line, int) and 0 < line < _MAX_LINE else 0


def edit_in_workspace(workspace: Path, tool_name: str, args: JsonObject) -> FileEdit:
    """Return the diff to the file in the workspace, or `edit_from_args` with a note that says why."""
    path = changed_path("", tool_name, args)
    if path is None:
        return FileEdit()
    old, new, full_text = (_text_or_none(args.get(name)) for name in (*_EDIT_ARGS, "text"))
    name, edit = _display_name(path), edit_from_args(tool_name, args)
    try:
        data = read_changed_file(workspace, path)
    except FileNotFoundError:
        is_new = tool_name == "writeTextFile" and not is_edit(args)
        return edit._replace(note=f"{name} is a new file" if is_new else f"{name} does not exist")
    except (OSError, ValueError, RuntimeError) as error:
        return edit._replace(note=f"not compared with the file: {name} {reason_unreadable(error)}")
    if not is_text(data):
        return edit._replace(note=f"not compared with the file: {name} is not a text file")
    if old is not None and new is not None:
        try:
            change = find_replacement(data, _encode(old), _encode(new), name)
        except SkillError as error:
            return edit._replace(note=re.sub(_ADVICE, "", str(error)))
        return _diff_around_change(_EDIT_ARGS, path, data, change)
    text = _encode(full_text or "")
    is_append = tool_name == "appendTextFile"
    return _diff_around_change(
        _WRITE_ARGS, path, data, Replacement(len(data), b"", text) if is_append else Replacement(0, data, text)
    )


def _diff_around_change(arguments: tuple[str, ...], path: str, data: bytes, change: Replacement) -> FileEdit:
    """Compare only the changed lines and the lines around them: this is quick for a file of any length."""
    end = change.offset + len(change.old)
    start = _line_start(data, change.offset)
    for _ in range(CONTEXT):
        start = _line_start(data, max(0, start - 1))
    stop = _line_end(data, end)
    for _ in range(CONTEXT):
        stop = _line_end(data, stop)
    after = data[start : change.offset] + change.new + data[end:stop]
    hunks = line_diff(split_lines(data[start:stop]), split_lines(after), Effort(_MAX_STEPS)).hunks
    shift = data.count(b"\n", 0, start)
    numbered_hunks = [hunk._replace(old=hunk.old + shift, new=hunk.new + shift) for hunk in hunks]
    edit = _as_diff(arguments, path, numbered_hunks)
    if not hunks:
        return edit._replace(note=f"{_display_name(path)} already has this text: nothing changes")
    if not edit.lines:
        return edit._replace(note="the change is too long for a diff: the arguments are shown instead")
    return edit


def _line_start(data: bytes, at: int) -> int:
    return data.rfind(b"\n", 0, at) + 1


def _line_end(data: bytes, at: int) -> int:
    newline = data.find(b"\n", at)
    return len(data) if newline < 0 else newline + 1


def _as_diff(arguments: tuple[str, ...], path: str, hunks: Sequence[Hunk]) -> FileEdit:
    lines = (
        f"--- {_display_name(path)}",
        f"+++ {_display_name(path)}",
        *(line for hunk in hunks for line in _hunk_lines(hunk)),
    )
    if not hunks or sum(map(len, lines)) > _MAX_SHOWN_CHARS:
        return FileEdit()
    return FileEdit(arguments, lines)


def _hunk_lines(hunk: Hunk) -> Iterator[str]:
    yield hunk.head
    terminated = [line for _, line in hunk.lines if line.endswith(b"\n")]
    # a missing final newline is shown only where it differs
    end = b"\r\n" if terminated and all(line.endswith(b"\r\n") for line in terminated) else b"\n"
    for sign, line in hunk.lines:
        yield sign + approvable_text(as_text(line.removesuffix(end)))
        if terminated and not line.endswith(b"\n"):
            yield _NO_NEWLINE


def _text_or_none(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _display_name(path: str) -> str:
    name = approvable_line(path)
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…"
