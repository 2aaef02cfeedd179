"""Rows of the log for people: the form that each event's `describe` returns, and texts that several events share."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from perstack.core.base.ids import By
from perstack.core.base.usage import Usage, cost_text
from perstack.core.messages.messages import ToolCallPart

# Kinds of items that a view may draw in place of a row. `place`: it only marks a position, such as a checkpoint.
RowItem = Literal[
    "query", "model", "thought", "text", "call", "result", "delegate", "question", "approval", "place", "end"
]


class LogRow(NamedTuple):
    """One row of the log for people."""

    word: str
    text: str
    colour: str = ""
    item: RowItem | None = None  # None: every view shows the row itself


class EventContext(NamedTuple):
    """The context that describing an event needs."""

    calls: Mapping[str, ToolCallPart]  # the calls of the reply that a `callTools` belongs to, by id
    minute: Callable[[int], str]  # text of a time in milliseconds since 1970, in the reader's time zone
    step_ms: int | None = None  # duration of the step that a `finishStep` ends, in milliseconds; None if unknown
    full: bool = False  # True if rows of little interest are included


_NUMBER = re.compile(r"-(\d+)\Z")


def run_label(expert_key: str, run_id: str) -> str:
    """Return `writer#2`: the Expert's key and the number of its Run in the Job."""
    number = _NUMBER.search(run_id)
    return f"{expert_key}#{number[1]}" if number else expert_key


def arguments(part: ToolCallPart | None) -> str:
    """Return a call's arguments as JSON, or as the model wrote them if they did not parse."""
    if part is None:
        return ""
    if part.raw_args is not None:
        return part.raw_args
    return json.dumps(part.args, ensure_ascii=False) if part.args else ""


def tokens(usage: Usage, unpriced_tokens: int | None = None) -> str:
    """Return `120 + 30 tokens`, input and output, with the cached and reasoning parts and the cost."""
    cached = f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
    reasoning = f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else ""
    price = cost_text(usage, usage.unpriced_tokens if unpriced_tokens is None else unpriced_tokens)
    text = f"{usage.input_tokens:,}{cached} + {usage.output_tokens:,}{reasoning} tokens"
    return f"{text}, {price}" if price else text


def author_rows(by: By | None) -> list[LogRow]:
    """Return the row that names who caused an event; empty if that is unknown."""
    return [] if by is None else [LogRow("by", str(by), "magenta")]
