"""docs/start.md says what the program does."""

from __future__ import annotations

import re

from pages import ROOT

from perstack.frontends.tui.actions import ACTIONS
from perstack.frontends.tui.app import StartApp

PAGE = (ROOT / "docs/start.md").read_text()


def test_the_page_lists_every_key_with_what_it_does() -> None:
    keys = PAGE.partition("## Keys")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\S+) \| (.+) \|$", keys, re.M)
    assert rows[2:] == [(one.shown, one.text) for one in ACTIONS if one.shown]


def test_every_action_is_done_by_the_program() -> None:
    assert [one.name for one in ACTIONS if not hasattr(StartApp, f"action_{one.name}")] == []


def test_every_picture_is_there_and_is_shown() -> None:
    shown = set(re.findall(r"\]\(pictures/(\w+)\.svg\)", PAGE))
    assert {name for name in shown if not (ROOT / f"docs/pictures/{name}.svg").exists()} == set()
