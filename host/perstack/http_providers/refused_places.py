"""Find the places of a request that an endpoint's refusal names, by following paths in the body that was sent.

Endpoints name a place by a path (`tools.3.custom.input_schema`, `messages[2].content[0]`, Google's
`GenerateContentRequest.tools[0].function_declarations[3]`, Bedrock's `toolConfig.tools.3.member.toolSpec`), by a field
of their answer (`param`, `loc`), or by a quoted name. A path is followed in the request itself, so nothing here knows
how a codec arranges it, and a path that the request does not have counts as no place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import cast

from pydantic import JsonValue

from perstack.errors import ProviderError

Place = tuple[str | int, ...]  # keys and indexes from the root of a body

_MAX_PATHS = 200  # paths of one refusal that are followed: pydantic's servers list every field that is wrong
_PATH = re.compile(r"(?<![\w/.-])[A-Za-z_]\w*(?:\.\w+|\.?\[['\"]?\w+['\"]?\])+")
_STEP = re.compile(r"\w+")
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_NAMED = re.compile(r'"(?:param|code|field)"\s*:\s*"([^"]{1,200})"|["\']loc["\']\s*:\s*[\[(]([^\])]{1,300})[\])]')
_MAX_INDEX_DIGITS = 9
_ECHO_WORDS = 4  # words in a row that the conversation contains too, so that the answer quotes it
_MAX_ECHO_SEARCH_CHARS = 2_000_000


def places_in(answer: str) -> str:
    """Return the places that an answer names in separate fields: `param`, `loc` of pydantic's errors."""
    places = (match[1] or ".".join(_STEP.findall(match[2])) for match in _NAMED.finditer(answer))
    return "\n".join(f"param: {place}" for place in places)


def words_of(error: ProviderError) -> str:
    """Return the text of a refusal: its message, and the places that the answer names."""
    return f"{error.message}\n{places_in(error.answer)}"


def without_addresses(words: str) -> str:
    """Return the text without URLs, whose paths name nothing of the request."""
    return _ADDRESS.sub(" ", words)


def without_echoes(words: str, body: Mapping[str, JsonValue]) -> str:
    """Return the text without its quotations from the conversation, in which a person or a tool may write anything.

    A text that consists of quotations alone stays: the conversation has quoted that very error before.
    """
    matches = list(re.finditer(r"\S+", words))
    conversation = _conversation_text(body)
    quoted_indexes: set[int] = set()
    for start in range(len(matches) - _ECHO_WORDS + 1):
        window = range(start, start + _ECHO_WORDS)
        if words[matches[start].start() : matches[window[-1]].end()] in conversation:
            quoted_indexes.update(window)
    if not quoted_indexes or len(quoted_indexes) == len(matches):
        return words
    return " ".join(word[0] for index, word in enumerate(matches) if index not in quoted_indexes)


def _conversation_text(body: Mapping[str, JsonValue]) -> str:
    """Return the texts of the conversation, latest first, within a limit of size; base64 data are left out."""
    texts: list[str] = []
    size = 0
    for text in _strings_below([body.get(name) for name in ("contents", "input", "messages")]):
        if " " in text:
            texts.append(text)
            size += len(text)
        if size > _MAX_ECHO_SEARCH_CHARS:
            break
    return "\n".join(texts)


def _strings_below(value: JsonValue) -> Iterator[str]:
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()


def parsed_body(body: bytes) -> dict[str, JsonValue]:
    """Return a request's body as an object; empty for anything else."""
    try:
        document: JsonValue = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def named_places(words: str, body: Mapping[str, JsonValue]) -> list[Place]:
    """Return the places of the body that paths in the text lead to, each as far as the body has it."""
    places: dict[Place, None] = {}
    for index, match in enumerate(_PATH.finditer(words)):
        if index == _MAX_PATHS:
            break
        place = _follow(body, _STEP.findall(match[0]))
        if place:
            places[place] = None
    return list(places)


def values_along(body: Mapping[str, JsonValue], place: Place) -> Iterator[JsonValue]:
    """Yield the value at each step of a place, from the outermost to the innermost."""
    value = cast("JsonValue", body)
    for step in place:
        if isinstance(value, list) and isinstance(step, int):
            value = value[step]
        elif isinstance(value, dict):
            value = value[str(step)]
        yield value


def _follow(body: Mapping[str, JsonValue], steps: list[str]) -> Place:
    """Follow a path as far as it goes; empty if it leads nowhere.

    Vendors name a block's type between its field and its index. AWS counts from 1 in paths with `member`.
    """
    place: list[str | int] = []
    value = cast("JsonValue", body)
    first = 1 if "member" in steps else 0
    for step in steps:
        key = _key_of(value, step, first)
        if key == _OUTSIDE:
            return ()
        if key is not None:
            place.append(key)
            *_, value = values_along(body, tuple(place))
    return tuple(place)


_OUTSIDE = -1


def _key_of(value: JsonValue, step: str, first: int) -> str | int | None:
    """Return the key or index that a step names; None if the value has none, `_OUTSIDE` for an item that is missing."""
    if isinstance(value, list) and step.isdecimal():
        index = int(step[:_MAX_INDEX_DIGITS]) - first
        return index if 0 <= index < len(value) else _OUTSIDE
    return key_in(value, step) if isinstance(value, dict) else None


def key_in(value: Mapping[str, JsonValue], step: str) -> str | None:
    """Return the key of an object that a step names, in the body's spelling, which Google's messages do not use."""
    plain_key = _normalize(step)
    return next((key for key in value if _normalize(key) == plain_key), None)


def _normalize(name: str) -> str:
    return name.replace("_", "").lower()


# Names in a sentence.

_REFUSED = (
    r"(?:un(?:supported|recogni[sz]ed|known|expected)|not (?:\w+ )?(?:supported?|allowed|permitted|recogni[sz]ed)"
    r"|(?:does|do) ?n[o']t support|invalid|extra|forbidden)"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def name_parts(name: str) -> list[str]:
    """Return the words of a field's name, in whichever way they are joined."""
    return [part.lower() for part in _HUMP.sub("_", name).split("_")]


def is_named(name: str, words: str) -> bool:
    """Return whether the text names the field. A single word counts only where a field can stand."""
    parts = name_parts(name)
    if len(parts) > 1:
        spellings = {name, "_".join(parts), " ".join(parts)}
        return any(re.search(rf"(?<!\w){re.escape(spelling)}(?!\w)", words, re.I) for spelling in spellings)
    word = re.escape(name)
    places = (
        rf"[\"'`“‘«]{word}(?:[.\[][^\"'`]*)?[\"'`”’»]",
        rf"(?<![\w.]){word}(?:[.\[]\S*)?:? (?:\w+ ){{0,3}}{_REFUSED}",
        rf"{_REFUSED}[^.\n]{{0,40}}?(?<![\w.]){word}(?!\w)",
        rf"(?:body|params?)[.:>\s\"',\[\]]+{word}(?!\w)",
        rf"\bmessages?[.\[]\S*\.{word}(?!\w)",
    )
    return any(re.search(place, words, re.I) for place in places)
