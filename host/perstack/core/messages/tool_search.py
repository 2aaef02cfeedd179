"""Choose which tools a model sees at once. It finds the others by a search; the messages show which it has found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from perstack.core.base.records import JsonObject
from perstack.core.definitions.settings import ToolSearch
from perstack.core.definitions.skills import Subject, ToolSpec
from perstack.core.messages.messages import ExpertMessage, History, ToolMessage, ToolResultPart, text_of
from perstack.dataclass import dataclass

SEARCH_TOOL = "searchTools"

# tokens that the tools of all skills except the base skill may cost before some are deferred
AUTO_BUDGET_TOKENS = 10_000

DEFAULT_RESULTS = 5
_MAX_LISTED_NAMES = 60
_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+"


def tokens_of(spec: ToolSpec) -> int:
    """Return the estimated tokens that a tool costs at every step: one for four characters of its JSON."""
    tool = {"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema}
    return len(json.dumps(tool, ensure_ascii=False, separators=(",", ":"))) // 4 + 1


@dataclass(frozen=True, slots=True)
class Deferral:
    """The division of a Run's tools into shown and deferred ones."""

    shown: tuple[ToolSpec, ...]
    deferred: tuple[ToolSpec, ...] = ()


def divide(specs: Iterable[tuple[ToolSpec, bool]], choice: ToolSearch) -> Deferral:
    """Divide tools into shown and deferred ones. Each tool comes with True if it may be deferred."""
    shown: list[ToolSpec] = []
    deferred: list[ToolSpec] = []
    remaining = AUTO_BUDGET_TOKENS if choice == "auto" else 0
    for spec, may_wait in specs:
        cost = tokens_of(spec) if may_wait and choice == "auto" else 0
        if may_wait and choice != "off" and (choice == "on" or cost > remaining):
            deferred.append(spec)
        else:
            remaining -= cost
            shown.append(spec)
    if not deferred:
        return Deferral(tuple(shown))
    return Deferral((*shown, search_spec(deferred)), tuple(deferred))


def search_spec(deferred: Sequence[ToolSpec]) -> ToolSpec:
    """Return the tool that finds the deferred tools."""
    counts: dict[str, int] = {}
    for spec in deferred:
        counts[spec.skill_name] = counts.get(spec.skill_name, 0) + 1
    skills = ", ".join(f"{name} ({number})" for name, number in counts.items())
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "words for what the tool does, or names of tools"},
            "most": {"type": "integer", "minimum": 1, "maximum": 20, "description": f"{DEFAULT_RESULTS} if not given"},
        },
        "required": ["query"],
    }
    return ToolSpec(
        name=SEARCH_TOOL,
        description=f"Find tools that are not shown, and be given them. There are {len(deferred)}, of these skills:"
        f" {skills}. Search before you say that something cannot be done; what is found can be called after that.",
        input_schema=schema,
        skill_name=SEARCH_TOOL,
        effect="readOnly",
        subject=Subject(is_nothing=True),
    )


def search(query: str, deferred: Sequence[ToolSpec], limit: int = DEFAULT_RESULTS) -> list[ToolSpec]:
    """Return the best matches, at most `limit`; tools named in the query come first."""
    names = set(re.findall(r"[\w-]+", query))
    words = _split_words(query)
    scored = [(_score(spec, words, names), -index, spec) for index, spec in enumerate(deferred)]
    scored.sort(key=lambda item: item[:2], reverse=True)
    return [spec for score, _, spec in scored[:limit] if score > 0]


def result_text(matches: Sequence[ToolSpec], deferred: Sequence[ToolSpec]) -> str:
    """Return the text for the model: the tools found, or the available names if none was found."""
    if matches:
        tools = [
            {"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema} for spec in matches
        ]
        return json.dumps({"tools": tools}, ensure_ascii=False)
    names = [spec.name for spec in deferred[:_MAX_LISTED_NAMES]]
    return json.dumps(
        {"tools": [], "names": names, "more": max(0, len(deferred) - _MAX_LISTED_NAMES)}, ensure_ascii=False
    )


class RevealedTools:
    """The deferred tools that messages have found or called so far, in the order of their first mention."""

    def __init__(self, deferred: Sequence[ToolSpec], earlier: Iterable[str] = ()) -> None:
        """Start with `earlier`: names from messages that a compaction has left out since."""
        self._deferred = {spec.name: spec for spec in deferred}
        self._revealed = {name: self._deferred[name] for name in earlier if name in self._deferred}
        self._latest = History()
        self._read = 0

    def tools_found_in(self, messages: History) -> tuple[ToolSpec, ...]:
        """Return the deferred tools that `messages` found by a search or called; only new messages are read."""
        if not messages.continues(self._latest):
            self._read = 0
        self._latest = messages
        for message in messages[self._read :]:
            for name in names_in(message):
                spec = self._deferred.get(name)
                if spec is not None:
                    self._revealed.setdefault(name, spec)
        self._read = len(messages)
        return tuple(self._revealed.values())


def names_in(message: object) -> Iterable[str]:
    """Return the names of the tools that a message calls, or contains as results of a search."""
    if isinstance(message, ExpertMessage):
        return [tool_call_part.tool_name for tool_call_part in message.tool_calls]
    if isinstance(message, ToolMessage):
        return [name for part in message.contents if part.tool_name == SEARCH_TOOL for name in _tools_in_result(part)]
    return ()


def _tools_in_result(part: ToolResultPart) -> list[str]:
    try:
        result: object = json.loads(text_of(part.contents))
    except ValueError:
        return []
    tools = result.get("tools") if isinstance(result, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return [str(tool["name"]) for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _score(spec: ToolSpec, words: set[str], names: set[str]) -> float:
    if spec.name in names:
        return 100
    name, skill, description = _split_words(spec.name), _split_words(spec.skill_name), _split_words(spec.description)
    return sum(4 * (word in name) + 2 * (word in skill) + (word in description) for word in words) + sum(
        0.5 for word in words if len(word) > 3 and any(other.startswith(word[:4]) for other in name | description)
    )


def _split_words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(_WORD, text)}
