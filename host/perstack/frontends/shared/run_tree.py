"""The tree of a Job's Runs as people are shown it: what is drawn before each, and how it came to be."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.run_tree import How, PlacedRun

_DEEPEST = 8
"""Levels that are drawn; what is deeper stands at the last of them."""

_WORDS: dict[How, str] = {
    "begun": "",
    "delegate": "called by {parent}",
    "continuation": "continues {at}",
    "branch": "branches at {at}",
    "answer": "answers again at {at}",
    "uncompacted": "goes back to {at}",
}


def how_words(one: PlacedRun) -> str:
    """How a Run came to be; empty for one that a person began."""
    return _WORDS[one.how].format(parent=one.parent or "a Run that is gone", at=one.at)


def branches(tree: Sequence[PlacedRun]) -> list[str]:
    """What is drawn before each Run."""
    found: list[str] = []
    open_below: list[bool] = []
    """By level: whether another Run comes there further down, below the same one."""
    for one in reversed(tree):
        depth = min(one.depth, _DEEPEST)
        open_below += [False] * (depth + 1 - len(open_below))
        lines = "".join("│  " if open_below[level] else "   " for level in range(1, depth))
        found.append(lines + ("├─ " if open_below[depth] else "└─ ") if depth else "")
        open_below = [*open_below[:depth], True]
    return found[::-1]
