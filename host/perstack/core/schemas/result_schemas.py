"""JSON results that a program reads: the schemas that they must fit, and how to find the JSON in a model's reply.

The result is the whole reply if that is JSON, or else the content of its only fenced block.
"""

from __future__ import annotations

import json
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import overload

from pydantic import JsonValue

from perstack.core.base.records import JsonObject, layers, read_json
from perstack.core.schemas.json_schema import (
    FULL_STEPS,
    MAX_VALUE_DEPTH,
    Checker,
    Meter,
    objects,
    resolve_reference,
    schema_problem,
    shorten,
    unchecked_parts,
)
from perstack.dataclass import dataclass

MAX_SCHEMA_CHARS = 65_536  # maximum characters of a schema, because every generation's instruction contains it
MAX_RESULT_CHARS = 4_000_000  # maximum characters of a result to examine

_FENCE = "```"
_ABSOLUTE_KEYWORDS = ("$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef")
_IN_PLACE_KEYWORDS = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


class NotJson(ValueError):
    """Text that is not the expected JSON; the message is a phrase that follows «it»."""


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """Outcome of checking a result: its value, or the problem."""

    value: JsonObject | None = None
    problem: str = ""
    by_program: bool = False  # True if the result fits the schema, but the calling program refuses it


def parse_result_schema(text: str) -> JsonObject:
    """Return the schema of a result from a text. Raises ValueError that says what is wrong with the text."""
    if len(text) > MAX_SCHEMA_CHARS:
        raise ValueError(f"has {len(text):,} characters: shorten it to {MAX_SCHEMA_CHARS:,}")
    try:
        schema = _parsed(text)
    except NotJson as error:
        raise ValueError(f"{error}: write a JSON schema") from error
    if not isinstance(schema, dict):
        raise ValueError('must be the JSON schema of an object: write {"type": "object", …}')
    if schema.get("type", "object") != "object":
        shown = shorten(json.dumps(schema["type"]), 100)
        raise ValueError(f'must be the schema of an object: write "type": "object", not {shown}')
    return {"type": "object", **schema}


def schema_fault(schema: JsonObject) -> str | None:
    """Return why a schema cannot be used and what to do, as a phrase that follows its key; None if it can."""
    problem = schema_problem(schema, Meter(FULL_STEPS))
    if problem is not None:
        is_elsewhere = problem.startswith("its schema refers to")
        remedy = "write that under `$defs`, and refer to `#/$defs/NAME`" if is_elsewhere else "correct it"
        return f"cannot be used, {problem}: {remedy}"
    unknown = _unknown_reference(schema)
    if unknown is not None:
        return f"cannot be used, {unknown}: refer to `#/$defs/NAME` by `$ref`"
    gaps = unchecked_parts(schema)
    if gaps:
        return f"cannot be checked whole, {gaps[0]}: leave that out"
    if _has_endless_references(schema):
        return "cannot be used, it refers to itself without end: let it refer to itself below a property only"
    return None


def _unknown_reference(schema: JsonObject) -> str | None:
    names = {f"#{name}" for subschema in objects(schema) if isinstance(name := subschema.get("$anchor"), str)}
    for subschema in objects(schema):
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if isinstance(subschema.get(keyword), str):
                return f"it has a `{keyword}`"
        reference = subschema.get("$ref")
        if isinstance(reference, str) and resolve_reference(reference, schema) is None and reference not in names:
            return f"it refers to {shorten(reference, 200)}, which is not in it"
    return None


def _has_endless_references(schema: JsonObject) -> bool:
    """Return True if checking one value, without descending into it, could reach that schema again."""
    graph = TopologicalSorter[int]()
    for subschema in objects(schema):
        reference = subschema.get("$ref")
        target = resolve_reference(reference, schema) if isinstance(reference, str) else None
        options = [subschema.get(keyword) for keyword in _IN_PLACE_KEYWORDS]
        lists = (option for option in options if isinstance(option, list))
        in_place = [*(target or ()), *options, *chain.from_iterable(lists)]
        graph.add(id(subschema), *(id(other) for other in in_place if isinstance(other, dict)))
    try:
        graph.prepare()
    except CycleError:
        return True
    return False


