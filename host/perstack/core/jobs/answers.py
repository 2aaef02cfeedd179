"""How an answer is read, whichever door it comes through.

The rule: a yes or no takes only words for yes and no (`YES`, `NO`), with more words beside them after a colon; options
take only options, unless the question allows other words; a form takes what its schema asks for; all else is words.
Whoever asks for a yes or no, a person at a terminal among them, reads it by `yes_or_no`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.checking import Checker
from perstack.core.policy.approvals import Approval
from perstack.core.questions import Answer, Question
from perstack.core.runs.asking import OpenQuestion
from perstack.core.schema_keywords import Meter
from perstack.dataclass import dataclass
from perstack.errors import UsageError

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
_PLAIN = frozenset(("yes", "y", "no", "n"))
"""What a comma may follow as well: «ok, not yet» is not a yes."""

_BESIDE = re.compile(r"(\w+)\s*([:,])\s*(\S.*)", re.DOTALL)
_CHOICES = ("options", "choices")
"""Arguments of an interactive tool in which models list what may be answered."""

_ALLOW_OTHER = "allowOther"
_APPROVED = "approved"
_CHECK_STEPS = 50_000
"""For the answer to a form, of which the fields are few and flat: at most a fraction of a second."""
_REFUSALS: Mapping[str, Literal["decline", "cancel"]] = {"decline": "decline", "cancel": "cancel"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, as far as it binds the answer."""

    is_yes_no: bool = False
    options: tuple[str, ...] = ()
    allows_other: bool = True
    """Whether an answer may be something else than the options."""
    schema: JsonObject | None = None
    """Of a form: JSON schema of its content."""
    is_approval: bool = False
    """Whether it asks to approve of a call, which may be done for the whole Job as well."""

    @property
    def is_bound(self) -> bool:
        """Whether not every text is an answer."""
        return self.schema is not None or not self.allows_other


APPROVAL = Asked(is_yes_no=True, options=("yes", "no"), allows_other=False)
"""A yes or a no to what somebody wants to do."""

ANYTHING = Asked()

ApprovalWord = Literal["yes", "always", "no"]
"""How an approval of a call begins."""

DENIES: ApprovalWord = "no"
ALWAYS: ApprovalWord = "always"
"""Approves of a call for the whole Job; with a colon and a rule that is offered, of all calls that it names."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer means."""

    value: JsonValue
    """True or false for a yes or no; an option in its own spelling; a form's content; else what was said."""
    words: str = ""
    """What was said beside a yes or no."""
    text: str = ""
    """The answer as a model reads it."""
    action: Literal["accept", "decline", "cancel"] = "accept"
    """What becomes of a form."""


@dataclass(frozen=True, slots=True)
class YesNo:
    """A yes or a no, and the words beside it."""

    is_yes: bool
    words: str = ""


def yes_or_no(text: str) -> YesNo | None:
    """What a text says; None if that is neither yes nor no.

    >>> yes_or_no("No: not on a Friday.")
    YesNo(is_yes=False, words='not on a Friday.')
    """
    alone = text.strip().lower().rstrip(".!")
    if alone in YES | NO:
        return YesNo(alone in YES)
    found = _BESIDE.fullmatch(text.strip())
    if found is None:
        return None
    word, mark, words = found[1].lower(), found[2], found[3]
    if word not in (YES | NO if mark == ":" else _PLAIN):
        return None
    return YesNo(word in YES, words)


def asked_by(asking: OpenQuestion) -> Asked:
    """What a Job's open question asks for.

    An interactive tool whose model lists options takes other words too, unless they are a yes and a no, or its
    `allowOther` is false.
    """
    if asking.call_digest:
        options = ("yes", ALWAYS, *(f"{ALWAYS}: {rule}" for rule in asking.offers), "no")
        return Asked(options=options, allows_other=False, is_approval=True)
    if asking.requested_schema is not None:
        return Asked(schema=asking.requested_schema)
    options = options_in(asking.args)
    is_yes_no = _are_yes_no(options)
    if asking.approval:
        return Asked(is_yes_no=True, options=options if is_yes_no else APPROVAL.options, allows_other=False)
    allows = asking.args.get(_ALLOW_OTHER)
    allows_other = allows if isinstance(allows, bool) else not is_yes_no
    return Asked(is_yes_no=is_yes_no, options=options, allows_other=allows_other or not options)


def options_in(args: JsonObject) -> tuple[str, ...]:
    """The options that a model lists among the arguments of its question, as texts or by their labels."""
    for name in _CHOICES:
        given = args.get(name)
        if isinstance(given, list) and given:
            labels = [one.get("label") if isinstance(one, dict) else one for one in given]
            texts = [label for label in labels if isinstance(label, str) and label]
            return tuple(dict.fromkeys(texts)) if len(texts) == len(given) else ()
    return ()


def beside_question(args: JsonObject, asked: Asked) -> JsonObject:
    """What a model's question has besides its text and the options that are offered for it."""
    offered = (*_CHOICES, _ALLOW_OTHER) if asked.options == options_in(args) and asked.options else ()
    return {name: value for name, value in args.items() if name != "question" and name not in offered}


def read_answer(asked: Asked, said: JsonValue) -> Reading:
    """What an answer means to who asked. Raises UsageError, which names what is accepted."""
    if asked.schema is not None:
        return _of_form(asked.schema, said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))
    reading = _of_yes_no(asked, said) if asked.is_yes_no else _of_options(asked, said)
    if reading is not None:
        return reading
    if not asked.allows_other:
        raise UsageError(f"the answer does not fit: {accepted(asked)}")
    return Reading(said, text=said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))


