"""`perstack log --tree`: the Runs of a Job, each below the one that it follows from."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.run_tree import How, PlacedRun
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.words import cost, count, local_time, run_status_of

MOST = 1000
"""Runs that a person is shown."""
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


def show_tree(screen: Screen, tree: Sequence[PlacedRun]) -> None:
    """A table with a row for each Run, and lines from each to those below it."""
    shown = tree[:MOST]
    rows = [
        (
            one.run.id,
            one.run.expert_key or "?",
            run_status_of(one.run),
            f"{one.run.steps:,}",
            f"{one.run.usage.total_tokens:,}",
            cost(one.run.usage, one.run.unpriced_tokens).removeprefix("cost ") or "-",
            f"{local_time(one.run.started_at):%Y-%m-%d %H:%M:%S}" if one.run.started_at else "?",
            _WORDS[one.how].format(parent=one.parent or "a Run that is gone", at=one.at),
        )
        for one in shown
    ]
    headings = ("Run", "Expert", "status", "steps", "tokens", "cost", "began", "how")
    table(screen, headings, rows, right=(3, 4, 5), drops=(4, 6, 1, 3, 5, 2), before=branches(shown))
    if len(tree) > MOST:
        out(screen.paint(f"and {count(len(tree) - MOST, 'more Run')}: all with --json", dim=True))


def write_tree(tree: Sequence[PlacedRun]) -> None:
    """A line of JSON for each Run."""
    for one in tree:
        data(one.to_json())


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
