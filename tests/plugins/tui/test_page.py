"""docs/start.md agrees with the program."""

from __future__ import annotations

import re

from pages import ROOT

from perstack_tui.actions import ACTIONS, HISTORY_ACTIONS
from perstack_tui.app import StartApp
from perstack_tui.screens.job import JobScreen

PAGE = (ROOT / "docs/start.md").read_text()


def test_the_page_lists_every_key_with_what_it_does() -> None:
    for heading, actions in (("History", HISTORY_ACTIONS), ("Keys", ACTIONS)):
        keys = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (\S+) \| (.+) \|$", keys, re.M)
        assert rows[2:] == [(action.key_label, action.text) for action in actions if action.key_label]


def test_every_action_is_done_by_the_program() -> None:
    assert [action.name for action in ACTIONS if not hasattr(StartApp, f"action_{action.name}")] == []
    assert [one.name for one in HISTORY_ACTIONS if not hasattr(JobScreen, f"action_{one.name}")] == []


def test_every_picture_is_there_and_is_shown() -> None:
    shown = set(re.findall(r"\]\(pictures/(\w+)\.svg\)", PAGE))
    assert {name for name in shown if not (ROOT / f"docs/pictures/{name}.svg").exists()} == set()
