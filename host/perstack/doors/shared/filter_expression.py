"""Select events by an expression, such as `.type == "completeRun" && .stepNumber > 5`.

    expression = all { "||" all }
    all        = one { "&&" one }
    one        = "!" one | "(" expression ")" | path ("==" | "!=" | "<" | "<=" | ">" | ">=") value
    path       = "." name { "[]" } { "." name { "[]" } }
    value      = "text" | 'text' | number | true | false | word

`[]` stands for the elements of a list, and a comparison holds if it holds for one of them. No comparison holds for a
field that an event lacks, not even `!=`. Only numbers are less or greater. A text has no escapes; a word is a text
without quotes.

Events can also be selected by the names and fields of the original Perstack: `ORIGINAL_TYPES`, `_original_field`.
An expression is untrusted: its length and its depth are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, assert_never, cast, get_args

from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack.core.runs.events import StoredEvent, TransientEvent
from perstack.dataclass import dataclass

MAX_CHARS = 1_000  # maximum characters of an expression
MAX_DEPTH = 50  # maximum parentheses and negations around a comparison

# Names of events in the original Perstack, by their names here. Events that no log keeps come last.
ORIGINAL_TYPES: Mapping[str, tuple[str, ...]] = {
    kind.model_fields["type"].default: kind.original_types for kind in get_args(StoredEvent | TransientEvent)
}

_ORIGINAL_FIELDS = ("toolCalls", "toolCall", "toolResult", "toolResults", "checkpoint", "reason")
"""Fields of the original's events that `_original_field` can return."""

FIELDS = frozenset(
    name
    for kind in get_args(StoredEvent)
    for key, field in kind.model_fields.items()
    for name in (key, field.alias, field.serialization_alias)
    if name is not None
) | frozenset(_ORIGINAL_FIELDS)
"""Fields that an expression may begin with."""

Operator = Literal["==", "!=", "<=", ">=", "<", ">"]
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of the values at a path with a value."""

    path: tuple[str, ...]  # names of fields; `[]` for the elements of a list
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Negation:
    """A condition that holds if its inner condition does not."""

    of: Condition


@dataclass(frozen=True, slots=True)
class Combination:
    """A condition that holds if all its parts hold (`&&`), or at least one (`||`)."""

    operator: Literal["&&", "||"]
    parts: tuple[Condition, ...]


Condition = Comparison | Negation | Combination


def types_named(texts: Iterable[str], types: Iterable[str]) -> frozenset[str]:
    """Return those of `types` that comma-separated lists name, where the original's names count too.

    Raises ValueError with the first name that is not among `types`.
    """
    known_types, selected = tuple(types), set[str]()
    for name in (name.strip() for text in texts for name in text.split(",") if name.strip()):
        matching = [kind for kind in known_types if name == kind or name in ORIGINAL_TYPES[kind]]
        if not matching:
            raise ValueError(name)
        selected.update(matching)
    return frozenset(selected)


def parse_filter(text: str) -> Condition:
    """Return the condition. Raises ValueError that names the column of the mistake."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"column {MAX_CHARS + 1}: it has more than {MAX_CHARS} characters")
    parser = _Parser(list(_tokens(text)))
    condition = parser.parse_expression(0)
    parser.expect("end", "&& or ||, or the end")
    return condition


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


