"""Find the parts of OpenAI's formats that a refusal names, in the vocabulary of `profiles`.

These are fields of earlier replies, the two names of the reply's limit, and forms of messages. Fields of the request
are found as for every other format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from perstack.core.base.records import JsonObject
from perstack.core.messages.adaptations import Adaptation
from perstack.errors import ProviderError
from perstack.http_providers.refusals import named_fields, optional_fields
from perstack.http_providers.refused_places import words_of

_REQUIRED_OF_MESSAGES = frozenset({"role", "content", "tool_calls", "tool_call_id", "id", "type", "function"})

_LIMITS = ("max_tokens", "max_completion_tokens")  # two names of one option: if one is refused, the other is sent

_ORDERS = (
    (re.compile(r"roles? must alternate|alternat\w* user|consecutive (?:user|messages)", re.I), "consecutive users"),
    (re.compile(r"role '?user'? after role '?tool", re.I), "user after tool"),
    (re.compile(r"call[_ ]id\b.{0,80}(?:length of 9|a-z, A-Z, 0-9)", re.I | re.S), "long call ids"),
)
_MISSING = re.compile(r"(?:missing|must (?:also )?be (?:passed|provided|sent)|required)", re.I)
_NO_TEXT = re.compile(r"string|null|none|required|missing|empty|blank|whitespace|at least 1|too[_ ]short", re.I)
_ABSENT = "<absent>"


def refused_fields(error: ProviderError, body: JsonObject) -> tuple[Adaptation, ...]:
    """Return the adaptations for the fields and forms, of the request or its messages, that a refusal names."""
    replies = _assistant_messages(body)
    missing = _missing_reasoning(replies, error.message)
    if missing:
        return missing
    inner = {
        f"messages.{name}": [name]
        for name in sorted({name for reply in replies for name in _optional_message_fields(reply)})
    }
    if named_by_error := named_fields(error, optional_fields(body), inner):
        return tuple(_adapted_field(name, body) for name in named_by_error)
    return tuple(Adaptation(part="field", form="plain", name=name) for name in _refused_forms(replies, words_of(error)))


def _missing_reasoning(replies: list[JsonObject], error_text: str) -> tuple[Adaptation, ...]:
    """Return the adaptation for a refusal because an earlier reply is sent without its reasoning."""
    match = re.search(r"\breasoning(?:_content)?\b", error_text) if _MISSING.search(error_text) else None
    if match is None or all(match[0] in reply for reply in replies):
        return ()
    return (Adaptation(part="field", form="replaced", name=f"messages.{match[0]}"),)


def _adapted_field(name: str, body: JsonObject) -> Adaptation:
    other = next((limit for limit in _LIMITS if limit != name), "") if name in _LIMITS else ""
    return Adaptation(part="field", form="plain" if other and other not in body else "omitted", name=name)


def _optional_message_fields(message: JsonObject) -> Iterator[str]:
    yield from (name for name in message if name not in _REQUIRED_OF_MESSAGES)
    for call in _object_items(message, "tool_calls"):
        yield from (name for name in call if name not in _REQUIRED_OF_MESSAGES)


def _refused_forms(replies: list[JsonObject], error_text: str) -> list[str]:
    """Return the forms that the replies have and the error text names; an error about content may mean two forms."""
    forms_in_error = [form for pattern, form in _ORDERS if pattern.search(error_text)]
    if "content" not in error_text:
        return forms_in_error
    contents = [reply.get("content", _ABSENT) for reply in replies]
    if _NO_TEXT.search(error_text):
        forms = ((None, "null content"), ("", "empty content"), (_ABSENT, "absent content"))
        forms_in_error += [form for content, form in forms if content in contents]
    return forms_in_error


def _assistant_messages(body: JsonObject) -> list[JsonObject]:
    return [message for message in _object_items(body, "messages") if message.get("role") == "assistant"]


def _object_items(parent: JsonObject, name: str) -> list[JsonObject]:
    value = parent.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
