"""Find the parts of a request that an endpoint's refusal names, each with a form that it may accept.

`refused_parts` looks for one kind of part after the other, from the most certain: thinking, tools, fields at a path,
images and documents, fields in a sentence. A part counts only if it is in the very request that was refused, so that a
name in an error can never bring anything into a log. A refusal that names no part stays an error.

Change together: a kind of part with `Adaptation`; `REQUIRED_FIELDS` with `without_fields`, by which each codec writes
the fields that are left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.messages.adaptations import ANY_THINKING, Adaptation, names_in
from perstack.core.runs.context_window import OVERFLOW
from perstack.errors import ProviderError
from perstack.http_providers.adapted_messages import thoughts_of
from perstack.http_providers.errors import with_message
from perstack.http_providers.media_refusals import named_media
from perstack.http_providers.messages import FIELD_GROUPS, MARKS, REQUIRED_FIELDS
from perstack.http_providers.refused_places import (
    Place,
    is_named,
    name_parts,
    named_places,
    parsed_body,
    places_in,
    values_along,
    without_addresses,
    without_echoes,
    words_of,
)
from perstack.ports.provider import GenerationRequest

FindFields = Callable[[ProviderError, JsonObject], Sequence[Adaptation]]


def refused_parts(request: GenerationRequest, error: ProviderError, find_fields: FindFields) -> Sequence[Adaptation]:
    """Return the parts of `request` that a refusal names, in plainer forms; none if it names nothing known."""
    body = parsed_body(error.refused_body)
    if not body:
        return ()
    error = with_message(error, without_echoes(without_addresses(error.message), body))
    if error.name == OVERFLOW:
        return named_media(request, error, body)  # compaction shortens the request, but cannot make an image smaller
    words = words_of(error)
    places = named_places(words, body)
    return (
        _refused_thinking(request, words, places, body)
        or _refused_tools(request, words, places, body)
        or _refused_provider_tools(request, words, places, body)
        or fields_at(places, body)
        or named_media(request, error, body)
        or find_fields(error, body)
    )


# Thinking.

_THINKING = re.compile(
    r"thought[_ ]?signature|signature`? in `?(?:redacted_)?thinking|thinking`? blocks?\b|redacted_?thinking"
    r"|thinking\.signature|encrypted[_ ]content|reasoning_?content\.|reasoning ?content (?:block|field)"
    r"|of type '?reasoning|required '?reasoning'? item|reasoningText",
    re.IGNORECASE,
)
_ASKED_FOR = (
    (re.compile(r"expected `?thinking", re.IGNORECASE), "thinking"),
    (re.compile(r"encrypted[_ ]content is not supported", re.IGNORECASE), "include"),
)
"""Refusals of thinking for which its field must go as well: thinking is asked for, and the history cannot have it."""
_MISSING_MARK = re.compile(r"missing (?:a |the )?`?thought_?signature", re.IGNORECASE)
_MAX_THINKING_REFUSALS = 2  # as many changes of the key within one Run are plausible
_BLOCKS_OF_THINKING = frozenset(("thinking", "redacted_thinking", "reasoning"))


def _refused_thinking(
    request: GenerationRequest, words: str, places: Iterable[Place], body: JsonObject
) -> tuple[Adaptation, ...]:
    """Return the adaptation that leaves out all thinking of earlier replies, if some of it is refused.

    Signatures and encrypted reasoning hold for one model, key or account, so if one is refused, all may be. An endpoint
    that refuses thinking repeatedly accepts none, not even its own. A format that then expects thinking gets none.
    """
    fields = [name for pattern, name in _ASKED_FOR if pattern.search(words) and name in body]
    is_meant = fields or _THINKING.search(words) or any(_is_of_thinking(place, body) for place in places)
    if not is_meant:
        return ()
    thoughts = thoughts_of(request.messages, request.adaptations)
    has_thoughts = bool(thoughts) or _MISSING_MARK.search(words) is not None
    refusals = sum(bool(item.thoughts) for item in request.adaptations)
    omitted = Adaptation(part="thinking", form="omitted", thoughts=thoughts)
    if refusals >= _MAX_THINKING_REFUSALS:
        omitted = Adaptation(part="thinking", form="omitted", name=ANY_THINKING)
    without = (Adaptation(part="field", form="omitted", name=name) for name in fields)
    return (*([omitted] if has_thoughts else []), *without)


def _is_of_thinking(place: Place, body: JsonObject) -> bool:
    """Return True for a block of thinking; not for the field of that name, which asks for it."""
    if place[0] not in ("messages", "input", "contents"):
        return False
    blocks = (value for value in values_along(body, place) if isinstance(value, dict))
    return any(
        block.get("type") in _BLOCKS_OF_THINKING or block.keys() & {"reasoningContent", "thoughtSignature"}
        for block in blocks
    )


# Tools.


def _refused_tools(
    request: GenerationRequest, words: str, places: Sequence[Place], body: JsonObject
) -> tuple[Adaptation, ...]:
    """Return adaptations of the named tools: to the plain schema, or to no tool if the plain schema was refused."""
    names = _own_names(request, body)
    refused_names = dict.fromkeys(name for place in places if (name := _tool_at(place, body)) in names)
    is_of_messages = any(place[0] in ("messages", "input", "contents") for place in places)
    if not refused_names and not is_of_messages and _OF_TOOLS.search(words):
        refused_names = dict.fromkeys(name for name in names if name not in body and _is_tool_named(name, words))
    plain_names = names_in(request.adaptations, "tool", "plain")
    own_names = [names[name] for name in refused_names if name is not None]
    is_plain_refused = any(name in plain_names for name in own_names)
    return tuple(
        Adaptation(part="tool", form="omitted" if is_plain_refused else "plain", name=name) for name in own_names
    )


def _refused_provider_tools(
    request: GenerationRequest, words: str, places: Iterable[Place], body: JsonObject
) -> tuple[Adaptation, ...]:
    """Return the tools that the provider runs itself and that a refusal names; a codec lists them last."""
    wire_tools = body.get("tools")
    tools = request.provider_tools
    if not tools or not isinstance(wire_tools, list) or len(wire_tools) < len(tools):
        return ()
    start = len(wire_tools) - len(tools)
    refused_indexes = {place[1] for place in places if place[0] == "tools" and len(place) > 1}
    is_of_messages = any(place[0] in ("messages", "input", "contents") for place in places)
    refused_tools = [tool for index, tool in enumerate(tools, start) if index in refused_indexes]
    if not refused_tools and not is_of_messages:
        refused_tools = [
            tool for tool, entry in zip(tools, wire_tools[start:], strict=True) if _is_provider_tool(entry, words)
        ]
    return tuple(Adaptation(part="providerTool", form="omitted", name=tool.name) for tool in refused_tools)


def _is_provider_tool(entry: JsonValue, words: str) -> bool:
    """Return whether the text has the name, type or key of a listed tool, with or without its version."""
    if not isinstance(entry, dict):
        return False
    names = [name for key in ("type", "name") if isinstance(name := entry.get(key), str)] or [*entry]
    parts = ([part for part in name_parts(name) if not part.isdecimal()] for name in names)
    return any(
        len(name_words) > 1 and re.search(rf"(?<!\w){'[_ ]?'.join(name_words)}", words, re.IGNORECASE)
        for name_words in parts
    )


_OF_TOOLS = re.compile(r"tool|function|schema|declaration|parameters", re.IGNORECASE)


def _own_names(request: GenerationRequest, body: JsonObject) -> dict[str | None, str]:
    """Return the tools' names by the names in the body, which keeps their order."""
    wire_names = [name for name in map(_tool_name, _tools_of(body)) if name is not None]
    spec_names = [spec.name for spec in request.tools]
    if len(wire_names) >= len(spec_names):  # tools that the provider runs follow
        return dict(zip(wire_names, spec_names, strict=False))
    return {name: name for name in wire_names if name in spec_names}


