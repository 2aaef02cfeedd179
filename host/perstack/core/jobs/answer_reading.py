"""Read a person's answer to a question, alike for every door.

A yes/no question accepts only the words in `YES` and `NO`, with a comment after a colon. Options accept only options,
unless the question allows other answers. A form accepts what its schema describes. Anything else is text. All yes/no
questions, also those asked in a terminal, are read by `yes_or_no`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal

from pydantic import JsonValue

from perstack.core.base.ids import By
from perstack.core.base.records import JsonObject
from perstack.core.definitions.permissions import Approval
from perstack.core.runs.facts import Answer, Question
from perstack.core.runs.open_questions import OpenQuestion
from perstack.core.schemas.json_schema import Checker, Meter
from perstack.dataclass import dataclass
from perstack.errors import UsageError
from perstack.next_steps import GiveAnswer

YES = frozenset(
    ["yes", "y", "true", "ok", "okay", "accept", "accepted", "allow", "allowed", "approve", "approved", "confirm"]
)
NO = frozenset(
    [
        "no",
        "n",
        "false",
        "decline",
        "declined",
        "deny",
        "denied",
        "reject",
        "rejected",
        "refuse",
        "refused",
        "disallow",
        "cancel",
        "cancelled",
        "canceled",
    ]
)
_WORDS_BEFORE_COMMA = frozenset(("yes", "y", "no", "n"))  # a comma may follow only these: «ok, not yet» is not a yes

_WORD_AND_COMMENT = re.compile(r"(\w+)\s*([:,])\s*(\S.*)", re.DOTALL)
_CHOICES = ("options", "choices")  # arguments of an interactive tool in which models list the possible answers

_ALLOW_OTHER = "allowOther"
_SEVERAL = "several"
_APPROVED = "approved"
_CHECK_STEPS = 50_000  # limit for checking a form, whose fields are few and flat: at most a fraction of a second
_REFUSALS: Mapping[str, Literal["decline", "cancel"]] = {"decline": "decline", "cancel": "cancel"}


@dataclass(frozen=True, slots=True)
class AcceptedAnswers:
    """The accepted answers of a question."""

    is_yes_no: bool = False
    options: tuple[str, ...] = ()
    allows_other: bool = True  # False: only an option is an answer
    is_list: bool = False  # True if the answer is a list, of any number of options
    schema: JsonObject | None = None  # JSON schema of a form's content; None without a form
    is_approval: bool = False  # True if a call needs approval, which may be given for the whole Job too

    @property
    def is_restricted(self) -> bool:
        """True if not every text is an answer."""
        return self.schema is not None or not self.allows_other


APPROVAL = AcceptedAnswers(is_yes_no=True, options=("yes", "no"), allows_other=False)

ANYTHING = AcceptedAnswers()

ApprovalWord = Literal["yes", "always", "no"]

DENIES: ApprovalWord = "no"
ALWAYS: ApprovalWord = "always"  # approves for the whole Job; with a colon and an offered rule: all calls of that rule
WITH = "with"  # followed by a JSON object: these arguments in place of the model's
ALWAYS_HERE = "always in this project"  # followed by a colon and an offered rule: approves its calls in later Jobs, too


@dataclass(frozen=True, slots=True)
class Reading:
    """The meaning of an answer."""

    value: JsonValue  # True or False for a yes/no question; an option as spelled; a form's content; else the text
    words: str = ""
    text: str = ""  # the answer as a model reads it
    action: Literal["accept", "decline", "cancel"] = "accept"


@dataclass(frozen=True, slots=True)
class YesNo:
    """A yes or no, and the comment on it."""

    is_yes: bool
    words: str = ""


def yes_or_no(text: str) -> YesNo | None:
    """Return the yes or no in a text; None if it is neither.

    >>> yes_or_no("No: not on a Friday.") YesNo(is_yes=False, words='not on a Friday.')
    """
    yes_no = text.strip().lower().rstrip(".!")
    if yes_no in YES | NO:
        return YesNo(yes_no in YES)
    match = _WORD_AND_COMMENT.fullmatch(text.strip())
    if match is None:
        return None
    word, mark, comment = match[1].lower(), match[2], match[3]
    if word not in (YES | NO if mark == ":" else _WORDS_BEFORE_COMMA):
        return None
    return YesNo(word in YES, comment)


def accepted_answers(question: OpenQuestion) -> AcceptedAnswers:
    """Return the answers that a Job's open question accepts; options of an interactive tool may allow others."""
    if question.call_digest:
        options = ("yes", ALWAYS, *wider_answers(question), "no")
        return AcceptedAnswers(options=options, allows_other=False, is_approval=True)
    if question.requested_schema is not None:
        return AcceptedAnswers(schema=question.requested_schema)
    options = options_in(question.args)
    is_yes_no = _are_yes_no(options)
    if question.approval:
        return AcceptedAnswers(is_yes_no=True, options=options if is_yes_no else APPROVAL.options, allows_other=False)
    allows = question.args.get(_ALLOW_OTHER)
    several = question.args.get(_SEVERAL) is True and bool(options)
    is_yes_no = is_yes_no and not several
    allows_other = allows if isinstance(allows, bool) else not is_yes_no
    return AcceptedAnswers(
        is_yes_no=is_yes_no, options=options, allows_other=allows_other or not options, is_list=several
    )


