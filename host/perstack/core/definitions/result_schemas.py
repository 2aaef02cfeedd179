"""Results that a program reads: the JSON schema that one has to fit, and how it is found in what a model wrote.

What a model wrote is its result if all of it is one JSON object, or if exactly one fenced block is in it, and that is
one.
"""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import chain
from typing import overload

from pydantic import JsonValue

from perstack.core.base import JsonObject
from perstack.core.checking import DEEPEST, FULL, Checker, named_by, schema_problem, unchecked
from perstack.core.cycles import cycles
from perstack.core.depth import layers
from perstack.core.json_reading import read_json
from perstack.core.schema_keywords import Meter, objects, shortened
from perstack.dataclass import dataclass

LONGEST_SCHEMA = 65_536
"""Characters of a schema: it stands in the instruction of every generation."""
LONGEST_RESULT = 4_000_000
"""Characters of a result that is looked at."""

_FENCE = "```"
_NAMES = ("$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef")
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


class NotJson(ValueError):
    """A text is not the JSON that was wanted; says why, in words that follow «it»."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a result is found to be: a value, or what is wrong with it."""

    value: JsonObject | None = None
    problem: str = ""


# --- schemas ------------------------------------------------------------------------------------------------------


def result_schema_of(text: str) -> JsonObject:
    """The schema of a result that a text holds. Raises ValueError that says what is wrong with the text."""
    if len(text) > LONGEST_SCHEMA:
        raise ValueError(f"has {len(text):,} characters: shorten it to {LONGEST_SCHEMA:,}")
    try:
        schema = _parsed(text)
    except NotJson as error:
        raise ValueError(f"{error}: write a JSON schema") from error
    if not isinstance(schema, dict):
        raise ValueError('must be the JSON schema of an object: write {"type": "object", …}')
    if schema.get("type", "object") != "object":
        shown = shortened(json.dumps(schema["type"]), 100)
        raise ValueError(f'must be the schema of an object: write "type": "object", not {shown}')
    return {"type": "object", **schema}


def schema_fault(schema: JsonObject) -> str | None:
    """Why a result cannot be held to a schema, and what to do, in words after the name of its key; None if it can."""
    problem = schema_problem(schema, Meter(FULL))
    if problem is not None:
        is_elsewhere = problem.startswith("its schema refers to")
        remedy = "write that under `$defs`, and refer to `#/$defs/NAME`" if is_elsewhere else "correct it"
        return f"cannot be used, {problem}: {remedy}"
    unknown = _unknown_reference(schema)
    if unknown is not None:
        return f"cannot be used, {unknown}: refer to `#/$defs/NAME` by `$ref`"
    gaps = unchecked(schema)
    if gaps:
        return f"cannot be checked whole, {gaps[0]}: leave that out"
    if _has_endless_references(schema):
        return "cannot be used, it refers to itself without end: let it refer to itself below a property only"
    return None


def _unknown_reference(schema: JsonObject) -> str | None:
    """A reference whose aim is only found while a value is checked, or not at all."""
    names = {f"#{name}" for one in objects(schema) if isinstance(name := one.get("$anchor"), str)}
    for one in objects(schema):
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if isinstance(one.get(keyword), str):
                return f"it has a `{keyword}`"
        reference = one.get("$ref")
        if isinstance(reference, str) and named_by(reference, schema) is None and reference not in names:
            return f"it refers to {shortened(reference, 200)}, which is not in it"
    return None


def _has_endless_references(schema: JsonObject) -> bool:
    """Whether a check of one value, without going into it, comes back to where it was."""
    edges: dict[str, list[str]] = {}
    for one in objects(schema):
        reference = one.get("$ref")
        named = named_by(reference, schema) if isinstance(reference, str) else None
        options = [one.get(keyword) for keyword in _IN_PLACE]
        lists = (option for option in options if isinstance(option, list))
        beside = [*(named or ()), *options, *chain.from_iterable(lists)]
        edges[str(id(one))] = [str(id(other)) for other in beside if isinstance(other, dict)]
    return next(iter(cycles(edges)), None) is not None


