"""How the facts about a full context change a Run's state: what the model is shown from then on."""

from __future__ import annotations

from dataclasses import replace

from perstack.core.events import CallTools, CompactHistory, FinishGeneration, Retry, ShrinkResults, StartCompaction
from perstack.core.messages import (
    History,
    Message,
    TextPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
    estimated_tokens,
    tokens_of_contents,
)
from perstack.core.run_facts import ShrunkResult
from perstack.core.runs.changes import Changes
from perstack.core.runs.context import short_text
from perstack.core.runs.context_state import ContextState
from perstack.core.runs.state import Run
from perstack.core.tools import LOOP_KINDS
from perstack.core.toolsearch import names_in
from perstack.core.transitions import IllegalFact


def known_tools(run: Run, event: CallTools) -> ContextState:
    """With which of the tools that are called only read, and which are pinned."""
    context = run.context
    if run.limits.context is None:
        return context
    reading = {one.tool_name for one in event.calls if one.effect == "readOnly" and one.kind not in LOOP_KINDS}
    pinned = {one.tool_name for one in event.calls if one.pin}
    if reading <= context.read_only and pinned <= context.pinned:
        return context
    return replace(context, read_only=context.read_only | reading, pinned=context.pinned | pinned)


def measured(run: Run, event: FinishGeneration) -> ContextState:
    """After a generation that fitted."""
    context = run.context
    if run.limits.context is None:
        return context
    freed, overhead = context.freed, context.overhead
    if run.sending is not None and event.usage.input_tokens > 0:
        freed = 0
        if not overhead:
            texts = estimated_tokens(len(run.instruction.encode(errors="replace")))
            overhead = max(1, texts, event.usage.input_tokens - run.messages.tokens(run.sending.messages))
    if (freed, overhead) == (context.freed, context.overhead) and context.overflow is None and not context.is_relieved:
        return context
    return replace(context, freed=freed, overhead=overhead, overflow=None, is_relieved=False)


def overflowed(run: Run, event: Retry) -> ContextState:
    """After a try; one that did not fit has shown how large the window is."""
    if event.overflow is None:
        return run.context
    return replace(run.context, learned=event.overflow, overflow=event.error)


def resumed_context(context: ContextState, *, failed: bool) -> ContextState:
    """A Run continues; after a failure a person may have seen to it that what did not fit does now."""
    return replace(context, overflow=None, is_relieved=False) if failed else context


def shrunk(run: Run, event: ShrinkResults) -> Changes:
    """Raises IllegalFact for a result that is not there."""
    wanted: dict[str, dict[str, ShrunkResult]] = {}
    for one in event.results:
        wanted.setdefault(one.at, {})[one.tool_call_id] = one
    items: list[Message] = []
    freed = 0
    for index, message in enumerate(run.messages):
        here = wanted.pop(run.messages.place(index), None)
        if here is None or not isinstance(message, ToolMessage):
            items.append(message)
            continue
        parts = tuple(_short(part, here.get(part.tool_call_id), event) for part in message.contents)
        freed += sum(tokens_of_contents(part.contents) for part in message.contents)
        freed -= sum(tokens_of_contents(part.contents) for part in parts)
        items.append(ToolMessage(contents=parts))
    if wanted:
        raise IllegalFact(f"there are no results of {', '.join(wanted)}")
    is_relieved = run.context.is_relieved or run.context.overflow is not None
    context = replace(
        run.context, freed=run.context.freed + freed, overflow=None, is_relieved=is_relieved, has_dropped=True
    )
    return Changes(messages=History(items, _places(run)), context=context)


def _places(run: Run) -> list[str]:
    return [run.messages.place(index) for index in range(len(run.messages))]


def _short(part: ToolResultPart, one: ShrunkResult | None, event: ShrinkResults) -> ToolResultPart:
    if one is None:
        return part
    text = TextPart(text=short_text(part, one.blob, event.head, event.tail))
    return part.model_copy(update={"contents": (text,)})


def summarising(run: Run, event: StartCompaction) -> ContextState:
    """A summary is under way."""
    return replace(run.context, summarising=event.id)


def compacted(run: Run, event: CompactHistory) -> Changes:
    """The messages from the first to the last place are left out, but for those that are kept, and the text stands
    after these. Raises IllegalFact if there is no such range."""
    messages, places = run.messages, _places(run)
    if event.first not in places or event.through not in places:
        raise IllegalFact(f"there are no messages from {event.first} through {event.through}")
    first, last, kept = places.index(event.first), places.index(event.through), set(event.kept)
    if last < first:
        raise IllegalFact(f"{event.through} is before {event.first}")
    shown = [*range(first), *(index for index in range(first, last) if places[index] in kept)]
    after = range(last + 1, len(messages))
    text = UserMessage(contents=(TextPart(text=event.text),))
    items = [*(messages[index] for index in shown), text, *(messages[index] for index in after)]
    new_places = [*(places[index] for index in shown), event.id, *(places[index] for index in after)]
    left = [index for index in range(first, last + 1) if index == last or places[index] not in kept]
    revealed = dict.fromkeys((*run.context.revealed, *(name for index in left for name in names_in(messages[index]))))
    context = replace(
        run.context,
        freed=0,
        overflow=None,
        is_relieved=run.context.is_relieved or run.context.overflow is not None,
        summarising="",
        has_dropped=True,
        summaries=(run.context.summaries & set(new_places)) | {event.id},
        revealed=tuple(revealed),
    )
    return Changes(messages=History(items, new_places), context=context, counted=None)