def read_approval(asking: OpenQuestion, text: str) -> Approval:
    """What an answer means to a call that waits for approval. Raises UsageError, which names what is accepted."""
    alone = text.strip()
    word, _, rule = (part.strip() for part in alone.partition(":"))
    if word.casefold().rstrip(".!") == ALWAYS and (not rule or rule in asking.offers):
        return Approval(decision="job", rule=rule)
    found = yes_or_no(alone)
    if found is None or (found.is_yes and found.words):  # «yes: but to another branch» is not a yes to this call
        raise UsageError(f"the answer does not fit: {accepted(asked_by(asking))}")
    return Approval(decision="once" if found.is_yes else "no", text=found.words)


def read_job_answer(asking: OpenQuestion, text: str) -> str | Answer | Approval:
    """An answer to a Job's open question: a text for its model, what was said to the tool at work that asks, or to a
    call that waits for approval.

    Raises UsageError, which names what is accepted.
    """
    if asking.call_digest:
        return read_approval(asking, text)
    reading = read_answer(asked_by(asking), text)
    if asking.requested_schema is None:
        return reading.text
    content = reading.value if isinstance(reading.value, dict) else {}
    question = Question(message=asking.text, requested_schema=asking.requested_schema)
    return Answer(question=question, action=reading.action, content=content)


def accepted(asked: Asked) -> str:
    """What a person is to give."""
    if asked.schema is not None:
        fields = _fields(asked.schema)
        if not fields:
            return "say yes or no"
        names = ", ".join(f"{name} ({schema.get('type', 'string')})" for name, schema in fields.items())
        return f"give a JSON object with {names}, or say decline"
    if asked.is_approval:
        return f"say {', '.join(asked.options)}; a text for the model may follow a no, as in «no: because …»"
    if asked.is_yes_no:
        return "say yes or no; a text may follow a colon, as in «no: because …»"
    if asked.options and not asked.allows_other:
        return f"say one of: {', '.join(asked.options)}"
    return "type a text"


def _are_yes_no(options: tuple[str, ...]) -> bool:
    said = [found for option in options if (found := yes_or_no(option)) is not None and not found.words]
    return len(options) == 2 and {one.is_yes for one in said} == {True, False}


def _of_yes_no(asked: Asked, said: JsonValue) -> Reading | None:
    given = _as_object(said)
    if given is not None:
        return _of_object(asked, given)
    found = _decided(said)
    return None if found is None else _meant(asked, found, found.is_yes)


def _decided(said: JsonValue) -> YesNo | None:
    if isinstance(said, bool):
        return YesNo(said)
    return yes_or_no(said) if isinstance(said, str) else None


def _of_object(asked: Asked, given: JsonObject) -> Reading | None:
    """An object that says `approved`, with whatever else it has, is a yes or no as well."""
    found = _decided(given.get(_APPROVED))
    if found is None or found.words:
        return None
    more = {name: value for name, value in given.items() if name != _APPROVED}
    beside = json.dumps(more, ensure_ascii=False) if more else ""
    return _meant(asked, YesNo(found.is_yes, beside), {**given, _APPROVED: found.is_yes})


def _meant(asked: Asked, found: YesNo, value: JsonValue) -> Reading:
    label = next(one for one in asked.options if (option := yes_or_no(one)) and option.is_yes is found.is_yes)
    words = found.words if isinstance(value, bool) else ""  # an object has them in it
    return Reading(value, words, text=f"{label}: {found.words}" if found.words else label)


def _as_object(said: JsonValue) -> JsonObject | None:
    parsed = _parsed(said) if isinstance(said, str) and said.lstrip().startswith("{") else said
    return parsed if isinstance(parsed, dict) else None


def _of_options(asked: Asked, said: JsonValue) -> Reading | None:
    if not isinstance(said, str):
        return None
    wanted = said.strip().casefold()
    same = said if said in asked.options else None
    same = same or next((one for one in asked.options if one.strip().casefold() == wanted), None)
    return None if same is None else Reading(same, text=same)


# --- forms --------------------------------------------------------------------------------------------------------


def _of_form(requested_schema: JsonObject, text: str) -> Reading:
    """`decline` and `cancel` say so; a JSON object is the content; else the text is the one value that is asked for.

    Without any value to give, a yes accepts and a no declines. A field that is left out has its `default` (SEP-1034).
    """
    action = _REFUSALS.get(text.strip().lower())
    if action is not None:
        return Reading({}, action=action)
    fields = _fields(requested_schema)
    alone = yes_or_no(text)
    if not fields and alone is not None and not alone.words:
        return Reading({}, action="accept" if alone.is_yes else "decline")
    content = _content(fields, text)
    problem = _problem(requested_schema, content)
    if problem is not None:
        raise UsageError(f"the answer does not fit: {problem}; {accepted(Asked(schema=requested_schema))}")
    return Reading(content or {})


def _fields(requested_schema: JsonObject) -> dict[str, JsonObject]:
    found = requested_schema.get("properties")
    fields = found if isinstance(found, dict) else {}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in fields.items()}


def _content(fields: dict[str, JsonObject], text: str) -> JsonObject | None:
    parsed = _parsed(text)
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
    if kind == "string":
        return text
    alone = yes_or_no(text)
    if kind == "boolean" and alone is not None and not alone.words:
        return alone.is_yes
    if kind == "array" and not isinstance(parsed, list):
        return [one.strip() for one in text.split(",")]
    return parsed


def _problem(requested_schema: JsonObject, content: JsonObject | None) -> str | None:
    if content is None:
        return "it is not a JSON object"
    found = Checker({"type": "object", **requested_schema}).violation(content, Meter(_CHECK_STEPS))
    if found is None:
        return None
    return f"{found.place}: {found.message}" if found.place else found.message


def _parsed(text: str) -> JsonValue:
    """JSON, or the text itself if it is none."""
    try:
        parsed: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed
