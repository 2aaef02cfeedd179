"""What the Inbox shows, as lines."""

from __future__ import annotations

from perstack.core.messages import ToolCallPart
from perstack.core.plain import one_line
from perstack.engine.inbox import InboxItem
from perstack.frontends.shared.words import ago, brief, cells, pad, shorten
from perstack.frontends.tui.view.spans import Line, Span

_WHO = 18
_WIDE = 100
"""Cells where there is room for the Job as well: many may ask the same."""


def inbox_line(item: InboxItem, is_chosen: bool, now: int, width: int) -> Line:
    """Who asks, what, and since when."""
    when, who = ago(item.since, now), min(_WHO, width // 4)
    of = shorten(item.job_id or item.task_id or "", _WHO) if width >= _WIDE else ""
    end = f"{pad(of, _WHO)}  {when}" if of else when
    left = max(1, width - 6 - who - cells(end))
    return (
        Span("✗ " if item.damaged else "? ", "bad" if item.damaged else "ask"),
        Span(pad(one_line(item.who), who), "expert"),
        Span("  "),
        Span(pad(shorten(_wanted(item), left), left), "" if is_chosen else "dim"),
        Span(f"  {end}", "dim"),
    )


def _wanted(item: InboxItem) -> str:
    """What is asked; of a call what it is, for who asks is said, and that it needs approval goes without saying."""
    asking = item.asking
    if asking is None or not asking.call_digest:
        return item.text
    part = ToolCallPart(tool_call_id="", tool_name=asking.tool_name, args=asking.args)
    return f"approve {part.tool_name} {brief(part)}"
