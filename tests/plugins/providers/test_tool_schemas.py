"""Any schema of a tool becomes one that each vendor accepts, and arguments of calls come back by their own names."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import tool_rules
from fuzzing import scaled
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator
from tool_situations import BRANCHES, INCOMPLETE, NAMES

from perstack.core.base.usage import Usage
from perstack.core.definitions.skills import ToolSpec
from perstack.core.messages.adaptations import Adaptation
from perstack.core.messages.messages import ExpertMessage, ToolCallPart
from perstack.http_providers.argument_names import ArgumentNames, NameRule
from perstack.http_providers.schema_document import SchemaDocument
from perstack.http_providers.schema_rules import CONVERSE, GENERATE_CONTENT, MESSAGES, OPENAI, PLAIN, SchemaRules
from perstack.http_providers.schema_writer import MAX_SUBSCHEMAS
from perstack.http_providers.tool_schemas import wire_schema
from perstack.http_providers.wire_tools import WireTool, WireTools
from perstack.ports.provider import Generation

FORMATS = (
    (MESSAGES, tool_rules.messages),
    (OPENAI, tool_rules.openai),
    (GENERATE_CONTENT, tool_rules.google),
    (CONVERSE, tool_rules.converse),
)
every_format = pytest.mark.parametrize(("rules", "refusal"), FORMATS, ids=[rules.name for rules, _ in FORMATS])
SITUATIONS = {**BRANCHES, **INCOMPLETE, **NAMES}


def tool_of(schema: Any, rules: SchemaRules = MESSAGES, **adaptations: Any) -> WireTool:
    return WireTools([ToolSpec(name="t", description="Do it.", input_schema=schema)], rules, **adaptations).listed[0]


def written(schema: Any, rules: SchemaRules) -> Any:
    document = SchemaDocument(schema)
    return wire_schema(document, ArgumentNames(document, rules.argument_names), rules)[0]


# Schemas of all kinds, valid or not.

NAME = st.sampled_from(("a", "b", "$filter", "uids[]", "uids{}", "uids", "伝票", "x" * 70, "", "$ref", "properties"))
DATA = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(("", "a", "object", "array", "$filter"))),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAME, inner, max_size=2),
    max_leaves=4,
)
REFERENCE = st.sampled_from(("#", "#/$defs/a", "#/definitions/b", "#/properties/a", "#anchor", "#/nowhere", "x#/a"))
TYPE = st.sampled_from(("object", "array", "string", "number", "null", "objekt", ["object", "null"], ["array", 5], []))


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    table = st.dictionaries(NAME, inner, max_size=3)
    some = st.lists(inner, max_size=3)
    names = st.lists(NAME, max_size=3)
    values: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPE,
        **dict.fromkeys(("properties", "$defs", "definitions", "dependentSchemas"), table | DATA),
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), some | DATA),
        **dict.fromkeys(("items", "not", "if", "then", "additionalProperties", "contains"), inner | DATA),
        "patternProperties": st.dictionaries(st.sampled_from(("^a", "b", "[")), inner, max_size=2),
        "pattern": st.sampled_from(("^a", "[", "(?<year>[0-9]+)")),
        "required": names | DATA,
        "dependencies": st.dictionaries(NAME, names | inner, max_size=2),
        "$ref": REFERENCE,
        "enum": st.lists(DATA, max_size=3),
        **dict.fromkeys(("const", "default", "nullable", "format", "minimum", "exclusiveMinimum"), DATA),
        "$anchor": st.just("anchor"),
        **dict.fromkeys(("$schema", "$id", "description", "minItems", "uniqueItems", "x-odd"), DATA),
    }
    # a list of pairs is drawn in a fraction of the time of a dictionary with that many optional keys
    often = ("properties", "anyOf", "oneOf", "allOf", "$ref", "type")
    keywords = (*values, *often, *often, "properties")
    pairs = st.one_of(*(st.tuples(st.just(keyword), values[keyword]) for keyword in keywords))
    return st.lists(pairs, max_size=12).map(dict)


SUBSCHEMA = st.recursive(st.booleans() | TYPE.map(lambda kind: {"type": kind}), _keywords, max_leaves=8)
SCHEMA = _keywords(SUBSCHEMA)


# an example costs more than its checks, so each is written for all formats
EXAMPLES = scaled(60)


@given(schema=SCHEMA)
@settings(max_examples=EXAMPLES)
def test_any_schema_becomes_one_that_the_vendor_accepts(schema: Any) -> None:
    for rules, refusal in FORMATS:
        found = written(schema, rules)
        assert refusal(found or None) is None, (rules.name, found)


@every_format
@pytest.mark.parametrize("schema", SITUATIONS.values(), ids=SITUATIONS)
def test_known_deviations_become_what_the_vendor_accepts(rules: SchemaRules, refusal: Any, schema: Any) -> None:
    assert refusal(written(schema, rules) or None) is None


@given(schema=SCHEMA, args=st.dictionaries(NAME, DATA, max_size=3))
@settings(max_examples=EXAMPLES)
def test_arguments_that_a_tool_takes_fit_its_adapted_schema(schema: Any, args: Any) -> None:
    try:
        is_taken = tool_rules.METASCHEMA.is_valid(schema) and Draft202012Validator(schema).is_valid(args)
    except Exception:  # noqa: BLE001 - a schema that nothing can be checked against
        return
    for rules in (MESSAGES, OPENAI, CONVERSE, PLAIN) if is_taken else ():
        document = SchemaDocument(schema)
        names = ArgumentNames(document, rules.argument_names)
        found = wire_schema(document, names, rules)[0]
        errors = list(Draft202012Validator(found).iter_errors(names.to_wire(args)))
        assert not errors, (rules.name, found, errors)


@given(schema=SCHEMA, args=st.dictionaries(NAME, DATA, max_size=4))
@settings(max_examples=EXAMPLES)
def test_names_come_back_exactly(schema: Any, args: Any) -> None:
    for rules, _ in FORMATS:
        names = ArgumentNames(SchemaDocument(schema), rules.argument_names)
        if any(json.dumps(substitute) in json.dumps(args) for _, substitute in names.changes):
            continue  # a call with an undeclared name that is a substitute means the declared one
        sent = names.to_wire(args)
        assert names.from_wire(sent) == args
        assert list(names.from_wire(sent)) == list(args), "in their order"
        substitutes = [substitute for _, substitute in names.changes]
        assert len(substitutes) == len(set(substitutes))
        declared = schema.get("properties")
        assert not set(substitutes) & set(declared if isinstance(declared, dict) else ())


def test_a_good_schema_is_sent_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "where", "minLength": 1},
            "lines": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
            "more": {"anyOf": [{"$ref": "#/$defs/More"}, {"type": "null"}], "default": None},
        },
        "required": ["path"],
        "additionalProperties": False,
        "$defs": {"More": {"type": "object", "properties": {"a": {"const": 1}}}},
    }
    for rules in (MESSAGES, OPENAI):
        assert json.dumps(tool_of(schema, rules).schema) == json.dumps(schema)
        assert tool_of(schema, rules).description == "Do it."


def test_alternatives_at_the_root_are_told_before_the_description() -> None:
    tool = tool_of(
        {
            "oneOf": [
                {"properties": {"kind": {"const": "file"}, "path[]": {}}, "required": ["kind", "path[]"]},
                {"properties": {"kind": {"const": "page"}, "url": {}}, "required": ["kind", "url"]},
            ]
        }
    )
    assert tool.description == (
        "Input constraint: give exactly one of these sets of arguments:"
        ' (1) kind = "file", path; (2) kind = "page", url.\nDo it.'
    )
    assert tool.schema["properties"]["kind"] == {"enum": ["file", "page"]}
    assert tool.schema["required"] == ["kind"]


def test_names_that_become_alike_stay_apart() -> None:
    names = ["a[]", "a{}", "a", "a_2", "伝票", "票", "y" * 70, "y" * 71]
    tool = tool_of({"type": "object", "properties": {name: {} for name in names}})
    renamed = [tool.arguments.on_wire(name) for name in names]
    assert renamed == ["a_3", "a_4", "a", "a_2", "argument", "argument_2", "y" * 64, "y" * 62 + "_2"]
    assert list(tool.schema["properties"]) == renamed
    assert tool.schema["properties"]["argument"]["description"] == "The argument `伝票`."


def test_names_are_mapped_where_the_schema_declares_them_and_nowhere_else() -> None:
    node = {"type": "object", "properties": {"@id": {}, "next": {"$ref": "#/$defs/node"}, "data": {"type": "object"}}}
    tool = tool_of({"properties": {"all[]": {"items": {"$ref": "#/$defs/node"}}}, "$defs": {"node": node}})
    call = {"all": [{"id": 1, "next": {"id": 2}, "data": {"id": 3, "all": 4}}]}
    own = {"all[]": [{"@id": 1, "next": {"@id": 2}, "data": {"id": 3, "all": 4}}]}
    assert tool.arguments.from_wire(call) == own
    assert tool.arguments.to_wire(own) == call
    assert tool.arguments.from_wire(own) == own, "a model may know the true name"
    both = {"all[]": [], "all": 1}
    assert tool.arguments.to_wire(both) == {"all": [], "all[]": 1}, "nothing is lost where both are there"
    assert tool.arguments.from_wire(tool.arguments.to_wire(both)) == both


def test_values_in_a_schema_have_the_names_that_the_model_sees() -> None:
    inner = {"type": "object", "properties": {"$gt": {}}, "default": {"$gt": 1}, "examples": [{"$gt": 2, "$lt": 3}]}
    schema = tool_of({"type": "object", "properties": {"where": inner}}).schema["properties"]["where"]
    assert (schema["default"], schema["examples"]) == ({"gt": 1}, [{"gt": 2, "$lt": 3}])


def test_what_a_format_lacks_is_told_in_the_description() -> None:
    inner = {"type": "string", "description": "A page.", "format": "uri", "maxLength": 9, "enum": ["a", None]}
    schema = tool_of({"type": "object", "properties": {"page": inner}}, GENERATE_CONTENT).schema
    words = 'A page. (format: "uri", maxLength: 9, enum: ["a",null])'
    assert schema["properties"]["page"] == {"type": "string", "description": words}


def test_a_pattern_that_vendors_cannot_compile_is_told_in_the_description() -> None:
    odd = {"type": "string", "pattern": r"^\p{L}+$"}
    tables = {"type": "object", "patternProperties": {"[": {}}, "additionalProperties": False}
    schema = tool_of(
        {"type": "object", "properties": {"odd": odd, "map": tables, "good": {"pattern": "^a(?=b)"}}}
    ).schema
    properties = schema["properties"]
    assert properties["odd"] == {"type": "string", "description": r'(pattern: "^\\p{L}+$")'}
    assert properties["map"] == {"type": "object"}, "else it would take no key at all"
    assert properties["good"] == {"pattern": "^a(?=b)"}


def test_a_tools_own_name_is_in_the_reply_and_the_models_in_the_request() -> None:
    specs = [ToolSpec(name=name, input_schema={"properties": {"a b": {}}}) for name in ("1st", "_1st", "plain")]
    tools = WireTools(specs, GENERATE_CONTENT)
    sent = [tool.name for tool in tools.listed]
    assert len(set(sent)) == 3
    assert sent[1:] == ["_1st", "plain"]
    call = ToolCallPart(tool_call_id="c", tool_name=sent[0], args={"a_b": 1})
    unknown = ToolCallPart(tool_call_id="d", tool_name="9 lives", args={"a_b": 1})
    reply = tools.restored(Generation(ExpertMessage(contents=(call, unknown)), Usage(), "toolCalls")).reply
    assert [(part.tool_name, part.args) for part in reply.tool_calls] == [("1st", {"a b": 1}), ("9 lives", {"a_b": 1})]
    assert tools.name("9 lives") == "_9_lives"
    assert tools.arguments(reply.tool_calls[0]) == {"a_b": 1}
    raw = ToolCallPart(tool_call_id="e", tool_name="1st", raw_args="{")
    assert tools.arguments(raw) == {"unparsed": "{"}


@every_format
@pytest.mark.parametrize("schema", SITUATIONS.values(), ids=SITUATIONS)
def test_the_plainest_form_takes_any_object_and_has_the_schema_as_text(
    rules: SchemaRules, refusal: Any, schema: Any
) -> None:
    tool = tool_of(schema, rules, adaptations=(Adaptation(part="tool", form="plain", name="t"),))
    assert tool.schema == {"type": "object", "properties": {}, "additionalProperties": True}
    assert tool.description.startswith("Do it.\n")
    assert not tool.arguments.changes, "the text has the true names"


# A public suite of schemas, with data that fits them, if its folder is named.


SUITE = sorted(Path(os.environ.get("PERSTACK_JSON_SCHEMA_SUITE", "nowhere")).rglob("*.json"))


@pytest.mark.skipif(not SUITE, reason="PERSTACK_JSON_SCHEMA_SUITE names no checkout of JSON-Schema-Test-Suite/tests")
def test_each_schema_of_a_suite_becomes_what_vendors_accept() -> None:
    for path in SUITE:
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            below = {"type": "object", "properties": {"value": schema}}
            for rules, refusal in FORMATS:
                for one in (below, schema) if isinstance(schema, dict) else (below,):
                    assert refusal(written(one, rules) or None) is None, (path, group["description"], rules.name)


REQUIRED_BUT_UNDECLARED = {"required": ["a b"]}
EVALUATED_IN_A_BRANCH = {"allOf": [{"unevaluatedProperties": True}], "unevaluatedProperties": False}


@pytest.mark.parametrize("schema", [REQUIRED_BUT_UNDECLARED, EVALUATED_IN_A_BRANCH])
@pytest.mark.parametrize("rules", [MESSAGES, OPENAI, CONVERSE], ids=lambda rules: rules.name)
def test_the_adapted_schema_demands_no_more(rules: SchemaRules, schema: Any) -> None:
    tool = tool_of(schema, rules)
    args = {"a b": 1}
    assert Draft202012Validator(tool.schema).is_valid(tool.arguments.to_wire(args))
    assert tool.arguments.from_wire(tool.arguments.to_wire(args)) == args


# Bounds.


def _deep(levels: int, **around: Any) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema, **around}
    return schema


def _wide(count: int) -> Any:
    node = {"type": "object", "properties": {f"p{number}": {"$ref": "#/$defs/node"} for number in range(count)}}
    return {"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}


def _nested_branches(levels: int) -> Any:
    schema: Any = {"required": ["a"]}
    for number in range(levels):
        schema = {("allOf", "anyOf", "oneOf")[number % 3]: [schema, {"properties": {f"p{number}": {}}}]}
    return schema


def _fibonacci(count: int) -> Any:
    definitions = {
        f"d{number}": {"properties": {"l": {"$ref": f"#/$defs/d{number + 1}"}, "r": {"$ref": f"#/$defs/d{number + 1}"}}}
        for number in range(count)
    }
    return {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


MONSTERS = {
    "deep": {"type": "object", "properties": {"x": _deep(10_000)}},
    "deep default": {"type": "object", "properties": {"x": {"default": _deep(10_000)}}},
    "deep root": _nested_branches(10_000),
    "wide": _wide(2_000),
    "exponential": _fibonacci(40),
    "cyclic root": {"$ref": "#"},
    "cyclic branches": {"anyOf": [{"$ref": "#"}] * 2_000 + [{"allOf": [{"$ref": "#"}]}] * 2_000},
    "many names": {"type": "object", "properties": {chr(0x4E00 + number): {} for number in range(5_000)}},
    "many branches": {"anyOf": [{"properties": {f"p{n}": {}}, "required": [f"p{n}"]} for n in range(5_000)]},
    "huge bounds": {
        "type": "object",
        "properties": {"x": {"type": "integer", "maximum": 10**400, "minLength": 10**400}},
    },
    "many values": {"enum": [{"a": number} for number in range(5_000)]},
}


@every_format
@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_are_written_in_bounded_size_and_time(rules: SchemaRules, refusal: Any, name: str) -> None:
    began = time.process_time()
    document = SchemaDocument(MONSTERS[name])
    names = ArgumentNames(document, rules.argument_names)
    found, sentences = wire_schema(document, names, rules)
    assert time.process_time() - began < 10
    assert len(json.dumps(found)) < MAX_SUBSCHEMAS * 200
    assert sum(map(len, sentences)) < 10_000
    if len(json.dumps(found)) < 50_000:  # the check against the metaschema takes seconds for more
        assert refusal(found or None) is None
    assert names.from_wire({"x": [{"p0": 1}]}) == {"x": [{"p0": 1}]}


def test_arguments_of_any_depth_are_mapped_or_left() -> None:
    names = ArgumentNames(SchemaDocument({"properties": {"a b": {"items": {"$ref": "#"}}}}), MESSAGES.argument_names)
    args: Any = {"a b": []}
    for _ in range(10_000):
        args = {"a b": [args]}
    assert names.to_wire(args) is args


@given(name=st.text(max_size=80), taken=st.sets(st.sampled_from(("a", "a_2", "argument", "x" * 64))))
@example("\ud800", set())
@pytest.mark.parametrize("rule", [MESSAGES.argument_names, GENERATE_CONTENT.argument_names, CONVERSE.tool_names])
def test_the_nearest_name_is_legal_and_free(rule: NameRule, name: str, taken: set[str]) -> None:
    found = rule.nearest(name, taken, "argument")
    assert rule.accepts(found)
    assert found not in taken
