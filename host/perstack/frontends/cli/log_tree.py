"""`perstack log --tree`: the Runs of a Job, each below the one that it follows from."""

from __future__ import annotations

from collections.abc import Sequence

from perstack.core.run_tree import PlacedRun
from perstack.frontends.cli.terminal import Screen, data, out, table
from perstack.frontends.shared.run_tree import branches, how_words
from perstack.frontends.shared.words import cost, count, local_time, run_status_of

MOST = 1000
"""Runs that a person is shown."""


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
            how_words(one),
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