def wider_answers(question: OpenQuestion) -> tuple[str, ...]:
    """Return the answers that approve all calls of an offered rule, in the Job and in the project."""
    return tuple(f"{word}: {rule}" for word in (ALWAYS, ALWAYS_HERE) for rule in question.offers)


def options_in(args: JsonObject) -> tuple[str, ...]:
    """Return the options that a model lists in its question, as texts or by their labels."""
    for name in _CHOICES:
        listed = args.get(name)
        if isinstance(listed, list) and listed:
            labels = [option.get("label") if isinstance(option, dict) else option for option in listed]
            texts = [label for label in labels if isinstance(label, str) and label]
            return tuple(dict.fromkeys(texts)) if len(texts) == len(listed) else ()
    return ()


def extra_arguments(args: JsonObject, allowed: AcceptedAnswers) -> JsonObject:
    """Return the arguments of a model's question without its text and the options that are offered."""
    offered = (*_CHOICES, _ALLOW_OTHER, _SEVERAL) if allowed.options == options_in(args) and allowed.options else ()
    return {name: value for name, value in args.items() if name != "question" and name not in offered}


def read_answer(allowed: AcceptedAnswers, answer: JsonValue) -> Reading:
    """Return the meaning of an answer. Raises UsageError naming what is accepted."""
    if allowed.schema is not None:
        return _read_form(allowed.schema, answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
    if allowed.is_list:
        return _read_list(allowed, answer)
    reading = _read_yes_no(allowed, answer) if allowed.is_yes_no else _read_option(allowed, answer)
    if reading is not None:
        return reading
    if not allowed.allows_other:
        raise UsageError(f"the answer does not fit: {describe_accepted(allowed)}")
    return Reading(answer, text=answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def read_approval(question: OpenQuestion, text: str) -> Approval:
    """Return the decision on a call that waits for approval. Raises UsageError naming what is accepted."""
    yes_no = text.strip()
    changed = _changed_arguments(yes_no)
    if changed is not None:
        return Approval(decision="once", changed=changed)
    word, _, rule = (part.strip() for part in yes_no.partition(":"))
    if word.casefold().rstrip(".!") == ALWAYS and (not rule or rule in question.offers):
        return Approval(decision="job", rule=rule)
    if word.casefold() == ALWAYS_HERE and rule in question.offers:
        return Approval(decision="project", rule=rule)
    decision = yes_or_no(yes_no)
    if decision is None or (
        decision.is_yes and decision.words
    ):  # «yes: but to another branch» is not a yes to this call
        raise UsageError(f"the answer does not fit: {describe_accepted(accepted_answers(question))}")
    return Approval(decision="once" if decision.is_yes else "no", text=decision.words)


def changed_answer(args: JsonObject) -> str:
    """Return the answer that approves a call with these arguments, as `read_approval` reads it."""
    return f"{WITH} {json.dumps(args, ensure_ascii=False)}"


def _changed_arguments(text: str) -> JsonObject | None:
    """Return the arguments of an answer that changes the call; None for other answers. Raises UsageError."""
    word, _, rest = text.partition(" ")
    if word.casefold() != WITH:
        return None
    args = _parse_json(rest.strip())
    if not isinstance(args, dict):
        raise UsageError(f'the changed arguments are not a JSON object: say {WITH} {{"NAME": VALUE, …}}')
    return args


def read_job_answer(asking_question: OpenQuestion, text: str) -> str | Answer | Approval:
    """Return the answer: a text for the model, an Answer for a tool, an Approval for a call. Raises UsageError."""
    if asking_question.call_digest:
        return read_approval(asking_question, text)
    reading = read_answer(accepted_answers(asking_question), text)
    if asking_question.requested_schema is None:
        return reading.text
    content = reading.value if isinstance(reading.value, dict) else {}
    tool_question = Question(message=asking_question.text, requested_schema=asking_question.requested_schema)
    return Answer(question=tool_question, action=reading.action, content=content)


def describe_accepted(allowed: AcceptedAnswers) -> str:
    """Return the text that names the accepted answers to a person."""
    if allowed.schema is not None:
        fields = _form_fields(allowed.schema)
        if not fields:
            return "answer yes or no"
        names = ", ".join(f"{name} ({schema.get('type', 'string')})" for name, schema in fields.items())
        return f"give a JSON object with {names}, or say decline"
    if allowed.is_approval:
        return f"say {', '.join(allowed.options)}; a text for the model may follow a no, as in «no: because …»"
    if allowed.is_yes_no:
        return "answer yes or no; a text may follow a colon, as in «no: because …»"
    if allowed.is_list:
        other = ", or other words" if allowed.allows_other else ""
        return f"say any of these, with commas between{other}: {', '.join(allowed.options)}"
    if allowed.options and not allowed.allows_other:
        return f"say one of: {', '.join(allowed.options)}"
    return "type a text"


def _are_yes_no(options: tuple[str, ...]) -> bool:
    if len(options) != 2:
        return False
    decisions = [decision for option in options if (decision := yes_or_no(option)) is not None and not decision.words]
    return {decision.is_yes for decision in decisions} == {True, False}


def _read_yes_no(allowed: AcceptedAnswers, answer: JsonValue) -> Reading | None:
    fields = _parse_object(answer)
    if fields is not None:
        return _read_object(allowed, fields)
    decision = _read_decision(answer)
    return None if decision is None else _match_option(allowed, decision, decision.is_yes)


def _read_decision(answer: JsonValue) -> YesNo | None:
    if isinstance(answer, bool):
        return YesNo(answer)
    return yes_or_no(answer) if isinstance(answer, str) else None


def _read_object(allowed: AcceptedAnswers, fields: JsonObject) -> Reading | None:
    """Read an object with `approved` as a yes or no, ignoring its other keys."""
    decision = _read_decision(fields.get(_APPROVED))
    if decision is None or decision.words:
        return None
    others = {name: value for name, value in fields.items() if name != _APPROVED}
    comment = json.dumps(others, ensure_ascii=False) if others else ""
    return _match_option(allowed, YesNo(decision.is_yes, comment), {**fields, _APPROVED: decision.is_yes})


def _match_option(allowed: AcceptedAnswers, decision: YesNo, value: JsonValue) -> Reading:
    """Return the reading of a yes or no: its text is the option that means it, with the comment."""
    label = next(text for text in allowed.options if (option := yes_or_no(text)) and option.is_yes is decision.is_yes)
    comment = decision.words if isinstance(value, bool) else ""  # an object contains the comment
    return Reading(value, comment, text=f"{label}: {decision.words}" if decision.words else label)


def _parse_object(answer: JsonValue) -> JsonObject | None:
    parsed = _parse_json(answer) if isinstance(answer, str) and answer.lstrip().startswith("{") else answer
    return parsed if isinstance(parsed, dict) else None


def _read_option(allowed: AcceptedAnswers, answer: JsonValue) -> Reading | None:
    """Return the option that an answer spells, if need be without regard to case; None if it spells none."""
    if not isinstance(answer, str):
        return None
    folded = answer.strip().casefold()
    match = answer if answer in allowed.options else None
    match = match or next((option for option in allowed.options if option.strip().casefold() == folded), None)
    return None if match is None else Reading(match, text=match)


def _read_list(allowed: AcceptedAnswers, answer: JsonValue) -> Reading:
    """Read a list of options, or a text with commas between them. Raises UsageError naming what is accepted."""
    items = _parse_json(answer) if isinstance(answer, str) and answer.lstrip().startswith("[") else answer
    texts = items if isinstance(items, list) else []
    if isinstance(items, str):
        parts: list[JsonValue] = [part.strip() for part in items.split(",")]
        texts = parts if any(_read_option(allowed, part) for part in parts) else [items.strip()]
    readings = [(_read_option(allowed, text), text) for text in texts if isinstance(text, str) and text]
    if not readings or len(readings) != len(texts):
        raise UsageError(f"the answer does not fit: {describe_accepted(allowed)}")
    if not allowed.allows_other and any(reading is None for reading, _ in readings):
        raise UsageError(f"the answer does not fit: {describe_accepted(allowed)}")
    values: list[JsonValue] = [text if reading is None else reading.value for reading, text in readings]
    values = [value for index, value in enumerate(values) if value not in values[:index]]
    return Reading(values, text=json.dumps(values, ensure_ascii=False))


# --- forms --------------------------------------------------------------------------------------------------------


def _read_form(requested_schema: JsonObject, text: str) -> Reading:
    """Read `decline`, `cancel`, a JSON object, or the value of the only field. A field may have a `default`."""
    action = _REFUSALS.get(text.strip().lower())
    if action is not None:
        return Reading({}, action=action)
    fields = _form_fields(requested_schema)
    yes_no = yes_or_no(text)
    if not fields and yes_no is not None and not yes_no.words:
        return Reading({}, action="accept" if yes_no.is_yes else "decline")
    content = _form_content(fields, text)
    problem = _content_problem(requested_schema, content)
    if problem is not None:
        raise UsageError(
            f"the answer does not fit: {problem}; {describe_accepted(AcceptedAnswers(schema=requested_schema))}"
        )
    return Reading(content or {})


def _form_fields(requested_schema: JsonObject) -> dict[str, JsonObject]:
    properties = requested_schema.get("properties")
    fields = properties if isinstance(properties, dict) else {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in fields.items()}


def _form_content(fields: dict[str, JsonObject], text: str) -> JsonObject | None:
    """Return the content of a form: an object, or the value of the only field; None for any other text."""
    parsed = _parse_json(text)
    if isinstance(parsed, dict):
        return {**_defaults(fields), **parsed}
    if len(fields) != 1:
        return None
    ((name, schema),) = fields.items()
    return {name: _field_value(schema, text, parsed)}


def _defaults(fields: dict[str, JsonObject]) -> JsonObject:
    return {name: schema["default"] for name, schema in fields.items() if "default" in schema}


def _field_value(schema: JsonObject, text: str, parsed: JsonValue) -> JsonValue:
    kind = schema.get("type", "string")
    if kind == "string":
        return text
    yes_no = yes_or_no(text)
    if kind == "boolean" and yes_no is not None and not yes_no.words:
        return yes_no.is_yes
    if kind == "array" and not isinstance(parsed, list):
        return [part.strip() for part in text.split(",")]
    return parsed


def _content_problem(requested_schema: JsonObject, content: JsonObject | None) -> str | None:
    if content is None:
        return "it is not a JSON object"
    violation = Checker({"type": "object", **requested_schema}).violation(content, Meter(_CHECK_STEPS))
    if violation is None:
        return None
    return f"{violation.place}: {violation.message}" if violation.place else violation.message


def _parse_json(text: str) -> JsonValue:
    """Return the parsed JSON, or the text itself if it is not JSON."""
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed


# Answers before they are read, with their origin.


@dataclass(frozen=True, slots=True)
class UnreadAnswer:
    """An answer as it arrived, with its origin: it is read once the question is known."""

    text: str
    by: By
    question_id: str | None = None  # id of the question it answers; None if it does not say
    signal: str | None = None  # event from outside that contains it; None for a person's answer
    changed: JsonObject | None = None  # changed arguments of the call that it approves, in place of a text

    def read_for(self, question: OpenQuestion) -> str | Answer | Approval:
        """Return the answer to this question. Raises UsageError if it does not fit, or may not approve the call."""
        if question.call_digest:
            self._check_approval(question)
        return self.read_unchecked(question)

    def read_unchecked(self, question: OpenQuestion) -> str | Answer | Approval:
        """Return the answer to this question, without a check of who gives it. Raises UsageError if it does not fit."""
        if self.changed is None:
            return read_job_answer(question, self.text)
        if not question.call_digest:
            raise UsageError(f"{question.id} is not an approval of a call, so there are no arguments to change")
        return Approval(decision="once", changed=self.changed)

    def _check_approval(self, question: OpenQuestion) -> None:
        if self.signal is not None:
            text = f"{question.id} asks for a person's approval, which an event from outside cannot give"
            raise UsageError(text, next_steps=(GiveAnswer(question.id, is_approval=True),))
        if self.question_id is None:
            step = GiveAnswer(question.id, is_approval=True)
            raise UsageError("an approval must name the question that it answers", next_steps=(step,))
