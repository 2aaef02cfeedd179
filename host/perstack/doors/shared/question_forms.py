"""Questions as text, and questions and approvals as forms. `consent` has the page of a call that waits for approval."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.base.text import approvable_line, approvable_text
from perstack.core.jobs.answer_reading import (
    ANYTHING,
    APPROVAL,
    DENIES,
    WITH,
    AcceptedAnswers,
    accepted_answers,
    extra_arguments,
    read_approval,
    yes_or_no,
)
from perstack.core.runs.open_questions import OpenQuestion, count_blanks
from perstack.dataclass import dataclass
from perstack.doors.shared.consent import FORM, marked, page_of
from perstack.errors import UsageError
from perstack.next_steps import GiveAnswer


def is_refusal(question: OpenQuestion, text: str) -> bool:
    """Return whether an answer denies the call. Raises UsageError for an invalid answer."""
    return read_approval(question, text).denies


def check_shown_whole(question: OpenQuestion, workspace: Path | None, text: str) -> None:
    """Raise UsageError for an invalid answer, or for a yes in text to a call that the form did not show completely."""
    if not question.call_digest or is_refusal(question, text):
        return
    if not page_of(question, workspace).fitted(FORM).is_whole:
        raise UsageError(
            "the call was not shown completely here, so only a no is accepted",
            next_steps=(GiveAnswer(question.id, is_approval=True),),
        )


# Consent to a changed definition that executes something new.

_YES, _NO = APPROVAL.options

CHOICES = {_YES: "Use it", _NO: "Keep the previous definition"}


def agrees(answer: object) -> bool:
    """Return whether the answer agrees to the changed definition. Only a yes does; any other value does not."""
    decision = yes_or_no(answer) if isinstance(answer, str) else None
    return decision is not None and decision.is_yes


def declines(answer: str) -> bool:
    """Return whether the answer is a no."""
    decision = yes_or_no(answer)
    return decision is not None and not decision.is_yes


# A question for a person at a terminal.


def question_text(question: OpenQuestion) -> str:
    """Return the Expert, the question, its numbered options, the fields of a form, and all other arguments."""
    allowed = accepted_answers(question)
    lines = [f"{question.expert_key} asks: {_shown_text(question.shown)}"]
    if allowed.schema is not None:
        lines += _fields(allowed.schema)
    lines += [
        f"  {approvable_line(name)}: {_value_text(value)}"
        for name, value in extra_arguments(question.args, allowed).items()
    ]
    lines += [f"  {number}. {option}" for number, option in enumerate(_options(question, allowed), 1)]
    return "\n".join(lines)


def select_option(allowed: AcceptedAnswers, answer: str) -> str:
    """Return the option that a number selects, or several numbers select; any other answer unchanged."""
    if allowed.is_list and "," in answer:
        parts = [_option_of_number(allowed, part.strip()) for part in answer.split(",")]
        return json.dumps(parts, ensure_ascii=False) if any(part in allowed.options for part in parts) else answer
    return _option_of_number(allowed, answer)


def _option_of_number(allowed: AcceptedAnswers, answer: str) -> str:
    are_numbers = any(option.isdecimal() for option in allowed.options)  # then a number may itself be the answer
    if answer.isascii() and answer.isdecimal() and not are_numbers and len(answer) < 4:
        number = int(answer)
        if 1 <= number <= len(allowed.options):
            return allowed.options[number - 1]
    return answer


def _options(question: OpenQuestion, allowed: AcceptedAnswers) -> Iterator[str]:
    entries = [entry for value in question.args.values() if isinstance(value, list) for entry in value]
    descriptions = {entry.get("label"): entry.get("description") for entry in entries if isinstance(entry, dict)}
    for option in allowed.options:
        description = descriptions.get(option)
        yield _shown_text(f"{option}: {description}" if isinstance(description, str) and description else option)


def _fields(schema: JsonObject) -> Iterator[str]:
    properties = schema.get("properties")
    for name, field in properties.items() if isinstance(properties, dict) else ():
        settings = field if isinstance(field, dict) else {}
        text = settings.get("description") or settings.get("title")
        limits = {key: settings[key] for key in ("enum", "oneOf", "default", "minimum", "maximum") if key in settings}
        parts = [text if isinstance(text, str) else "", json.dumps(limits, ensure_ascii=False) if limits else ""]
        yield _shown_text(f"  {name} ({settings.get('type', 'string')}): {' '.join(filter(None, parts))}".rstrip(": "))


def _shown_text(text: str) -> str:
    return marked(approvable_text(text))


def _value_text(value: JsonValue) -> str:
    return _shown_text(value if isinstance(value, str) else json.dumps(count_blanks(value), ensure_ascii=False))


ANSWER = "answer"
OTHER = "other"
COMMENT = "words"
CHANGED = "arguments"

# Forms of MCP elicitation are flat: an object of strings, numbers, booleans and choices (MCP 2025-11-25, elicitation).
# A schema beyond that becomes a single text field.

_COMMON = ("type", "title", "description", "default")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "string": (*_COMMON, "enum", "enumNames", "oneOf", "minLength", "maxLength", "format"),
    "number": (*_COMMON, "minimum", "maximum"),
    "integer": (*_COMMON, "minimum", "maximum"),
    "boolean": _COMMON,
    "array": (*_COMMON, "items", "minItems", "maxItems"),
}
_FORMATS = ("email", "uri", "date", "date-time")
_YES_NO = {option: option for option in APPROVAL.options}


@dataclass(frozen=True, slots=True)
class Form:
    """A form for the user."""

    message: str
    schema: JsonObject
    is_by_field: bool = (
        False  # True if the fields come from the question's schema; otherwise the answer is a single text
    )
    is_whole: bool = True  # False if the message does not show all of a call; then only a no is accepted

    def answer(self, content: Mapping[str, JsonValue]) -> str | None:
        """Return the filled-in values as `Host.answer` takes them; None without any value of the form."""
        if self.is_by_field:
            values = {name: value for name, value in content.items() if value is not None}
            return json.dumps(values, ensure_ascii=False)
        text, comment = content.get(OTHER) or content.get(ANSWER), content.get(COMMENT)
        changed = content.get(CHANGED)
        if isinstance(changed, str) and changed.strip() and text == _YES and self.is_whole:
            return f"{WITH} {changed.strip()}"
        if isinstance(text, list):
            return json.dumps(text, ensure_ascii=False)
        if not isinstance(text, str) or not text or not (self.is_whole or declines(text)):
            return None
        return f"{text}: {comment}" if isinstance(comment, str) and comment.strip() else text


def form_of(question: OpenQuestion, workspace: Path | None = None, *, has_lists: bool = True) -> Form:
    """Return the form for a question.

    `workspace` has the file that a call changes; it is None if the reader may not see the file. `has_lists` is True if
    the client's protocol revision has multiple-choice fields.
    """
    if question.call_digest:
        page, allowed = page_of(question, workspace).fitted(FORM), accepted_answers(question)
        offered = allowed if page.is_whole else replace(allowed, options=(DENIES,))
        return Form(page.text, _text_schema(offered), is_whole=page.is_whole)
    if question.requested_schema is None:
        return Form(_message(question), _text_schema(accepted_answers(question), has_lists=has_lists))
    fields = _flat_fields(question.requested_schema, has_lists=has_lists)
    if fields is None:
        text = json.dumps(question.requested_schema, ensure_ascii=False)
        message = f"{approvable_text(question.shown)}\n\nThe answer is a JSON object by this schema: {text}"
        return Form(message, _text_schema(ANYTHING))
    schema: JsonObject = {"type": "object", "properties": fields}
    required = question.requested_schema.get("required")
    if isinstance(required, list) and required:
        schema["required"] = required
    return Form(approvable_text(question.shown), schema, is_by_field=True)


def choices_of(form: Form) -> dict[str, str]:
    """Return every possible answer with its label if the form is a single choice; empty otherwise."""
    fields = form.schema.get("properties")
    if not isinstance(fields, dict):
        return {}
    if not fields:
        return _YES_NO
    field = fields.get(ANSWER) if not form.is_by_field else next(iter(fields.values())) if len(fields) == 1 else None
    return _titles_of_options(field) if isinstance(field, dict) else {}


def _titles_of_options(field: JsonObject) -> dict[str, str]:
    if field.get("type") == "boolean":
        return _YES_NO
    names, titled = field.get("enum"), field.get("oneOf")
    if isinstance(names, list):
        return {name: name for name in names if isinstance(name, str)}
    choices = [choice for choice in titled if isinstance(choice, dict)] if isinstance(titled, list) else []
    return {str(choice["const"]): str(choice.get("title", choice["const"])) for choice in choices if "const" in choice}


def _message(question: OpenQuestion) -> str:
    details = [
        f"{approvable_line(name)}: {_value_text(value)}"
        for name, value in extra_arguments(question.args, accepted_answers(question)).items()
    ]
    return "\n".join((approvable_text(question.text), *details))


def _text_schema(allowed: AcceptedAnswers, *, has_lists: bool = False) -> JsonObject:
    answer: JsonObject = {"type": "string", "title": "Answer"}
    if allowed.is_list and has_lists:
        answer = {"type": "array", "title": "Answer", "items": {"type": "string", "enum": list(allowed.options)}}
    elif allowed.options and not allowed.is_list:
        answer["enum"] = list(allowed.options)
    properties: JsonObject = {ANSWER: answer}
    if allowed.is_approval:
        hint = "With a no: the reason, for the model"
        properties[COMMENT] = {"type": "string", "title": "Words", "description": hint}
        if _YES in allowed.options:
            hint = "With a yes: all arguments of the call, to change them; a JSON object. The rules judge it again."
            properties[CHANGED] = {"type": "string", "title": "Arguments", "description": hint}
    if allowed.is_yes_no:
        properties[COMMENT] = {"type": "string", "title": "Words", "description": "Comment on your answer"}
    if allowed.options and allowed.allows_other:
        properties[OTHER] = {
            "type": "string",
            "title": "Something else",
            "description": "In your own words, instead of the choices",
        }
        return {"type": "object", "properties": properties}
    return {"type": "object", "properties": properties, "required": [ANSWER]}


def _flat_fields(schema: JsonObject, *, has_lists: bool) -> JsonObject | None:
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return None
    fields: JsonObject = {}
    for name, subschema in properties.items():
        field = _flat_field(subschema, has_lists=has_lists)
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
