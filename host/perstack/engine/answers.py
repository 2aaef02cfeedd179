"""A person's words as the answer that a tool's question asks for."""

from __future__ import annotations

import json
from typing import cast

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.questions import Answer, Question
from perstack.errors import UsageError

_YES = frozenset({"yes", "y", "true", "ok", "accept"})
_NO = frozenset({"no", "n", "false"})
_REFUSALS = frozenset({"decline", "cancel"})


def answer_to(question: Question, text: str) -> Answer:
    """`decline` and `cancel` say so; a JSON object is the content; else the text is the one value that is asked for.

    Without any value to give, `yes` accepts and `no` declines. A field that is left out has its `default` (SEP-1034).
    Raises UsageError with what the schema asks for.
    """
    word = text.strip().lower()
    if word in _REFUSALS:
        return Answer(question=question, action="decline" if word == "decline" else "cancel")
    fields = _fields(question.requested_schema)
    if not fields and word in _YES | _NO:
        return Answer(question=question, action="accept" if word in _YES else "decline")
    content = _content(fields, text)
    problem = _problem(question, content)
    if problem is not None:
        raise UsageError(f"the answer does not fit: {problem}; {wanted(question.requested_schema)}")
    return Answer(question=question, action="accept", content=content or {})


def wanted(requested_schema: JsonObject) -> str:
    """What a person is to give for a question of this schema."""
    fields = _fields(requested_schema)
    if not fields:
        return "answer yes or no"
    names = ", ".join(f"{name} ({schema.get('type', 'string')})" for name, schema in fields.items())
    return f"give a JSON object with {names}, or say decline"


def _fields(requested_schema: JsonObject) -> dict[str, JsonObject]:
    found = requested_schema.get("properties")
    fields = found if isinstance(found, dict) else {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in fields.items()}


def _content(fields: dict[str, JsonObject], text: str) -> JsonObject | None:
    try:
        parsed = cast("JsonValue", json.loads(text))
    except ValueError:
        parsed = text
    if isinstance(parsed, dict):
        return {**_defaults(fields), **parsed}
    if len(fields) != 1:
        return None
    ((name, schema),) = fields.items()
    return {name: _value(schema, text, parsed)}


def _defaults(fields: dict[str, JsonObject]) -> JsonObject:
    return {name: schema["default"] for name, schema in fields.items() if "default" in schema}


def _value(schema: JsonObject, text: str, parsed: JsonValue) -> JsonValue:
    kind = schema.get("type", "string")
    word = text.strip().lower()
    if kind == "string":
        return text
    if kind == "boolean" and word in _YES | _NO:
        return word in _YES
    if kind == "array" and not isinstance(parsed, list):
        return [one.strip() for one in text.split(",")]
    return parsed


def _problem(question: Question, content: JsonObject | None) -> str | None:
    from jsonschema.validators import validator_for

    if content is None:
        return "it is no JSON object"
    schema = {"type": "object", **question.requested_schema}
    error = next(iter(validator_for(schema)(schema).iter_errors(content)), None)
    if error is None:
        return None
    place = "/".join(str(part) for part in error.absolute_path)
    return f"{place}: {error.message}" if place else error.message
