"""A call that waits for a person's approval, as the person is shown it: all of it, and what an edit would change."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path

from pydantic import JsonValue

from perstack.config.toml import NotRead, read_bounded
from perstack.core.answers import read_approval
from perstack.core.runs.asking import OpenQuestion

_TEXTS = ("oldText", "newText", "text")
"""Arguments that a difference shows."""

_MOST = 1 << 20
"""Bytes of a file that is compared with what is to be written."""


def is_refusal(asking: OpenQuestion, text: str) -> bool:
    """Whether an answer denies the call. Raises UsageError for what is not an answer."""
    return read_approval(asking, text).denies


def call_shown(asking: OpenQuestion, workspace: Path | None = None) -> str:
    """The Expert, the tool, the rule and every argument; of an edit the difference.

    With a `workspace`, what a file would be overwritten with is compared with what is in it.
    """
    change = _change(asking, workspace)
    left_out = _TEXTS if change else ()
    lines = [f"  {name}: {_value(value)}" for name, value in asking.args.items() if name not in left_out]
    return "\n".join((asking.text, *lines, *change))


def _value(value: JsonValue) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shown.replace("\n", "\n    | ")  # what is in a text is never taken for a line of ours


def _change(asking: OpenQuestion, workspace: Path | None) -> list[str]:
    """The lines of a diff, if the call is an edit of a text."""
    path, old, new, whole = (_text(asking.args.get(name)) for name in ("path", "oldText", "newText", "text"))
    if path is None:
        return []
    if old is not None and new is not None:
        return _diff(old, new, path)
    if whole is None or workspace is None or asking.tool_name != "writeTextFile":
        return []
    before = _content(workspace, path)
    return [] if before is None else _diff(before, whole, path)


def _diff(old: str, new: str, path: str) -> list[str]:
    found: Iterable[str] = unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="")
    return [f"  {line}" for line in found]


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