def move_schema(schema: JsonObject, pointer: str) -> JsonObject | None:
    """Return the schema rewritten as a part of another one at `pointer`; None if its references would break there."""
    if any(name in subschema for subschema in objects(schema) for name in _ABSOLUTE_KEYWORDS):
        return None
    return {name: _move_references(value, pointer) for name, value in schema.items()}


def _move_references(value: JsonValue, pointer: str) -> JsonValue:
    if isinstance(value, list):
        return [_move_references(item, pointer) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _move_references(item, pointer) for name, item in value.items()}
    reference = value.get("$ref")
    return moved | {"$ref": pointer + reference[1:]} if isinstance(reference, str) else moved


@overload
def check_result(text: str, schema: JsonObject) -> ResultCheck: ...
@overload
def check_result(text: str, schema: JsonObject, steps: int) -> ResultCheck | None: ...
def check_result(text: str, schema: JsonObject, steps: int = FULL_STEPS) -> ResultCheck | None:
    """Check a result against a schema. Never raises. Return None if fewer steps than `FULL_STEPS` are not enough."""
    try:
        value = _extract_json(text)
    except NotJson as error:
        return ResultCheck(problem=f"it {error}")
    violation = _checker(json.dumps(schema)).violation(value, Meter(steps))
    if violation is not None and violation.is_unfinished and steps < FULL_STEPS:
        return None
    if violation is None and isinstance(value, dict):
        return ResultCheck(value=value)
    if violation is None:
        return ResultCheck(problem="it must be a JSON object")
    location = f"at {violation.place}: " if violation.place else ""
    return ResultCheck(problem=f"it does not fit the schema: {location}{shorten(violation.message)}")


def _extract_json(text: str) -> JsonValue:
    if len(text) > MAX_RESULT_CHARS:
        raise NotJson(f"has {len(text):,} characters, and may have {MAX_RESULT_CHARS:,}")
    text = text.strip().removeprefix("\ufeff").strip()
    if not text:
        raise NotJson("is empty")
    if not text.startswith(("{", "[")):
        blocks = _fenced_blocks(text)
        if len(blocks) > 1:
            raise NotJson(f"has {len(blocks)} fenced blocks: which one is meant is not clear")
        text = blocks[0] if blocks else text
    return _parsed(text)


def _fenced_blocks(text: str) -> list[str]:
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
    """Parse JSON. Raises NotJson for invalid JSON, values that cannot be recorded, deep nesting and duplicate keys."""
    try:
        value = read_json(text.encode("utf-8", "surrogatepass"))
        if any(level > MAX_VALUE_DEPTH for level, _ in enumerate(layers(value))):
            raise NotJson(f"is more than {MAX_VALUE_DEPTH} levels deep")
        json.loads(text, object_pairs_hook=_reject_duplicates)
    except NotJson:
        raise
    except ValueError as error:
        raise NotJson(f"is not JSON: {error}") from error
    return value


def _reject_duplicates(pairs: list[tuple[str, JsonValue]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise NotJson(f"has the key {shorten(json.dumps(name), 100)} twice in one object")
        seen.add(name)


@lru_cache(maxsize=16)
def _checker(schema: str) -> Checker:
    return Checker(json.loads(schema))


def result_instruction(schema: JsonObject) -> str:
    """Return the instruction's text about the result."""
    shown = json.dumps(schema, ensure_ascii=False)
    return (
        "Your result is read by a program: one JSON object that fits this JSON Schema, and no other text. With"
        f" attemptCompletion, give it as the text of `result`.\n{shown}"
    )


def correction(problem: str) -> str:
    """Return the text that tells the model why its result was rejected."""
    return (
        f"Your result was not taken: {problem}\n\nCorrect it: answer with the whole result again, as one JSON object"
        " that fits the JSON Schema in your instruction, and no other text. If it does not fit again, the Run fails."
    )
