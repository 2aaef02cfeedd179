"""Tool `recallHistory`: a bounded search over a Run's logs for texts as the model saw them, with their steps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import Subject, ToolSpec
from perstack.core.messages.messages import text_of
from perstack.core.runs.context_window import RECALL_TOOL
from perstack.core.runs.events import StoredEvent
from perstack.core.runs.events.generations import FinishGeneration
from perstack.core.runs.events.lifecycle import RejectResult
from perstack.core.runs.events.tool_calls import FinishToolCall
from perstack.core.runs.start import StartRun
from perstack.dataclass import dataclass

MAX_ENTRIES = 10
MAX_ANSWER_CHARS = 6_000  # maximum characters of one answer, over all of its entries
_EXCERPT_CHARS = 600
_MAX_QUERY_CHARS = 500


@cache
def recall_spec() -> ToolSpec:
    """Return the tool as it is offered to a model."""
    return ToolSpec(
        name=RECALL_TOOL,
        description="Search and read what you have seen and done earlier and are not shown any more: queries, your"
        " replies, calls and their results. Give words to look for, or a step to read, or both; `tool` narrows it to"
        " one tool.",
        input_schema={
            "type": "object",
            "properties": {
                "text": {
                    "type": "string",
                    "maxLength": _MAX_QUERY_CHARS,
                    "description": "words that must all stand in what is found, in any case of letters",
                },
                "tool": {"type": "string", "description": "only calls of this tool and their results"},
                "step": {"type": "integer", "minimum": 0, "description": "only this step, and its texts at length"},
                "offset": {"type": "integer", "minimum": 0, "description": "skip so many of what was found"},
            },
        },
        skill_name=RECALL_TOOL,
        effect="readOnly",
        subject=Subject(is_nothing=True),
    )


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """The conditions of a search."""

    words: tuple[str, ...] = ()
    tool: str | None = None
    step: int | None = None
    offset: int = 0

    @classmethod
    def of(cls, args: JsonObject) -> RecallQuery:
        """Return the conditions in a call's arguments, which must fit the tool's schema."""
        text, tool, step, offset = (args.get(name) for name in ("text", "tool", "step", "offset"))
        return cls(
            tuple(str(text).casefold().split()) if text else (),
            str(tool) if tool else None,
            step if isinstance(step, int) else None,
            offset if isinstance(offset, int) else 0,
        )

    def may_match(self, line: bytes) -> bool:
        """Return False if an event's line cannot match. Words that JSON would escape are not looked for."""
        if not line.startswith(_KINDS):
            return False
        plain_words = [word.encode() for word in self.words if re.fullmatch(_PLAIN, word)]
        lower_line = line.lower() if plain_words else b""
        return all(word in lower_line for word in plain_words)


_KINDS = tuple(
    f'{{"type":"{kind.model_fields["type"].default}"'.encode()
    for kind in (StartRun, FinishGeneration, FinishToolCall, RejectResult)
)
_PLAIN = r"[a-z0-9_.:-]+"


@dataclass(frozen=True, slots=True)
class Entry:
    """One text that the model has seen."""

    run_id: str
    step: int
    what: str
    text: str


def entries_of(event: StoredEvent, query: RecallQuery) -> Iterator[Entry]:
    """Yield the matching texts of an event."""
    if query.step is not None and event.step_number != query.step:
        return
    for tool, label, text in _labelled_texts(event):
        if query.tool is not None and tool != query.tool:
            continue
        text_casefolded = text.casefold()
        if text and tool != RECALL_TOOL and all(word in text_casefolded for word in query.words):
            yield Entry(event.run_id, event.step_number, label, text)


def _labelled_texts(event: StoredEvent) -> Iterator[tuple[str, str, str]]:
    match event:
        case StartRun():
            yield "", "query", event.query
        case RejectResult():
            yield "", "query", event.text
        case FinishGeneration():
            yield "", "your reply", event.message.text
            for tool_call_part in event.message.tool_calls:
                args = (
                    tool_call_part.raw_args
                    if tool_call_part.raw_args is not None
                    else json.dumps(tool_call_part.args, ensure_ascii=False)
                )
                yield tool_call_part.tool_name, f"your call of {tool_call_part.tool_name}", args
            for part in event.message.provider_tools:
                yield part.tool_name, f"your use of {part.tool_name}", part.shown
        case FinishToolCall():
            result_kind = "error" if event.is_error else "result"
            yield event.tool_name, f"{result_kind} of {event.tool_name}", text_of(event.shown_contents)
        case _:
            return


def format_answer(entries: Iterable[Entry], query: RecallQuery, run_id: str) -> str:
    """Return the answer that the model sees: the entries in order, each shortened so that all fit."""
    all_entries = list(entries)
    page = all_entries[query.offset : query.offset + MAX_ENTRIES]
    max_chars = MAX_ANSWER_CHARS // max(1, len(page)) if query.step is not None else _EXCERPT_CHARS
    items: list[JsonValue] = []
    for entry in page:
        item: JsonObject = {
            "step": entry.step,
            "what": entry.what,
            "text": _excerpt(entry.text, query.words, max_chars),
        }
        if entry.run_id != run_id:
            item["run"] = entry.run_id
        items.append(item)
    answer: JsonObject = {"found": items}
    remaining = len(all_entries) - query.offset - len(page)
    if remaining > 0:
        answer["more"] = f"{remaining} more: give offset {query.offset + len(page)}, or other words"
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def _excerpt(text: str, words: tuple[str, ...], max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    position = text.casefold().find(words[0]) if words else 0
    begin = max(0, min(position - max_chars // 3, len(text) - max_chars))
    return f"{'… ' if begin else ''}{text[begin : begin + max_chars]}{' …' if begin + max_chars < len(text) else ''}"
