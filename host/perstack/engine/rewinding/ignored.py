"""What the rules of an earlier tree left out, and the tree of now has not."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.snapshots.difference import Change
from perstack.core.snapshots.ignoring import Rules, rules_at
from perstack.core.snapshots.tree import Below, File, Folder
from perstack.engine.snapshots.trees import Trees

_RULES = (b".gitignore", b".perstackignore")


async def ignored_then(trees: Trees, tree: str, changes: Sequence[Change]) -> frozenset[bytes]:
    """The paths of these changes to a tree that it has not, and would not have had whatever was there.

    Raises NotFound and StorageError.
    """
    if not any(change.path.rpartition(b"/")[2] in _RULES for change in changes):
        return frozenset()  # what is recorded by the same rules was not left out
    top = await trees.folder(tree)
    rules = rules_at(
        [(b"", await _content(trees, top, _RULES[0]))], perstackignore=await _content(trees, top, _RULES[1])
    )
    found: set[bytes] = set()
    for change in changes:
        if change.new is None and await _is_ignored(trees, top, rules, change):
            found.add(change.path)
    return frozenset(found)


async def _is_ignored(trees: Trees, folder: Folder, rules: Rules, change: Change) -> bool:
    *above, name = change.path.split(b"/")
    for part in above:
        if rules.ignores(part, is_folder=True):
            return True
        inner = next((one for one in folder.entries if one.name == part), None)
        folder = await trees.folder(inner.digest) if isinstance(inner, Below) else Folder()
        rules = rules.inside(part, await _content(trees, folder, _RULES[0]))
    return rules.ignores(name, is_folder=isinstance(change.old, Below))


async def _content(trees: Trees, folder: Folder, name: bytes) -> bytes | None:
    found = next((one for one in folder.entries if one.name == name), None)
    return await trees.content(found.digest) if isinstance(found, File) else None
