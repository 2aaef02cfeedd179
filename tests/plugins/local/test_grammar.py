"""The grammar of tool calls, held to a small reader of GBNF: what it lets through, and what it must let through."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache

import jsonschema
import pytest
from fuzzing import scaled
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from perstack.core.base.records import JsonObject
from perstack_local.grammar import grammar_of, json_text


@dataclass(frozen=True)
class Literal:
    text: str


@dataclass(frozen=True)
class Class:
    negated: bool
    ranges: tuple[tuple[str, str], ...]

    def has(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


@dataclass(frozen=True)
class Ref:
    name: str


@dataclass(frozen=True)
class Seq:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Alt:
    choices: tuple[Node, ...]


@dataclass(frozen=True)
class Rep:
    item: Node
    low: int
    high: int | None


Node = Literal | Class | Ref | Seq | Alt | Rep

_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[a-z][a-z0-9-]*|[()|*+?]|\{\d+,\d*\})')
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Grammar:
    """Reads the GBNF that llama.cpp reads, as far as the code under test writes it."""

    def __init__(self, text: str) -> None:
        rules = dict(line.split(" ::= ", 1) for line in text.rstrip("\n").split("\n"))
        self.rules = {name: _Reader(body).alternatives() for name, body in rules.items()}

    def accepts(self, text: str) -> bool:
        return len(text) in _Matcher(self, text).ends(Ref("root"), 0)

    def heights(self) -> dict[str, int]:
        """How many rules deep the shallowest sentence of each rule is."""
        found: dict[str, int] = {}
        while True:
            known = {n: h for n, node in self.rules.items() if (h := height(node, found)) is not None}
            if known == found:
                return found
            found = known

    def begins_with_itself(self) -> bool:
        firsts = {name: _firsts(node) for name, node in self.rules.items()}
        for _ in firsts:
            firsts = {name: refs.union(*(firsts[ref] for ref in refs)) for name, refs in firsts.items()}
        return any(name in refs for name, refs in firsts.items())


class _Reader:
    def __init__(self, body: str) -> None:
        self._tokens = _TOKEN.findall(body)
        assert "".join(self._tokens) == re.sub(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|\s+', r"\1", body)

    def alternatives(self) -> Node:
        choices = [self._sequence()]
        while self._tokens and self._tokens[0] == "|":
            self._tokens.pop(0)
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else Alt(tuple(choices))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self._tokens and self._tokens[0] not in ("|", ")"):
            items.append(self._item())
        return Seq(tuple(items))

    def _item(self) -> Node:
        token = self._tokens.pop(0)
        node: Node
        if token == "(":
            node = self.alternatives()
            assert self._tokens.pop(0) == ")"
        elif token[0] == '"':
            node = Literal(_unescaped(token[1:-1]))
        elif token[0] == "[":
            node = _class(token[1:-1])
        else:
            node = Ref(token)
        while self._tokens and (self._tokens[0] in _REPEATS or self._tokens[0][0] == "{"):
            sign = self._tokens.pop(0)
            low, high = _REPEATS.get(sign) or _bounds(sign)
            node = Rep(node, low, high)
        return node


def _bounds(sign: str) -> tuple[int, int | None]:
    low, high = sign[1:-1].split(",")
    return int(low), int(high) if high else None


def _unescaped(text: str) -> str:
    def decoded_escape(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if code[0] == "x" else {"n": "\n", "r": "\r"}.get(code, code)

    return re.sub(r"\\(x[0-9A-F]{2}|.)", decoded_escape, text)


def _class(text: str) -> Class:
    negated = text.startswith("^")
    body = _unescaped(text.removeprefix("^").replace("\\x00-\\x1F", "\x00\\-\x1f"))
    ranges = [(m[1], m[2]) if m[2] else (m[3], m[3]) for m in re.finditer(r"(?s)(.)-(.)|(.)", body)]
    return Class(negated, tuple(ranges))


class _Matcher:
    def __init__(self, grammar: Grammar, text: str) -> None:
        self._grammar, self._text = grammar, text
        self.ends = cache(self._end_positions)

    def _end_positions(self, node: Node, at: int) -> frozenset[int]:
        match node:
            case Literal(text):
                return frozenset({at + len(text)} if self._text.startswith(text, at) else ())
            case Class():
                return frozenset({at + 1} if at < len(self._text) and node.has(self._text[at]) else ())
            case Ref(name):
                return self.ends(self._grammar.rules[name], at)
            case Alt(choices):
                return frozenset().union(*(self.ends(choice, at) for choice in choices))
            case Seq(items):
                places = frozenset({at})
                for item in items:
                    places = frozenset().union(*(self.ends(item, place) for place in places))
                return places
            case Rep(item, low, high):
                return self._repeats(item, low, high, at)

    def _repeats(self, item: Node, low: int, high: int | None, at: int) -> frozenset[int]:
        found: set[int] = {at} if low == 0 else set()
        places, count = frozenset({at}), 0
        while places and (high is None or count < high):
            places, count = frozenset().union(*(self.ends(item, place) for place in places)) - found, count + 1
            if count >= low:
                found |= places
        return frozenset(found)


def height(node: Node, known: dict[str, int]) -> int | None:
    match node:
        case Ref(name):
            return known[name] + 1 if name in known else None
        case Alt(choices):
            return min((h for c in choices if (h := height(c, known)) is not None), default=None)
        case Seq(items):
            heights = [height(item, known) for item in items]
            return None if None in heights else max((h for h in heights if h is not None), default=0)
        case Rep(item, low, _):
            return height(item, known) if low else 0
        case _:
            return 0


def _firsts(node: Node) -> set[str]:
    """The rules that a node may begin with."""
    match node:
        case Ref(name):
            return {name}
        case Alt(choices):
            return set().union(*(_firsts(choice) for choice in choices))
        case Rep(item, _, _):
            return _firsts(item)
        case Seq(items):
            found: set[str] = set()
            for item in items:
                found |= _firsts(item)
                if not (isinstance(item, Rep) and item.low == 0) and item != Literal(""):
                    break
            return found
        case _:
            return set()


@st.composite
def sentences(draw: st.DrawFn, grammar: Grammar) -> str:
    """Any sentence of a grammar; below a depth, only the shortest ways to an end."""
    heights = grammar.heights()

    def derive(node: Node, depth: int) -> str:
        match node:
            case Literal(text):
                return text
            case Class(negated, ranges):
                if negated:
                    return draw(st.characters(codec="utf-8").filter(node.has))
                low, high = draw(st.sampled_from(ranges))
                return draw(st.characters(min_codepoint=ord(low), max_codepoint=ord(high)))
            case Ref(name):
                return derive(grammar.rules[name], depth + 1)
            case Alt(choices):
                finite = [choice for choice in choices if height(choice, heights) is not None]
                flat = [choice for choice in finite if height(choice, heights) == height(node, heights)]
                return derive(draw(st.sampled_from(finite if depth < 12 else flat)), depth)
            case Seq(items):
                return "".join(derive(item, depth) for item in items)
            case Rep(item, low, high):
                shortest = depth >= 12 or height(item, heights) is None
                most = low if shortest else low + 2 if high is None else min(high, low + 2)
                return "".join(derive(item, depth) for _ in range(draw(st.integers(low, most))))

    return derive(Ref("root"), 0)


_NAMES = st.sampled_from(["path", "text", "from", "a b", 'quo"te', "back\\slash", "ü"])
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-1000, 1000), st.text(st.characters(codec="utf-8"), max_size=5)
)


def _leaf_schemas() -> st.SearchStrategy[JsonObject]:
    return st.one_of(
        st.sampled_from(
            [
                {"type": "string"},
                {"type": "string", "minLength": 1},
                {"type": "integer"},
                {"type": "integer", "minimum": 0},
                {"type": "number"},
                {"type": "boolean"},
                {"type": "null"},
                {"type": ["string", "integer"]},
                {"type": "object"},
                {"type": "array"},
                {},
            ]
        ),
        st.lists(_SCALARS, min_size=1, max_size=3).map(lambda values: {"enum": values}),
        _SCALARS.map(lambda value: {"const": value}),
    )


def _nested(inner: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    arrays = st.builds(
        lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    maps = inner.map(lambda values: {"type": "object", "additionalProperties": values})
    choices = st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found})
    return st.one_of(arrays, maps, choices, object_schemas(inner))


def object_schemas(inner: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    properties = st.dictionaries(_NAMES, inner, min_size=1, max_size=4)
    return properties.flatmap(
        lambda found: st.lists(st.sampled_from(sorted(found)), unique=True).map(
            lambda required: {
                "type": "object",
                "properties": found,
                "required": required,
                "additionalProperties": False,
            }
        )
    )


_SCHEMAS = object_schemas(st.recursive(_leaf_schemas(), _nested, max_leaves=6))


def instances(schema: JsonObject) -> st.SearchStrategy[JsonValue]:
    """Values that a schema of these tests takes, with properties in its order."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])  # type: ignore[arg-type]
    if "const" in schema:
        return st.just(schema["const"])
    if "anyOf" in schema:
        return st.one_of([instances(choice) for choice in schema["anyOf"]])  # type: ignore[union-attr, arg-type]
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of([instances({**schema, "type": one}) for one in kind])
    texts = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"))
    values: st.SearchStrategy[JsonValue] = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), texts)
    match kind:
        case "object" if "properties" in schema:
            return _object_instances(schema)
        case "object":
            extra = schema.get("additionalProperties")
            return st.dictionaries(texts, instances(extra) if isinstance(extra, dict) else values, max_size=3)
        case "array":
            items = instances(schema["items"]) if "items" in schema else values  # type: ignore[arg-type]
            return st.lists(items, min_size=schema.get("minItems", 0), max_size=schema.get("maxItems", 3))  # type: ignore[arg-type]
        case "string":
            return texts.filter(bool) if schema.get("minLength") else texts
        case "integer":
            return st.integers(int(schema.get("minimum", -(10**14))), 10**14)  # type: ignore[arg-type]
        case "number":
            return st.one_of(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6).map(lambda n: n / 64))
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case _:
            return values


