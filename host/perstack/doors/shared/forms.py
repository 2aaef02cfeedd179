"""A Job's open question as a form, and a filled-in form as the answer that the Host takes.

Forms of MCP elicitation are flat: an object of strings, numbers, booleans and choices (2025-11-25, elicitation). A
schema beyond that becomes a single text field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.jobs.answers import ANYTHING, APPROVAL, AcceptedAnswers, asked_by, beside_question
from perstack.core.runs.questions import OpenQuestion
from perstack.dataclass import dataclass
from perstack.doors.shared.questions import call_shown

ANSWER = "answer"
OTHER = "other"
BESIDE = "words"

_COMMON = ("type", "title", "description", "default")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "string": (*_COMMON, "enum", "enumNames", "oneOf", "minLength", "maxLength", "format"),
    "number": (*_COMMON, "minimum", "maximum"),
    "integer": (*_COMMON, "minimum", "maximum"),
    "boolean": _COMMON,
    "array": (*_COMMON, "items", "minItems", "maxItems"),
}
_FORMATS = ("email", "uri", "date", "date-time")
_YES_NO = {one: one for one in APPROVAL.options}


@dataclass(frozen=True, slots=True)
class Form:
    """A form for the user."""

    message: str
    schema: JsonObject
    is_by_field: bool = False  # True if the fields come from the question's schema; otherwise the answer is one text

    def answer(self, content: Mapping[str, JsonValue]) -> str | None:
        """Return the filled-in values as `Host.answer` takes them; None without any."""
        if self.is_by_field:
            given = {name: value for name, value in content.items() if value is not None}
            return json.dumps(given, ensure_ascii=False)
        said, words = content.get(OTHER) or content.get(ANSWER), content.get(BESIDE)
        if not isinstance(said, str) or not said:
            return None
        return f"{said}: {words}" if isinstance(words, str) and words.strip() else said


def form_of(asking: OpenQuestion, *, has_lists: bool = True) -> Form:
    """Return the form for a question. `has_lists`: the client's protocol revision has multiple-choice fields."""
    if asking.requested_schema is None:
        return Form(_message(asking), _text_schema(asked_by(asking)))
    fields = _flat_fields(asking.requested_schema, has_lists=has_lists)
    if fields is None:
        what = json.dumps(asking.requested_schema, ensure_ascii=False)
        return Form(f"{_message(asking)}\n\nThe answer is a JSON object by this schema: {what}", _text_schema(ANYTHING))
    schema: JsonObject = {"type": "object", "properties": fields}
    required = asking.requested_schema.get("required")
    if isinstance(required, list) and required:
        schema["required"] = required
    return Form(_message(asking), schema, is_by_field=True)


def choices_of(form: Form) -> dict[str, str]:
    """Return every possible answer with its label if the form is a single choice; empty otherwise."""
    fields = form.schema.get("properties")
    if not isinstance(fields, dict):
        return {}
    if not fields:
        return _YES_NO
    field = fields.get(ANSWER) if not form.is_by_field else next(iter(fields.values())) if len(fields) == 1 else None
    return _named(field) if isinstance(field, dict) else {}


def _named(field: JsonObject) -> dict[str, str]:
    if field.get("type") == "boolean":
        return _YES_NO
    listed, titled = field.get("enum"), field.get("oneOf")
    if isinstance(listed, list):
        return {one: one for one in listed if isinstance(one, str)}
    choices = [one for one in titled if isinstance(one, dict)] if isinstance(titled, list) else []
    return {str(one["const"]): str(one.get("title", one["const"])) for one in choices if "const" in one}


def _message(asking: OpenQuestion) -> str:
    if asking.call_digest:
        return call_shown(asking)
    if asking.requested_schema is not None:
        return asking.shown
    beside = [
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in beside_question(asking.args, asked_by(asking)).items()
    ]
    return "\n".join((asking.text, *beside))


def _text_schema(asked: AcceptedAnswers) -> JsonObject:
    answer: JsonObject = {"type": "string", "title": "Answer"}
    if asked.options:
        answer["enum"] = list(asked.options)
    properties: JsonObject = {ANSWER: answer}
    if asked.is_approval:
        words = "Beside a no: what the model should know"
        properties[BESIDE] = {"type": "string", "title": "Words", "description": words}
    if asked.is_yes_no:
        properties[BESIDE] = {"type": "string", "title": "Words", "description": "What you want to say beside it"}
    if asked.options and asked.allows_other:
        properties[OTHER] = {
            "type": "string",
            "title": "Something else",
            "description": "In your own words, in place of these",
        }
        return {"type": "object", "properties": properties}
    return {"type": "object", "properties": properties, "required": [ANSWER]}


def _flat_fields(schema: JsonObject, *, has_lists: bool) -> JsonObject | None:
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return None
    fields: JsonObject = {}
    for name, each in properties.items():
        field = _flat_field(each, has_lists=has_lists)
        if field is None:
            return None
        fields[name] = field
    return fields


def _flat_field(schema: JsonValue, *, has_lists: bool) -> JsonObject | None:
    if not isinstance(schema, dict):
        return None
    kind = schema.get("type")
    if not isinstance(kind, str) or kind not in _KEYWORDS or (kind == "array" and not _is_choice_of_several(schema)):
        return None
    if kind == "array" and not has_lists:
        return None
    field = {name: value for name, value in schema.items() if name in _KEYWORDS[kind]}
    if field.get("format") not in _FORMATS:
        field.pop("format", None)
    return field


def _is_choice_of_several(schema: JsonObject) -> bool:
    items = schema.get("items")
    return isinstance(items, dict) and ("enum" in items or "anyOf" in items)