def placed_below(schema: JsonObject, place: str) -> JsonObject | None:
    """The schema as a part of another one, at this place in it; None for one whose references would lead elsewhere."""
    if any(name in one for one in objects(schema) for name in _NAMES):
        return None
    return {name: _moved(value, place) for name, value in schema.items()}


def _moved(value: JsonValue, place: str) -> JsonValue:
    if isinstance(value, list):
        return [_moved(one, place) for one in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _moved(one, place) for name, one in value.items()}
    reference = value.get("$ref")
    return moved | {"$ref": place + reference[1:]} if isinstance(reference, str) else moved


# --- results ------------------------------------------------------------------------------------------------------


@overload
def judged(text: str, schema: JsonObject) -> Judged: ...
@overload
def judged(text: str, schema: JsonObject, steps: int) -> Judged | None: ...
def judged(text: str, schema: JsonObject, steps: int = FULL) -> Judged | None:
    """Whether a result fits a schema. The same text and schema always come to the same. Never raises.

    It may take some seconds, of a text or a schema that is made for it. None if fewer steps do not suffice.
    """
    try:
        value = _found(text)
    except NotJson as error:
        return Judged(problem=f"it {error}")
    violation = _checker(json.dumps(schema)).violation(value, Meter(steps))
    if violation is not None and violation.is_unfinished and steps < FULL:
        return None
    if violation is None and isinstance(value, dict):
        return Judged(value=value)
    if violation is None:
        return Judged(problem="it must be a JSON object")
    place = f"at {violation.place}: " if violation.place else ""
    return Judged(problem=f"it does not fit the schema: {place}{shortened(violation.message)}")


def _found(text: str) -> JsonValue:
    if len(text) > LONGEST_RESULT:
        raise NotJson(f"has {len(text):,} characters, and may have {LONGEST_RESULT:,}")
    text = text.strip().removeprefix("\ufeff").strip()
    if not text:
        raise NotJson("is empty")
    if not text.startswith(("{", "[")):
        blocks = _fenced(text)
        if len(blocks) > 1:
            raise NotJson(f"has {len(blocks)} fenced blocks: which one is meant is not clear")
        text = blocks[0] if blocks else text
    return _parsed(text)


def _fenced(text: str) -> list[str]:
    """The contents of the blocks between lines that begin with ```."""
    blocks: list[str] = []
    block: list[str] | None = None
    for line in text.splitlines():
        if not line.lstrip().startswith(_FENCE):
            if block is not None:
                block.append(line)
        elif block is None:
            block = []
        else:
            blocks.append("\n".join(block))
            block = None
    return blocks


def _parsed(text: str) -> JsonValue:
    """The value of a text, without what JSON can spell and nobody can keep, or that readers disagree on."""
    try:
        value = read_json(text.encode("utf-8", "surrogatepass"))
        if any(level > DEEPEST for level, _ in enumerate(layers(value))):
            raise NotJson(f"is more than {DEEPEST} levels deep")
        json.loads(text, object_pairs_hook=_once_each)
    except NotJson:
        raise
    except ValueError as error:
        raise NotJson(f"is not JSON: {error}") from error
    return value


def _once_each(pairs: list[tuple[str, JsonValue]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise NotJson(f"has the key {shortened(json.dumps(name), 100)} twice in one object")
        seen.add(name)


@lru_cache(maxsize=16)
def _checker(schema: str) -> Checker:
    """Delegates are many, and have few schemas."""
    return Checker(json.loads(schema))


# --- what the model is told ---------------------------------------------------------------------------------------


def asked_for(schema: JsonObject) -> str:
    """What the instruction says of the result."""
    shown = json.dumps(schema, ensure_ascii=False)
    return (
        "Your result is read by a program: one JSON object that fits this JSON Schema, and no other text. With"
        f" attemptCompletion, give it as the text of `result`.\n{shown}"
    )


def correction(problem: str) -> str:
    """What the model is shown of a result that was not taken."""
    return (
        f"Your result was not taken: {problem}\n\nCorrect it: answer with the whole result again, as one JSON object"
        " that fits the JSON Schema in your instruction, and no other text. If it does not fit again, the Run fails."
    )