def _object_instances(schema: JsonObject) -> st.SearchStrategy[JsonValue]:
    members = {name: instances(member) for name, member in schema["properties"].items()}  # type: ignore[union-attr]
    required = schema["required"]
    needed = {name: value for name, value in members.items() if name in required}  # type: ignore[operator]
    optional = {name: value for name, value in members.items() if name not in needed}
    mixed = st.fixed_dictionaries(needed, optional=optional)
    return mixed.map(lambda found: {name: found[name] for name in members if name in found})


_SLOW = settings(
    max_examples=scaled(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@_SLOW
@given(data=st.data(), schema=_SCHEMAS)
def test_every_sentence_is_a_call_whose_arguments_fit_the_schema(data: st.DataObject, schema: JsonObject) -> None:
    grammar = Grammar(grammar_of([("use", schema), ("other", {"type": "object"})]))
    call = json.loads(data.draw(sentences(grammar)))
    assert list(call) == ["tool", "args"]
    assert call["tool"] in ("use", "other")
    json_text(call).encode()
    if call["tool"] == "use":
        jsonschema.validate(call["args"], schema)


@_SLOW
@given(data=st.data(), schema=_SCHEMAS)
def test_every_call_that_fits_the_schema_is_a_sentence(data: st.DataObject, schema: JsonObject) -> None:
    args = data.draw(instances(schema))
    grammar = Grammar(grammar_of([("use", schema)]))
    assert grammar.accepts(json_text({"tool": "use", "args": args}))


_REFERENCES = st.sampled_from(["#/$defs/a", "#/$defs/b", "#/$defs/none", "#", "other.json"]).map(
    lambda ref: {"$ref": ref}
)
_TANGLED = st.recursive(_REFERENCES | _leaf_schemas(), _nested, max_leaves=5)


@_SLOW
@given(data=st.data(), a=_TANGLED, b=_TANGLED)
def test_schemas_that_refer_to_each_other_in_any_way_make_a_grammar_that_never_begins_with_itself(
    data: st.DataObject, a: JsonObject, b: JsonObject
) -> None:
    schema: JsonObject = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": a, "b": b}}
    grammar = Grammar(grammar_of([("use", schema)]))
    assert not grammar.begins_with_itself()
    # a schema that requires itself within itself has no finite value, and so the grammar no sentence
    assume("root" in grammar.heights())
    assert json.loads(data.draw(sentences(grammar)))["tool"] == "use"


WRITE: JsonObject = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "mode": {"enum": ["new", "any"]}},
    "required": ["path", "text"],
}