def _tools_of(body: JsonObject) -> Iterator[JsonValue]:
    config = body.get("toolConfig")
    groups = (body.get("tools"), config.get("tools") if isinstance(config, dict) else None)
    for tool in (tool for group in groups if isinstance(group, list) for tool in group):
        declarations = tool.get("functionDeclarations") if isinstance(tool, dict) else None
        yield from declarations if isinstance(declarations, list) else (tool,)


def _tool_name(tool: JsonValue) -> str | None:
    if not isinstance(tool, dict):
        return None
    inner = next((value for key in ("function", "toolSpec") if isinstance(value := tool.get(key), dict)), tool)
    name = inner.get("name")
    return name if isinstance(name, str) else None


def _tool_at(place: Place, body: JsonObject) -> str | None:
    if place[0] not in ("tools", "toolConfig"):
        return None
    return next((name for value in values_along(body, place) if (name := _tool_name(value)) is not None), None)


def _is_tool_named(name: str | None, words: str) -> bool:
    word = re.escape(name or "")
    quoted = rf"[\"'`“‘«]{word}[\"'`”’»]"
    return re.search(rf"{quoted}|\b(?:tool|function)s?(?: name)?:? {word}(?![\w-])", words) is not None


# Fields.


def fields_at(places: Iterable[Place], body: JsonObject) -> tuple[Adaptation, ...]:
    """Return the optional fields at these places; in a group of fields, the inner field."""
    names = (name for place in places if (name := _field_at(place, body)) is not None)
    return tuple(Adaptation(part="field", form="omitted", name=name) for name in dict.fromkeys(names))


