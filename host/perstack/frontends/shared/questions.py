"""A question as a person at a terminal is shown it: who asks, what, with which options and which other arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator

from perstack.core.answers import Asked, asked_by, beside_question
from perstack.core.base import JsonObject
from perstack.core.runs.asking import OpenQuestion
from perstack.frontends.shared.approvals import value_shown


def question_shown(asking: OpenQuestion) -> str:
    """The Expert that asks, the question, its options with their numbers, the fields of a form, and all else it has."""
    asked = asked_by(asking)
    lines = [f"{asking.expert_key} asks: {_indented(asking.shown)}"]
    if asked.schema is not None:
        lines += _fields(asked.schema)
    lines += [f"  {name}: {value_shown(value, asking)}" for name, value in beside_question(asking.args, asked).items()]
    lines += [f"  {number}. {option}" for number, option in enumerate(_options(asking, asked), 1)]
    return "\n".join(lines)


def chosen(asked: Asked, answer: str) -> str:
    """The option that a number stands for; else the answer, as it is."""
    if answer.isascii() and answer.isdecimal() and answer not in asked.options and len(answer) < 4:
        number = int(answer)
        if 1 <= number <= len(asked.options):
            return asked.options[number - 1]
    return answer


def _options(asking: OpenQuestion, asked: Asked) -> Iterator[str]:
    listed = [entry for given in asking.args.values() if isinstance(given, list) for entry in given]
    words = {one.get("label"): one.get("description") for one in listed if isinstance(one, dict)}
    for option in asked.options:
        beside = words.get(option)
        yield _indented(f"{option}: {beside}" if isinstance(beside, str) and beside else option)


def _fields(schema: JsonObject) -> Iterator[str]:
    found = schema.get("properties")
    for name, field in found.items() if isinstance(found, dict) else ():
        of = field if isinstance(field, dict) else {}
        words = of.get("description") or of.get("title")
        rest = {key: of[key] for key in ("enum", "oneOf", "default", "minimum", "maximum") if key in of}
        parts = [words if isinstance(words, str) else "", json.dumps(rest, ensure_ascii=False) if rest else ""]
        yield f"  {name} ({of.get('type', 'string')}): {' '.join(filter(None, parts))}".rstrip(": ")


def _indented(text: str) -> str:
    return text.replace("\n", "\n    | ")  # what is in a text is never taken for a line of ours