@pytest.mark.parametrize(
    ("args", "taken"),
    [
        ('{"path": "a.md", "text": "x"}', True),
        ('{"path": "a.md", "text": "line\\nline \\"quoted\\" \\u00e9 😀", "mode": "any"}', True),
        ('{"path": "a.md"}', False),
        ('{"path": "a.md", "text": 1}', False),
        ('{"path": "a.md", "text": "x", "mode": "old"}', False),
        ('{"path": "a.md", "text": "x", "more": 1}', False),
        ('{"path": "a.md", "text": "two\nlines"}', False),
        ('{"path": "a.md", "text": "\\ud83d"}', False),
        ('{"path": "a.md", "text": "x"', False),
        ("{}", False),
    ],
)
def test_a_call_needs_what_is_required_in_the_right_types(args: str, taken: bool) -> None:
    grammar = Grammar(grammar_of([("writeTextFile", WRITE)]))
    assert grammar.accepts(f'{{"tool": "writeTextFile", "args": {args}}}') is taken


def test_only_the_tools_that_are_offered_can_be_called() -> None:
    grammar = Grammar(grammar_of([("writeTextFile", WRITE), ("done", {"type": "object", "properties": {}})]))
    assert grammar.accepts('{"tool": "done", "args": {}}')
    assert not grammar.accepts('{"tool": "exec", "args": {}}')
    assert not grammar.accepts('{"tool": "done", "args": {}} and more')


