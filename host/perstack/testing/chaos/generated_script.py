"""Generate a script for Experts from their tools: each tool is called once, with arguments that fit its schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.skills import ToolSpec
from perstack.testing.scripted import Cost, Part, Script, ToolUse, Turn

_COST = Cost(input_tokens=10, output_tokens=1)
_DEEPEST = 8
_TEXT = "chaos"


def script_for(tools: Iterable[tuple[Expert, Sequence[ToolSpec]]]) -> Script:
    """Return the script: for each Expert a turn per tool, one with all tools, one with all delegates, then a text."""
    return Script(experts={expert.key: Part(turns=_turns(specs)) for expert, specs in tools})


def _turns(specs: Sequence[ToolSpec]) -> tuple[Turn, ...]:
    ordinary = [spec for spec in specs if spec.kind == "tool"]
    delegates = [spec for spec in specs if spec.kind == "delegate"]
    questions = [spec for spec in specs if spec.kind == "interactive"]
    groups = [*([spec] for spec in ordinary), ordinary, delegates, questions]
    spoken = [Turn(tools=tuple(_use(spec) for spec in group), usage=_COST) for group in groups if group]
    return (*spoken, Turn(text="done", usage=_COST))


def _use(spec: ToolSpec) -> ToolUse:
    value = sample(spec.input_schema)
    return ToolUse(name=spec.name, input=value if isinstance(value, dict) else {})


def sample(schema: JsonValue, depth: int = 0) -> JsonValue:
    """Return a small value that fits a JSON schema, judging by `type`, `enum`, `const`, `default` and `required`."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return _TEXT
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(values := schema.get(key), list) and values:
            return values[0]
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list) and choices:
            return sample(choices[0], depth + 1)
    return _of_type(schema, depth)


def _of_type(schema: JsonObject, depth: int) -> JsonValue:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0] if kind else "string"
    if kind == "object":
        return _object(schema, depth)
    if kind == "array":
        least = schema.get("minItems")
        return [sample(schema.get("items"), depth + 1)] * (least if isinstance(least, int) else 1)
    if kind in ("integer", "number"):
        least = schema.get("minimum")
        return least if isinstance(least, int | float) else 1
    return {"boolean": False, "null": None}.get(str(kind), _TEXT)


def _object(schema: JsonObject, depth: int) -> JsonObject:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return {}
    return {str(name): sample(properties.get(str(name)), depth + 1) for name in required}
