"""docs/telemetry.md has the tables of `perstack_otel.attributes`."""

from __future__ import annotations

import re

import pytest
from pages import keep_part, page, section
from telemetry_page import attribute_table, event_table, span_table

from perstack_otel.attributes import CONVENTIONS
from perstack_otel.spans import MAX_CONTENT_CHARS, MAX_EVENTS

NAME = "docs/telemetry.md"


@pytest.mark.parametrize(
    ("heading", "wanted"),
    [
        ("## Spans", span_table()),
        ("## Attributes", attribute_table()),
        ("## Span events", event_table()),
    ],
    ids=["spans", "attributes", "events"],
)
def test_the_page_has_the_tables_of_the_code(heading: str, wanted: str) -> None:
    printed = "".join(re.findall(r"^\|.*\n", section(page(NAME), heading), re.MULTILINE))
    assert keep_part(NAME, printed, wanted) == wanted


def test_the_page_names_the_conventions_and_limits() -> None:
    assert CONVENTIONS in page(NAME)
    assert f"{MAX_CONTENT_CHARS:,} characters" in page(NAME)
    assert f"{MAX_EVENTS} events" in page(NAME)