def test_a_tree_may_hold_trees() -> None:
    node: JsonObject = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["name"],
    }
    schema: JsonObject = {
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {"node": node},
    }
    tree = '{"name": "a", "children": [{"name": "b", "children": []}, {"name": "c"}]}'
    grammar = Grammar(grammar_of([("grow", schema)]))
    assert grammar.accepts(f'{{"tool": "grow", "args": {{"tree": {tree}}}}}')
    assert not grammar.accepts('{"tool": "grow", "args": {"tree": {"children": []}}}')


@pytest.mark.parametrize(
    "schema",
    [{"not": {"type": "string"}}, {"if": {}, "then": {}}, {"type": "unheard-of"}, {"$ref": "https://a.example/b"}],
)
def test_what_is_not_understood_becomes_any_json(schema: JsonObject) -> None:
    grammar = Grammar(grammar_of([("use", {"properties": {"x": schema}, "required": ["x"]})]))
    for value in ("1", '"s"', '{"a": [true, null]}', "[]"):
        assert grammar.accepts(f'{{"tool": "use", "args": {{"x": {value}}}}}')


def test_the_same_tools_give_the_same_grammar() -> None:
    assert grammar_of([("w", WRITE)]) == grammar_of([("w", WRITE)])


def test_no_tools_make_no_grammar() -> None:
    with pytest.raises(ValueError, match="at least one tool"):
        grammar_of([])