def _field_at(place: Place, body: JsonObject) -> str | None:
    mark = next((str(step) for step in place if step in MARKS), None)
    if mark is not None:
        return mark
    first, *rest = place
    if first in FIELD_GROUPS and rest:
        return None if rest[0] in REQUIRED_FIELDS else f"{first}.{rest[0]}"
    return None if first in REQUIRED_FIELDS or first in FIELD_GROUPS else str(first)


def refused_fields(error: ProviderError, body: JsonObject, required: frozenset[str]) -> tuple[Adaptation, ...]:
    """Return the optional fields that a refusal names."""
    named = named_fields(error, optional_fields(body, required))
    return tuple(Adaptation(part="field", form="omitted", name=name) for name in named)


Spellings = Mapping[str, Sequence[str]]  # names by which a field may be refused, by its name in the request


def named_fields(error: ProviderError, *groups: Spellings) -> list[str]:
    """Return the fields that the answer, or else the message, of a refusal names; those of the first group with any."""
    for words in (places_in(error.answer), error.message):
        for fields in groups:
            named = [
                name for name, spellings in fields.items() if any(is_named(spelling, words) for spelling in spellings)
            ]
            if named:
                return named
    return []


def optional_fields(body: JsonObject, required: frozenset[str] = frozenset()) -> Spellings:
    """Return the fields of the request that may be left out, with their spellings."""
    fields: dict[str, list[str]] = {}
    for name, value in body.items():
        if name in FIELD_GROUPS and isinstance(value, dict):
            inner = {f"{name}.{field}": [field, *_names_below(nested)] for field, nested in value.items()}
            fields |= {field: spellings for field, spellings in inner.items() if spellings[0] not in REQUIRED_FIELDS}
        elif name not in REQUIRED_FIELDS:
            fields[name] = [name, *_names_below(value)]
    fields |= {mark: [mark] for mark in MARKS if _has_key(body, mark)}
    return {name: spellings for name, spellings in fields.items() if name not in required}


def _names_below(value: JsonValue) -> list[str]:
    """Return the names in a field that consist of several words; a single word may mean anything."""
    if isinstance(value, list):
        names = [name.rpartition(".")[2] for name in value if isinstance(name, str)]
    else:
        names = list(value) if isinstance(value, dict) else []
    return [name for name in names if "_" in name or not name.islower()]


def _has_key(value: JsonValue, name: str) -> bool:
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if name in value:
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False
