"""Questions and approvals as text, with the changes that an edit would make, and as forms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from perstack.core.base.ids import place_of
from perstack.core.base.records import JsonObject
from perstack.core.base.text import approvable_text
from perstack.core.definitions.permissions import read_rule
from perstack.core.definitions.skills import BASE_SKILL
from perstack.core.jobs.answers import (
    ALWAYS,
    ALWAYS_HERE,
    ANYTHING,
    APPROVAL,
    AcceptedAnswers,
    accepted_answers,
    beside_question,
    read_approval,
    yes_or_no,
)
from perstack.core.runs.questions import OpenQuestion, count_blanks
from perstack.dataclass import dataclass
from perstack.doors.shared.file_edits import FileEdit, edit_by, edit_in

_MAX_SHOWN_CHARS = 40_000  # maximum characters shown of one argument


def is_refusal(question: OpenQuestion, text: str) -> bool:
    """Return whether an answer denies the call. Raises UsageError for an invalid answer."""
    return read_approval(question, text).denies


def call_text(question: OpenQuestion, workspace: Path | None = None, spent: str = "") -> str:
    """Return every argument, why it is asked, and what further answers cover.

    With a `workspace`, edits are a diff to the file in it. `spent` is what the Job has used so far.
    """
    change = requested_change(question, workspace)
    lines = [
        f"  {approvable_text(name)}: {value_text(value, question)}"
        for name, value in question.args.items()
        if name not in change.arguments
    ]
    diff = (f"  {line}" for line in (change.note, *change.lines) if line)
    approvals = (f"{answer}: {description}, {_extent(answer)}" for answer, description in covered_calls(question))
    return "\n".join((*head_lines(question), *lines, *diff, *approvals, *((f"so far: {spent}",) if spent else ())))


def covered_calls(question: OpenQuestion) -> tuple[tuple[str, str], ...]:
    """Return each answer that approves more than this call, with a description of the calls that it covers."""
    offers = [(_on_one_line(rule), _on_one_line(_describe_rule(rule))) for rule in question.offers]
    wider = ((f"{answer}: {rule}", description) for answer in (ALWAYS, ALWAYS_HERE) for rule, description in offers)
    return ((ALWAYS, "the same call again"), *wider)


def _extent(answer: str) -> str:
    return "in every Job of this project" if answer.startswith(ALWAYS_HERE) else "in this whole Job"


def _describe_rule(text: str) -> str:
    try:
        rule = read_rule(text)
    except ValueError:
        return "every call that this rule matches"
    skill = "" if rule.skill is None else f" of skill {rule.skill.text}"
    calls = f"every call of {'delegate ' if rule.is_delegate else ''}{rule.tool.text}{skill}"
    if rule.bare is not None:
        return f"{calls} that matches {rule.bare.text}"
    conditions = " and ".join(f"{name} matches {glob.text}" for name, glob in rule.named)
    return f"{calls} whose {conditions}" if conditions else calls


def _on_one_line(text: str) -> str:
    return approvable_text(text).replace("\n", "\\n")


def head_lines(question: OpenQuestion) -> tuple[str, ...]:
    """Return the lines above the arguments: the Expert, the tool and what changed of it, and what the call runs."""
    runs = (f"  runs: {line}" for line in question.runs)
    definition = (f"  definition {_on_one_line(line)}" for line in question.changes)
    return approvable_text(question.text).replace("\n", " "), *definition, *runs


def value_text(value: JsonValue, question: OpenQuestion) -> str:
    """Return a value as lines that cannot be mistaken for others; invisible and omitted characters are made visible."""
    text = approvable_text(value if isinstance(value, str) else json.dumps(count_blanks(value), ensure_ascii=False))
    cut_count = len(text) - _MAX_SHOWN_CHARS
    if cut_count > 0:
        job, half = place_of(question.id)[0], _MAX_SHOWN_CHARS // 2
        note = f"… {cut_count:,} characters are left out here, see: perstack log {job} --verbose …"
        text = f"{text[:half]}\n{note}\n{text[-half:]}"
    return text.replace("\n", "\n    | ")  # lines of a value must not look like lines of ours


def requested_change(question: OpenQuestion, workspace: Path | None) -> FileEdit:
    """Return the diff of a call; none for other skills' tools, whose arguments of these names may mean anything."""
    if question.skill_name not in ("", BASE_SKILL):
        return FileEdit()
    if workspace is None:
        return edit_by(question.tool_name, question.args)
    return edit_in(workspace, question.tool_name, question.args)


# Consent to a changed definition that executes something new.

_YES, _NO = APPROVAL.options

CHOICES = {_YES: "Use it", _NO: "Keep the one of before"}


