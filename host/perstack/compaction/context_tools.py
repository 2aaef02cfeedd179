"""Tools for a model with a full context: `recallHistory` searches what was left out, `pin` keeps a note."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache

from perstack.compaction.recall import Entry, RecallQuery, entries_of, format_answer, recall_spec
from perstack.core.base.chain import open_line
from perstack.core.base.ids import place_of
from perstack.core.definitions.skills import Subject, ToolSpec
from perstack.core.runs.context_window import PIN_TOOL, policy_of
from perstack.core.runs.events import StartRun, StoredEvent
from perstack.core.runs.state import Run
from perstack.engine.log.event_log import read_intact
from perstack.engine.log.run_log import RunLogFormat
from perstack.engine.plugins.tool_catalogue import OfferedTool, builtin_tool
from perstack.ports.skill import ToolCall, ToolResult
from perstack.ports.storage import RunRef, Storage

_MAX_RUNS_SEARCHED = 50  # Runs, each continued from the one before, that one search reads at most
_MAX_NOTE_CHARACTERS = 2_000


@cache
def pin_spec() -> ToolSpec:
    return ToolSpec(
        name=PIN_TOOL,
        description="Keep a short note in view for as long as you work: a fact, a decision, a rule that you will need."
        " When the conversation grows too long, its older part is summarised; pinned notes stay as they are."
        " Pin little.",
        input_schema={
            "type": "object",
            "properties": {"note": {"type": "string", "minLength": 1, "maxLength": _MAX_NOTE_CHARACTERS}},
            "required": ["note"],
        },
        skill_name=PIN_TOOL,
        effect="readOnly",
        pin=True,
        subject=Subject(is_nothing=True),
    )


def context_tools(run: Run, storage: Storage) -> tuple[OfferedTool, ...]:
    """Return the tools that a Run needs for its context: `recallHistory` once something was left out, and `pin`."""
    context_policy, has_dropped = policy_of(run), run.context.has_dropped
    recall = (builtin_tool(recall_spec(), _RecallTool(storage, run).answer),) if has_dropped else ()
    offers_pin = context_policy is not None and (context_policy.offers_pin or has_dropped)
    return (*((builtin_tool(pin_spec(), _pin),) if offers_pin else ()), *recall)


async def _pin(tool_call: ToolCall) -> ToolResult:
    """Confirm a note. The call itself contains the note, and a turn with a pin is never left out."""
    return ToolResult.text('{"pinned":true}')


class _RecallTool:
    """The tool `recallHistory` of one Run: it searches the Run's log, and the Runs that this one continues."""

    def __init__(self, storage: Storage, run: Run) -> None:
        self._storage = storage
        self._ref = RunRef(run.start.job_id, run.id)

    async def answer(self, tool_call: ToolCall) -> ToolResult:
        query = RecallQuery.of(tool_call.args)
        all_entries: list[Entry] = []
        position: tuple[RunRef, int | None] | None = (self._ref, None)
        for _ in range(_MAX_RUNS_SEARCHED):
            if position is None:
                break
            entries, position = await self._search_run(*position, query)
            all_entries = entries + all_entries
        return ToolResult.text(format_answer(all_entries, query, self._ref.run_id))

    async def _search_run(
        self, ref: RunRef, limit: int | None, query: RecallQuery
    ) -> tuple[list[Entry], tuple[RunRef, int] | None]:
        lines, _ = await read_intact(self._storage, ref, 0, limit)
        positions = await asyncio.to_thread(_matching_positions, lines, query)
        definition = RunLogFormat(self._storage)
        entries: list[Entry] = []
        start: StoredEvent | None = None
        for position in positions:
            event = await definition.event(ref, position + 1, open_line(lines[position]))
            start = event if position == 0 else start
            entries += entries_of(event, query)
        base = start.continued_from if isinstance(start, StartRun) else None
        if base is None:
            return entries, None
        return entries, (RunRef(ref.job_id, base.run_id), place_of(base.checkpoint_id)[2])


def _matching_positions(lines: Sequence[bytes], query: RecallQuery) -> list[int]:
    """Return the positions of the first line, which says what the Run continues, and of lines that may match."""
    return [position for position, line in enumerate(lines) if position == 0 or query.may_match(line)]
