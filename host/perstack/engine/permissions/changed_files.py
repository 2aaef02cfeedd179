"""Read the file that a call of the base skill would change, for the diff that a person is shown and for its digest.

An approval is bound to the content that its diff was made from: the digest of the content is recorded with the request,
and computed again when the call is about to run. Both read the file as the tools do, within the workspace.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import BASE_SKILL
from perstack.system.files import FileTooLarge, NotRegular, read_below

MAX_FILE_BYTES = 1 << 20  # maximum bytes of a file that is read to show its change
ABSENT = "absent"  # digest of a file that does not exist
_WRITERS = ("writeTextFile", "appendTextFile")


def is_edit(args: JsonObject) -> bool:
    """Return whether the arguments describe an edit: an old and a new text."""
    return isinstance(args.get("oldText"), str) and isinstance(args.get("newText"), str)


def changed_path(skill_name: str, tool_name: str, args: JsonObject) -> str | None:
    """Return the path of the text file that a call would change; None if it changes none.

    Arguments of other skills' tools may mean anything.
    """
    path: JsonValue = args.get("path")
    is_write = tool_name in _WRITERS and isinstance(args.get("text"), str)
    if skill_name not in ("", BASE_SKILL) or not isinstance(path, str) or not (is_edit(args) or is_write):
        return None
    return path


def read_changed_file(workspace: Path, path: str) -> bytes:
    """Return the content of a file in the workspace. A link is followed as the tools follow it, within the workspace.

    Raises OSError if it is unreadable, outside, not a regular file or too large, and ValueError for an impossible path.
    """
    root = workspace.resolve()
    target = (workspace / os.path.normpath(path)).resolve()
    if not target.is_relative_to(root):
        raise PermissionError("is outside the workspace")
    return read_below(root, str(target.relative_to(root)), MAX_FILE_BYTES)


def reason_unreadable(error: Exception) -> str:
    """Return why a file cannot be read, as the predicate of a sentence about it."""
    match error:
        case FileTooLarge():
            return f"is larger than {MAX_FILE_BYTES >> 20} MiB"
        case NotRegular():
            return "is not a regular file"
        case OSError() if error.strerror:
            return f"cannot be read ({error.strerror.lower()})"
        case OSError():
            return str(error)
        case _:
            return "cannot be read"


def content_digest(workspace: Path, skill_name: str, tool_name: str, args: JsonObject) -> str:
    """Return the SHA-256, in hex, of the text file that a call would change; empty if it changes none.

    For a file that does not exist, return ABSENT; for an unreadable one, the reason.
    """
    path = changed_path(skill_name, tool_name, args)
    if path is None:
        return ""
    try:
        return sha256(read_changed_file(workspace, path)).hexdigest()
    except FileNotFoundError:
        return ABSENT
    except (OSError, ValueError, RuntimeError) as error:
        return reason_unreadable(error)