_NAME = r"[A-Za-z_]\w*"
_TOKEN = re.compile(
    rf"""(?P<path>\.{_NAME}(?:\.?\[\])*(?:\.{_NAME}(?:\.?\[\])*)*)
    | (?P<compare>==|!=|<=|>=|<|>)
    | (?P<combine>&&|\|\|)
    | (?P<sign>[()!])
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<word>[@\w][\w@/.:-]*)""",
    re.VERBOSE | re.ASCII,
)


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            quote = text[position] in "\"'"
            raise ValueError(
                f"column {position + 1}: {'a quote is not closed' if quote else f'unexpected {text[position]!r}'}"
            )
        yield _Token(str(match.lastgroup), match[0], position + 1)
        position = match.end()
    yield _Token("end", "", len(text) + 1)


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0

    def expect(self, kind: str, expected: str) -> str:
        """Consume the next token and return its text. Raises ValueError if it has another kind."""
        token = self._tokens[self._position]
        if token.kind != kind:
            actual = repr(token.text[:40]) if token.kind != "end" else "the end"
            raise ValueError(f"column {token.column}: expected {expected}, found {actual}")
        self._position += 1
        return token.text

    def _accept(self, text: str) -> bool:
        token = self._tokens[self._position]
        is_next = token.text == text and token.kind in ("combine", "sign")
        self._position += is_next
        return is_next

    def parse_expression(self, depth: int) -> Condition:
        """Parse alternatives separated by `||`. Raises ValueError above the maximum depth."""
        parts = [self._parse_conjunction(depth)]
        while self._accept("||"):
            parts.append(self._parse_conjunction(depth))
        return parts[0] if len(parts) == 1 else Combination("||", tuple(parts))

    def _parse_conjunction(self, depth: int) -> Condition:
        parts = [self._parse_term(depth)]
        while self._accept("&&"):
            parts.append(self._parse_term(depth))
        return parts[0] if len(parts) == 1 else Combination("&&", tuple(parts))

    def _parse_term(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise ValueError(f"column {self._tokens[self._position].column}: more than {MAX_DEPTH} levels")
        if self._accept("!"):
            return Negation(self._parse_term(depth + 1))
        if self._accept("("):
            condition = self.parse_expression(depth + 1)
            if not self._accept(")"):
                self.expect(")", "&&, || or )")
            return condition
        path = self.expect("path", "a field such as .type")
        operator = cast("Operator", self.expect("compare", f"one of {' '.join(get_args(Operator))} after {path}"))
        names = tuple(name for name in path.replace("[]", ".[]").strip(".").split(".") if name)
        return Comparison(names, operator, self._parse_value(operator))

    def _parse_value(self, operator: str) -> Value:
        if self._tokens[self._position].kind not in ("text", "number", "word"):
            self.expect("text", f"a value after {operator}")
        token = self._tokens[self._position]
        self._position += 1
        if token.kind == "number":
            return float(token.text) if set(token.text) & set(".eE") else int(token.text)
        constants: dict[str, Value] = {"true": True, "false": False}
        return token.text[1:-1] if token.kind == "text" else constants.get(token.text, token.text)


def unknown_fields(condition: Condition) -> Iterator[str]:
    """Yield the first names of a condition's paths that no event has as a field."""
    match condition:
        case Comparison():
            if condition.path[0] not in FIELDS:
                yield condition.path[0]
        case Negation():
            yield from unknown_fields(condition.of)
        case Combination():
            for part in condition.parts:
                yield from unknown_fields(part)
        case _:
            assert_never(condition)


def matches(condition: Condition, event: JsonObject, args: Mapping[str, JsonObject]) -> bool:
    """Return whether the condition holds for an event. `args` are the arguments of its calls, by their ids."""
    match condition:
        case Comparison():
            return _is_satisfied(condition, event, args)
        case Negation():
            return not matches(condition.of, event, args)
        case Combination(operator, parts):
            combine = all if operator == "&&" else any
            return combine(matches(part, event, args) for part in parts)
        case _:
            assert_never(condition)


def _is_satisfied(comparison: Comparison, event: JsonObject, args: Mapping[str, JsonObject]) -> bool:
    name = comparison.path[0]
    value = event[name] if name in event else _original_field(name, event, args)
    if comparison.path == ("type",) and isinstance(value, str) and comparison.operator in ("==", "!="):
        return (comparison.value in (value, *ORIGINAL_TYPES.get(value, ()))) == (comparison.operator == "==")
    return any(_compare(item, comparison.operator, comparison.value) for item in _values(value, comparison.path[1:]))


def _original_field(name: str, event: JsonObject, args: Mapping[str, JsonObject]) -> JsonValue:
    """Return a field that only the original's events have; None without it."""
    match name:
        case "toolCalls":
            calls = event.get("calls", event.get("delegates"))
            return [_call(call, args) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else None
        case "toolCall" | "toolResult" if "toolCallId" in event:
            return _call(event, args)
        case "toolResults" if "contents" in event:
            return [{**_call(event, args), "result": event["contents"]}]
        case "checkpoint" if "checkpointId" in event:
            return {"id": event["checkpointId"]}
        case "reason":
            error = event.get("error")
            return error.get("message") if isinstance(error, dict) else None
        case _:
            return None


def _call(call: JsonObject, args: Mapping[str, JsonObject]) -> JsonObject:
    call_id = call.get("toolCallId", call.get("id"))
    return {**call, "id": call_id, "args": args.get(str(call_id), {})}


def _values(value: JsonValue, path: tuple[str, ...]) -> Iterator[JsonValue]:
    if not path:
        # compare a list by its elements, with or without []
        yield from value if isinstance(value, list) else [] if value is None else [value]
    elif path[0] != "[]":
        if isinstance(value, dict):
            yield from _values(value.get(path[0]), path[1:])
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, path[1:])


def _compare(actual: JsonValue, operator: Operator, value: Value) -> bool:
    """Return whether the comparison holds. A text, true and false never equal a number."""
    are_numbers = _is_number(actual) and _is_number(value)
    if operator in ("==", "!="):
        are_equal = actual == value and (are_numbers or type(actual) is type(value))
        return are_equal == (operator == "==")
    if not are_numbers:
        return False
    left, right = cast("float", actual), cast("float", value)
    match operator:
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
