"""docs/testing.md is followed as its reader does, and its table is that of the code."""

from __future__ import annotations

from pathlib import Path

from page_walk import Walk
from pages import first_cells, page, section

from perstack.testing.scripted import Turn

PAGE = page("docs/testing.md")


def test_the_page_leads_from_a_test_that_passes_to_one_that_fails(tmp_path: Path) -> None:
    walk = Walk(tmp_path / "empty", {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path), "COLUMNS": "200"})
    walk.folder.mkdir()
    walk.follow(PAGE)
    assert (walk.folder / "haiku.md").read_text() == "Each step written down.\n"
    assert len(walk.lines) >= 4


def test_the_keys_of_a_turn_are_those_of_a_script() -> None:
    assert set(first_cells(section(PAGE, "## Scripts"))) == {field.alias for field in Turn.model_fields.values()}
