"""The tables of docs/telemetry.md, printed from the rows of `perstack_otel.attributes`.

`PERSTACK_KEEP_SCREENS=1 pytest tests/plugins/otel` writes them.
"""

from __future__ import annotations

from docs_tables import lines

from perstack_otel.attributes import ATTRIBUTES, SPAN_EVENTS, SPANS


def span_table() -> str:
    """Return the table of spans."""
    rows = [[f"`{row.operation} {{{row.target}}}`", row.kind, row.opens, row.ends] for row in SPANS]
    return _text(lines(("span", "kind", "opened by", "ended by"), rows))


def attribute_table() -> str:
    """Return the table of attributes."""
    rows = [
        [f"`{row.name}`", ", ".join(f"`{operation}`" for operation in row.on), row.level, row.source]
        for row in ATTRIBUTES
    ]
    return _text(lines(("attribute", "on", "level", "from"), rows))


def event_table() -> str:
    """Return the table of span events."""
    rows = [[f"`{row.name}`", row.source, ", ".join(f"`{name}`" for name in row.attributes)] for row in SPAN_EVENTS]
    return _text(lines(("event", "from", "attributes"), rows))


def _text(table: list[str]) -> str:
    return "\n".join([*table, ""])