def agrees(answer: object) -> bool:
    """Return whether the answer is a yes; any other value leaves the definition unchanged."""
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
    lines = [f"{question.expert_key} asks: {_indent(question.shown)}"]
    if allowed.schema is not None:
        lines += _fields(allowed.schema)
    lines += [
        f"  {name}: {value_text(value, question)}" for name, value in beside_question(question.args, allowed).items()
    ]
    lines += [f"  {number}. {option}" for number, option in enumerate(_options(question, allowed), 1)]
    return "\n".join(lines)


def select_option(allowed: AcceptedAnswers, answer: str) -> str:
    """Return the option that a number selects, for several the list of them; any other answer unchanged."""
    if allowed.several and "," in answer:
        parts = [_option_of_number(allowed, part.strip()) for part in answer.split(",")]
        return json.dumps(parts, ensure_ascii=False) if any(part in allowed.options for part in parts) else answer
    return _option_of_number(allowed, answer)


def _option_of_number(allowed: AcceptedAnswers, answer: str) -> str:
    if answer.isascii() and answer.isdecimal() and answer not in allowed.options and len(answer) < 4:
        number = int(answer)
        if 1 <= number <= len(allowed.options):
            return allowed.options[number - 1]
    return answer


def _options(question: OpenQuestion, allowed: AcceptedAnswers) -> Iterator[str]:
    entries = [entry for value in question.args.values() if isinstance(value, list) for entry in value]
    descriptions = {entry.get("label"): entry.get("description") for entry in entries if isinstance(entry, dict)}
    for option in allowed.options:
        description = descriptions.get(option)
        yield _indent(f"{option}: {description}" if isinstance(description, str) and description else option)


def _fields(schema: JsonObject) -> Iterator[str]:
    properties = schema.get("properties")
    for name, field in properties.items() if isinstance(properties, dict) else ():
        settings = field if isinstance(field, dict) else {}
        text = settings.get("description") or settings.get("title")
        limits = {key: settings[key] for key in ("enum", "oneOf", "default", "minimum", "maximum") if key in settings}
        parts = [text if isinstance(text, str) else "", json.dumps(limits, ensure_ascii=False) if limits else ""]
        yield f"  {name} ({settings.get('type', 'string')}): {' '.join(filter(None, parts))}".rstrip(": ")


def _indent(text: str) -> str:
    return text.replace("\n", "\n    | ")  # lines of a text must not look like lines of ours


ANSWER = "answer"
OTHER = "other"
COMMENT = "words"

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
    is_by_field: bool = False  # True if the fields come from the question's schema; otherwise the answer is one text

    def answer(self, content: Mapping[str, JsonValue]) -> str | None:
        """Return the filled-in values as `Host.answer` takes them; None without any."""
        if self.is_by_field:
            values = {name: value for name, value in content.items() if value is not None}
            return json.dumps(values, ensure_ascii=False)
        text, comment = content.get(OTHER) or content.get(ANSWER), content.get(COMMENT)
        if isinstance(text, list):
            return json.dumps(text, ensure_ascii=False)
        if not isinstance(text, str) or not text:
            return None
        return f"{text}: {comment}" if isinstance(comment, str) and comment.strip() else text


def form_of(question: OpenQuestion, workspace: Path | None = None, *, has_lists: bool = True) -> Form:
    """Return the form for a question.

    With a `workspace`, edits are a diff to the file in it. `has_lists`: the client's protocol revision has
    multiple-choice fields.
    """
    if question.requested_schema is None:
        return Form(_message(question, workspace), _text_schema(accepted_answers(question), has_lists=has_lists))
    fields = _flat_fields(question.requested_schema, has_lists=has_lists)
    if fields is None:
        text = json.dumps(question.requested_schema, ensure_ascii=False)
        return Form(f"{question.shown}\n\nThe answer is a JSON object by this schema: {text}", _text_schema(ANYTHING))
    schema: JsonObject = {"type": "object", "properties": fields}
    required = question.requested_schema.get("required")
    if isinstance(required, list) and required:
        schema["required"] = required
    return Form(question.shown, schema, is_by_field=True)


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


def _message(question: OpenQuestion, workspace: Path | None) -> str:
    if question.call_digest:
        return call_text(question, workspace)
    details = [
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in beside_question(question.args, accepted_answers(question)).items()
    ]
    return "\n".join((question.text, *details))


def _text_schema(allowed: AcceptedAnswers, *, has_lists: bool = False) -> JsonObject:
    answer: JsonObject = {"type": "string", "title": "Answer"}
    if allowed.several and has_lists:
        answer = {"type": "array", "title": "Answer", "items": {"type": "string", "enum": list(allowed.options)}}
    elif allowed.options and not allowed.several:
        answer["enum"] = list(allowed.options)
    properties: JsonObject = {ANSWER: answer}
    if allowed.is_approval:
        hint = "With a no: the reason, for the model"
        properties[COMMENT] = {"type": "string", "title": "Words", "description": hint}
    if allowed.is_yes_no:
        properties[COMMENT] = {"type": "string", "title": "Words", "description": "Comment on your answer"}
    if allowed.options and allowed.allows_other:
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
