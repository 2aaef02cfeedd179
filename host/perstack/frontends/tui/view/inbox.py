"""What the Inbox shows, as lines."""

from __future__ import annotations

from perstack.core.plain import one_line
from perstack.engine.inbox import InboxItem
from perstack.frontends.shared.words import ago, cells, pad, shorten
from perstack.frontends.tui.view.spans import Line, Span

_WHO = 18


def inbox_line(item: InboxItem, is_chosen: bool, now: int, width: int) -> Line:
    """Who asks, what, and since when."""
    when = ago(item.since, now)
    left = max(10, width - 4 - _WHO - cells(when) - 4)
    return (
        Span("✗ " if item.damaged else "? ", "bad" if item.damaged else "ask"),
        Span(pad(one_line(item.who), _WHO), "expert"),
        Span("  "),
        Span(pad(shorten(item.text, left), left), "" if is_chosen else "dim"),
        Span(f"  {when}", "dim"),
    )
