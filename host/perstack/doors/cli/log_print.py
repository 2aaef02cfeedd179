"""Which events of a Job are wanted, found without parsing those that are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, get_args

from perstack.core.events import CallDelegate, StoredEvent
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.frontends.shared.log_entries import Entry, is_delegate, parse_line

_T = TypeVar("_T")

_TOOL_CALL_ID = re.compile(rb'"toolCallId":"([^"\\]*)"')
_STEPS = re.compile(r"(?P<sign>>=|<=|>|<|)(?P<first>\d+)(?:-(?P<last>\d+))?")

TYPES: tuple[str, ...] = tuple(kind.model_fields["type"].default for kind in get_args(StoredEvent))
"""Every kind of event that a log may have."""

TOOL_TYPES = frozenset(
    {
        "callTools",
        "finishToolCall",
        "attemptCompletion",
        "callInteractiveTool",
        "requestApproval",
        "decideApproval",
        "startToolCall",
        "startSample",
    }
)
ERROR_TYPES = frozenset({"errorRun", "retry"})
DELEGATION_TYPES = frozenset({"callDelegate", "stopRunByDelegate"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `perstack log` was asked for. Kinds add up; steps narrow them."""

    types: frozenset[str] = frozenset()
    errors: bool = False
    tools: bool = False
    delegations: bool = False
    steps: Callable[[int], bool] | None = None

    @property
    def any_kind(self) -> bool:
        """Whether no kind of event was named."""
        return not (self.types or self.errors or self.tools or self.delegations)


def select(entries: Sequence[Entry], wanted: Wanted) -> list[Entry]:
    """Those that were asked for."""
    found = entries
    if wanted.steps is not None:
        found = [entry for entry in found if wanted.steps(entry.step)]
    if wanted.any_kind:
        return list(found)
    delegated = _delegated_calls(entries) if wanted.delegations else frozenset[tuple[str, bytes]]()
    return [entry for entry in found if _is_wanted(entry, wanted, delegated)]


def newest(items: Sequence[_T], take: int, offset: int) -> list[_T]:
    """The last `take` (0: all) before the last `offset`."""
    end = max(0, len(items) - offset)
    return list(items[max(0, end - take) if take else 0 : end])


def parse_types(texts: Iterable[str]) -> frozenset[str]:
    """The kinds named, separated by commas. Raises UsageError for one that does not exist."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TYPES:
            raise UsageError(f"--type {name}: no such event; there are: {', '.join(TYPES)}")
    return frozenset(names)


def parse_steps(text: str | None) -> Callable[[int], bool] | None:
    """`5`, `>5`, `<5`, `>=5`, `<=5` or `1-10` as a test. Raises UsageError."""
    if text is None:
        return None
    found = _STEPS.fullmatch(text.replace(" ", ""))
    if found is None or (found["sign"] and found["last"]):
        raise UsageError(f'--step {text}: write it as 5, ">5", "<5", ">=5", "<=5" or 1-10')
    first = int(found["first"])
    match found["sign"]:
        case ">":
            return lambda step: step > first
        case ">=":
            return lambda step: step >= first
        case "<":
            return lambda step: step < first
        case "<=":
            return lambda step: step <= first
        case _:
            last = int(found["last"] or first)
            return lambda step: first <= step <= last


def _is_wanted(entry: Entry, wanted: Wanted, delegated: frozenset[tuple[str, bytes]]) -> bool:
    kind = entry.type
    return (
        kind in wanted.types
        or (wanted.tools and kind in TOOL_TYPES)
        or (wanted.errors and _is_error(entry))
        or (wanted.delegations and _is_delegation(entry, delegated))
    )


def _is_error(entry: Entry) -> bool:
    # in a text the quotes would be escaped, so this is the event's own key
    failed = entry.type == "finishToolCall" and b'"isError":true' in entry.line
    return failed or entry.type in ERROR_TYPES or lacks_skills(entry)


def lacks_skills(entry: Entry) -> bool:
    """Whether it tells of skills that cannot be reached."""
    return entry.type == "startGeneration" and b'"unreachable":{' in entry.line


def _is_delegation(entry: Entry, delegated: frozenset[tuple[str, bytes]]) -> bool:
    if entry.type in DELEGATION_TYPES:
        return True
    if entry.type in ("startRun", "finishRun", "errorRun"):
        return is_delegate(entry.log)
    if entry.type != "finishToolCall":
        return False
    found = _TOOL_CALL_ID.search(entry.line)
    return found is not None and (entry.log.run_id, found[1]) in delegated


def _delegated_calls(entries: Iterable[Entry]) -> frozenset[tuple[str, bytes]]:
    """The calls that delegates answer, for a failed one's result looks like any tool's."""
    return frozenset(
        (event.run_id, delegation.tool_call_id.encode())
        for entry in entries
        if entry.type == "callDelegate"
        for event in [_delegations(entry)]
        if event is not None
        for delegation in event.delegates
    )


def _delegations(entry: Entry) -> CallDelegate | None:
    try:
        event = parse_line(entry.line)
    except ValueError:
        return None
    return event if isinstance(event, CallDelegate) else None
