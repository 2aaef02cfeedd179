"""The state that a Run begins with."""

from __future__ import annotations

from dataclasses import replace

from perstack.core.chain import Head
from perstack.core.events import StartRun
from perstack.core.messages import History, TextPart, UserMessage
from perstack.core.models import full_name
from perstack.core.runs.context_state import EMPTY_CONTEXT
from perstack.core.runs.inheriting import inheritable, inherited
from perstack.core.runs.results import schema_of_run
from perstack.core.runs.state import Phase, Run


def begin(start: StartRun, head: Head, base: Run | None = None) -> Run:
    """The state after `startRun`; `base` is the Run that it continues from, as it was at that place."""
    place = start.continued_from
    if base is not None and place is not None and (place.answers or place.as_it_was):
        return _taken_over(start, head, base)
    query = UserMessage(contents=(TextPart(text=start.query), *start.attachments))
    earlier = History() if base is None else inheritable(base, f"{start.id}-open")
    is_same = base is not None and base.on == full_name(start.provider, start.model)
    return Run(
        start=start,
        head=head,
        limits=start.limits,
        schema=schema_of_run(start),
        messages=earlier.append(query, start.id),
        context=EMPTY_CONTEXT if base is None else inherited(base, same_model=is_same),
        context_window=base.context_window if base is not None and is_same and start.limits.context else None,
        touched=start.timestamp,
        updated_at=start.timestamp,
        permissions=start.permissions,
        snapshot_due="no" if start.snapshots is None else "before",
    )


def _taken_over(start: StartRun, head: Head, base: Run) -> Run:
    """Where `base` was, as a Run of its own: its calls are open still, and what it spent is not spent again."""
    is_begun = base.phase is Phase.GENERATING
    return Run(
        start=start,
        head=head,
        limits=start.limits,
        messages=base.messages,
        schema=schema_of_run(start),
        phase=Phase.READY if is_begun else base.phase,
        accepted=base.accepted and not is_begun,
        calls=base.calls,
        todos=base.todos,
        context=replace(base.context, overflow=None, is_relieved=False),
        context_tokens=base.context_tokens,
        context_window=base.context_window,
        asked=base.asked,
        touched=start.timestamp,
        updated_at=start.timestamp,
        permissions=start.permissions,
        snapshot_due="no" if start.snapshots is None else "before",
        is_tightened=start.permissions != base.permissions,
    )
