"""Files that a shell itself reads or writes for `exec`: the protected ones are refused, as file tools refuse them.

What can be read literally in the script is refused. What a program does with its arguments is a matter of the runtime.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from perstack.core.protected import folded, protected_by_name
from perstack.errors import SkillError
from perstack_base.files import printable
from perstack_base.workspace import Workspace


def may_redirect(words: Sequence[str]) -> bool:
    """Whether a command may have a shell open files. To look costs the import of a parser."""
    return any(">" in word or "<" in word for word in words[1:])


def refuse_redirects(workspace: Workspace, words: Sequence[str], folder: str) -> None:
    """Raises SkillError for a redirection to what is off limits. It looks at the disk."""
    from perstack.core.policy.programs import redirects_of

    for redirect in redirects_of(words):
        if redirect.path is not None:
            _refuse_path(workspace, os.path.join(folder, redirect.path), change=not redirect.is_read)  # noqa: PTH118
        elif redirect.text:
            _refuse_name(redirect.text)


def _refuse_path(workspace: Workspace, path: str, *, change: bool) -> None:
    if "\0" in path:
        return
    shown, whole = printable(os.path.normpath(path)), os.path.join(workspace.root, path)  # noqa: PTH118
    for name in (whole, os.path.realpath(whole)):
        way = workspace.inside(name)
        if way is not None:
            workspace.check_way(way, shown, change=change)
    opened = workspace.inside(os.path.realpath(whole))
    if opened is None or not workspace.is_opened(opened):
        with suppress(OSError, ValueError):
            workspace.check_identity(os.stat(whole), shown, workspace.protected_identities())  # noqa: PTH116


def _refuse_name(text: str) -> None:
    """Of a path that is seen from where the script has gone: what it is called is known."""
    way = folded(tuple(part for part in Path(os.path.normpath(text)).parts if part not in ("..", ".")))
    what = protected_by_name(way)
    if what is not None:
        raise SkillError(f"{printable(text)} is {what}, which is off limits to tools; ask a person to see to it")
