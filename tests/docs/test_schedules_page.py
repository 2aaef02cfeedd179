"""docs/schedules.md: its tables are those of the code, and its example is a definition."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pages import fenced, first_cells, page, rows, section

from perstack.core.definitions.project import Overlap
from perstack.definition_files import load_project
from perstack.schedules.schedule import TRANSITIONS, Place, StoredScheduleEvent

PAGE = page("docs/schedules.md")
KEPT = section(PAGE, "## The log")
EVENTS, FOLLOWS = KEPT.split("Each is appended", 1)


def test_every_event_is_listed() -> None:
    assert first_cells(EVENTS) == [event.model_fields["type"].default for event in get_args(StoredScheduleEvent)]


def test_what_may_follow_where_is_what_the_code_allows() -> None:
    table = {row[0].strip("`"): (words(row[1]), words(row[2])) for row in rows(FOLLOWS)}
    assert table == {name: (one.states, one.to) for name, one in TRANSITIONS.items()}
    assert {place for places, _ in table.values() for place in places} == {*get_args(Place)}


def words(cell: str) -> frozenset[str]:
    return frozenset(word.strip() for word in cell.split(",")) - {"-"}


def test_both_ways_to_overlap_are_explained() -> None:
    assert first_cells(section(PAGE, "## Overlap")) == [*get_args(Overlap)]


def test_the_example_loads_with_nothing_to_say(tmp_path: Path) -> None:
    definition = tmp_path / "perstack.toml"
    definition.write_text(fenced(PAGE, "toml")[0])
    loaded = load_project(definition)
    assert loaded.warnings == ()
    assert [one.name for one in loaded.project.schedules] == ["nightly"]
