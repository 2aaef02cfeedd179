"""A call that waits for a person's approval, as the person is shown it: all of it, and what an edit would change."""

from __future__ import annotations

import json
from difflib import unified_diff
from pathlib import Path

from pydantic import JsonValue

from perstack.config.toml import NotRead, read_bounded
from perstack.core.answers import read_approval
from perstack.core.base import JsonObject
from perstack.core.ids import place_of
from perstack.core.runs.asking import OpenQuestion

_EDIT = ("oldText", "newText")
_WHOLE = ("text",)
"""Arguments that a difference shows."""

_MOST = 1 << 20
"""Bytes of a file that is compared with what is to be written."""

_LONGEST = 40_000
"""Characters of one argument, and of a difference, that a person is shown."""

_MOST_LINES = 2_000
"""Of two texts that are compared: it takes time that grows with the square of them."""


def is_refusal(asking: OpenQuestion, text: str) -> bool:
    """Whether an answer denies the call. Raises UsageError for what is not an answer."""
    return read_approval(asking, text).denies


def call_shown(asking: OpenQuestion, workspace: Path | None = None) -> str:
    """The Expert, the tool, the rule and every argument; of an edit the difference.

    With a `workspace`, what a file would be overwritten with is compared with what is in it.
    """
    left_out, change = change_of(asking.tool_name, asking.args, workspace)
    lines = [f"  {name}: {value_shown(value, asking)}" for name, value in asking.args.items() if name not in left_out]
    return "\n".join((asking.text, *lines, *(f"  {line}" for line in change)))


def value_shown(value: JsonValue, asking: OpenQuestion) -> str:
    """A value in lines that are not taken for others; of a very long one what is left out is said."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    more = len(shown) - _LONGEST
    if more > 0:
        job, half = place_of(asking.id)[0], _LONGEST // 2
        said = f"… {more:,} characters are left out here, see: perstack log {job} --verbose …"
        shown = f"{shown[:half]}\n{said}\n{shown[-half:]}"
    return shown.replace("\n", "\n    | ")  # what is in a text is never taken for a line of ours


def change_of(
    tool_name: str, args: JsonObject, workspace: Path | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments that a difference shows, and its lines, if the call is an edit of a text; else nothing.

    With a `workspace`, what a file would be overwritten with is compared with what is in it.
    """
    path, old, new, whole = (_text(args.get(name)) for name in ("path", "oldText", "newText", "text"))
    shows: tuple[str, ...] = _EDIT
    if path is None:
        return (), ()
    if (old is None or new is None) and whole is not None and tool_name == "writeTextFile":
        shows, old, new = _WHOLE, None if workspace is None else _content(workspace, path), whole
    found = () if old is None or new is None else _diff(old, new, path)
    return (shows, found) if found else ((), ())


def _diff(old: str, new: str, path: str) -> tuple[str, ...]:
    """Nothing for texts that are too long: they are shown as they are."""
    before, after = old.split("\n"), new.split("\n")
    if len(before) + len(after) > _MOST_LINES or len(old) + len(new) > _LONGEST:
        return ()
    return tuple(unified_diff(before, after, path, path, lineterm=""))


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _content(workspace: Path, path: str) -> str | None:
    """What is in a file of the workspace; None if there is none, or it is not a text that is looked at."""
    try:
        place = (workspace / path).resolve()
        if not place.is_relative_to(workspace.resolve()) or not place.is_file():
            return None
        return read_bounded(place, _MOST).decode()
    except (NotRead, OSError, ValueError, RuntimeError):
        return None
