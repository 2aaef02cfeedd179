"""Checks against schemas of strangers: the same answers as the library's, and always an end."""

from __future__ import annotations

import gzip
import json
import time
import warnings
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from fuzzing import scaled
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for
from referencing import Registry

from perstack.core.schemas.json_schema import (
    FULL_STEPS,
    QUICK_STEPS,
    Checker,
    Meter,
    Violation,
    schema_problem,
    unchecked_parts,
)
from perstack.core.schemas.patterns import compile_pattern

EVIL = "^(a+)+$"
WORD = "a" * 40 + "!"


def violation(schema: dict, value: object, steps: int = FULL_STEPS) -> Violation | None:
    return Checker(schema).violation(value, Meter(steps))  # type: ignore[arg-type]


def nested(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels):
        value = {"a": value}
    return value


DOUBLING = {
    "$defs": {**{f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}, "d40": {}},
    "$ref": "#/$defs/d0",
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {"pattern": EVIL}}}, {"a": WORD}),
        ({"patternProperties": {EVIL: {}}, "additionalProperties": False}, {WORD: 1}),
        ({"propertyNames": {"pattern": EVIL}}, {WORD: 1}),
        (
            {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": EVIL}}},
            {"a": WORD},
        ),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "pattern": EVIL}, WORD),
    ],
)
def test_a_pattern_made_to_take_for_ever_is_matched_at_once(schema: dict, value: object) -> None:
    began = time.monotonic()
    found = violation(schema, value, QUICK_STEPS)
    assert found is not None
    assert not found.is_unfinished
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (DOUBLING, {}),
        ({"$ref": "#"}, {}),
        ({"anyOf": [{"type": "string"}] * 1000}, [["x" * 1000] * 1000] * 10),
        ({"items": {"enum": [[0] * 1000 + [i] for i in range(1000)]}}, [[0] * 1001] * 1000),
        ({"uniqueItems": True}, [{"a": i} for i in range(200_000)]),
        ({"pattern": "(x+x+)+y(.{0,900}){1}z"}, "x" * 10_000_000),
        ({"$anchor": "x", "items": {"$ref": "#x"}, "$defs": {str(i): {} for i in range(1000)}}, [1] * 100_000),
    ],
)
def test_what_would_take_for_ever_is_given_up_and_is_no_pass(schema: dict, value: object) -> None:
    found = violation(schema, value, 20_000)
    assert found is not None
    assert found.is_unfinished


def test_a_list_of_unique_things_is_checked_in_time_that_grows_with_it() -> None:
    assert violation({"uniqueItems": True}, [{"a": i} for i in range(50_000)]) is None


def test_deep_values_are_refused_and_deep_enough_ones_are_not() -> None:
    assert violation({"type": "object"}, nested(90)) is None
    assert violation({"type": "object"}, nested(5_000)) == Violation("more than 100 levels deep")


def test_a_reference_to_elsewhere_is_never_fetched() -> None:
    found = violation({"$ref": "http://127.0.0.1:9/schema.json"}, {})
    assert found is not None
    assert "which is not in it" in found.message


@pytest.mark.parametrize(
    "schema",
    [
        {"required": 5},
        {"multipleOf": 0},
        {"pattern": 5},
        {"properties": []},
        {"$ref": 5},
        {"minLength": "x"},
        {"$schema": "\ud800", "pattern": "\ud800"},
    ],
)
def test_no_schema_makes_a_check_raise(schema: dict) -> None:
    for value in ({}, 5, "\ud800", [10**400]):
        found = violation(schema, value)
        assert found is None or len(found.message.splitlines()) == 1
    problem = schema_problem(schema, Meter(FULL_STEPS))
    assert problem is None or len(problem.splitlines()) == 1
    assert all(len(one.splitlines()) == 1 for one in unchecked_parts(schema))


def test_a_message_shows_the_beginning_and_the_end_of_what_is_wrong() -> None:
    found = violation({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 100_000})
    assert found is not None
    assert (found.place, len(found.message) < 700) == ("a", True)
    assert found.message.endswith("' is not of type 'integer'")


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        (r"^\u0041\u{42}$", "AB", True),
        (r"^\ud83d\ude00$", "\U0001f600", True),
        (r"^\d+$", "12\n", False),
        (r"^\d+$", "٣", False),
        (r"^[\w.-]+\/x$", "a.b/x", True),
        (r"b", "abc", True),
        (r"\\u0041", r"\u0041", True),
    ],
)
def test_patterns_mean_what_json_schema_says(pattern: str, text: str, fits: bool) -> None:
    assert (violation({"pattern": pattern}, text) is None) is fits


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(?<!a)b", "a{5000}", "(a{900}){900}", "a" * 20_000, "("])
def test_a_pattern_that_cannot_be_matched_is_not_checked_and_is_named(pattern: str) -> None:
    assert isinstance(compile_pattern(pattern), str)
    assert violation({"properties": {"a": {"pattern": pattern}}}, {"a": "whatever"}) is None
    assert violation({"patternProperties": {pattern: False}, "additionalProperties": False}, {"a": 1}) is None
    (line,) = unchecked_parts({"properties": {"a": {"pattern": pattern}}})
    assert line.startswith("pattern ")
    assert "is not checked: " in line
    assert len(line) < 400


def test_a_schema_that_is_none_is_named_with_its_place() -> None:
    problem = schema_problem({"properties": {"a": {"type": "nothing"}}}, Meter(FULL_STEPS))
    assert problem is not None
    assert problem.startswith("its schema is invalid at properties/a/type: ")
    assert schema_problem({"properties": {"a": {"pattern": "(?=a)"}}}, Meter(FULL_STEPS)) is None
    assert schema_problem(nested(5_000), Meter(FULL_STEPS)) == "its schema is more than 64 levels deep"
    wide = {"properties": {str(i): {"type": "string"} for i in range(100_000)}}
    assert schema_problem(wide, Meter(QUICK_STEPS)) == "its schema is too large to be checked"
    assert schema_problem({"$ref": "#/a"}, Meter(FULL_STEPS)) == "its schema refers to #/a, which is not in it"


scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 1.5]) | st.sampled_from("ab1")
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner)
)
keywords = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "object", "array", "null"]),
        "enum": st.lists(values, max_size=3),
        "const": values,
        "uniqueItems": st.booleans(),
        "pattern": st.sampled_from(["^a$", "1|b", "[0-9]+"]),
        "minLength": st.integers(0, 2),
        "required": st.lists(st.sampled_from("ab"), unique=True),
    },
)
schemas = st.recursive(
    keywords,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner),
            "additionalProperties": st.booleans() | inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=8,
)


@settings(max_examples=scaled(300), deadline=None)
@given(schemas, values)
def test_any_schema_says_of_any_value_what_the_library_says(schema: dict, value: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (violation(schema, value) is None) is said


argument_types = st.sampled_from(["string", "integer", "number", "boolean"])
argument_schemas = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(
            st.sampled_from("abc"), st.fixed_dictionaries({}, optional={"type": argument_types, "title": st.just("A")})
        ),
        "required": st.lists(st.sampled_from("abc"), unique=True),
        "additionalProperties": st.booleans(),
    },
)
arguments = st.dictionaries(
    st.sampled_from("abcd"), st.sampled_from(["", "1", 0, 1, 1.0, 1.5, -0.0, True, False, None, [], [1], {}])
)


@settings(max_examples=scaled(1000))
@given(argument_schemas, arguments)
def test_arguments_fit_a_plain_schema_exactly_if_the_library_says_so(schema: dict, value: dict) -> None:
    assert (violation(schema, value) is None) is jsonschema.Draft202012Validator(schema).is_valid(value)


def test_plain_arguments_are_checked_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perstack.core.schemas.json_schema._validator", None)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "title": "N"}}, "required": ["n"]}
    assert violation(schema, {"n": 1, "other": "x"}) is None


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_a_schema_that_doubles_its_work_at_each_level_is_given_up_in_seconds(word: str) -> None:
    inner: dict = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(25)}
    schema = {"$defs": {**inner, "d25": {"type": "string"}}, "$ref": "#/$defs/d0"}
    began = time.process_time()
    found = violation(schema, 5)
    assert found is not None
    assert found.is_unfinished
    assert time.process_time() - began < 4


SUITE = json.loads(gzip.decompress((Path(__file__).parent / "json-schema-suite.json.gz").read_bytes()))
"""The public JSON-Schema-Test-Suite without its tests of formats; `license` holds its licence."""
DIALECTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
COUNTS = {
    "draft7": {"right": 992, "left out": 25, "accepted with a warning": 6, "annotation": 4},
    "draft2019-09": {"right": 1352, "left out": 34, "accepted with a warning": 11, "refused": 2},
    "draft2020-12": {"right": 1383, "left out": 45, "accepted with a warning": 14, "refused": 1},
}
"""Results of the tests. «annotation»: draft 7 leaves it open whether `contentEncoding` and its like are checked."""


@pytest.mark.filterwarnings("ignore:The metaschema specified by")
@pytest.mark.parametrize("draft", DIALECTS)
def test_the_public_suite_finds_no_tool_left_out_that_can_be_checked_nor_a_gap_without_warning(draft: str) -> None:
    counts: Counter[str] = Counter()
    for file, groups in SUITE["drafts"][draft].items():
        for group in groups:
            if isinstance(group["schema"], dict):
                schema = {"$schema": DIALECTS[draft], **group["schema"]}
                counts.update(_outcome(file, schema, test) for test in group["tests"])
    print(draft, dict(counts))
    assert counts == COUNTS[draft]


def _outcome(file: str, schema: dict, test: dict) -> str:
    if schema_problem(schema, Meter(FULL_STEPS)) is not None:
        assert not _library_checks(schema, test["data"]), schema
        return "left out"
    fits = violation(schema, test["data"]) is None
    if fits == test["valid"]:
        return "right"
    if not fits:
        return "refused"
    if file == "optional/content":
        return "annotation"
    assert unchecked_parts(schema), (schema, test)
    return "accepted with a warning"


def _library_checks(schema: dict, value: object) -> bool:
    try:
        library = validator_for(schema)
        library.check_schema(schema)
        library(schema, registry=Registry()).is_valid(value)
    except Exception:  # noqa: BLE001 - any says that it does not
        return False
    return True


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"$defs": {"List<String>": {"type": "array"}}, "$ref": "#/$defs/List%3CString%3E"}, "a"),
        ({"$defs": {"n": {"$id": "https://a.example/n", "type": "array"}}, "$ref": "https://a.example/n"}, "a"),
        (
            {"$id": "https://a.example/s", "type": "object", "properties": {"a": {"$ref": "https://a.example/s"}}},
            {"a": 1},
        ),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}),
        ({"type": "string", "pattern": r"^[\s-]+$"}, "a"),
        ({"type": "string", "pattern": r"^[^[\S]$"}, "a"),
        ({"type": "string", "pattern": "^[]$"}, "a"),
    ],
)
def test_what_a_schema_means_is_checked_and_not_left_out(schema: dict, wrong: object) -> None:
    assert schema_problem(schema, Meter(FULL_STEPS)) is None
    assert not unchecked_parts(schema)
    assert violation(schema, wrong) is not None


@pytest.mark.parametrize("text", ["\u00a0-\ufeff", "\u2029"])
def test_a_class_with_white_space_matches_all_of_it(text: str) -> None:
    assert violation({"pattern": r"^[\s-]+$"}, text) is None


def test_a_dialect_that_is_unknown_is_named() -> None:
    (line,) = unchecked_parts({"$schema": "https://a.example/mine"})
    assert line == "the dialect https://a.example/mine is unknown: the schema is checked as one of draft 2020-12"


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://a/" + "x/" * 500_000, "$defs": {str(i): {"$id": "b"} for i in range(2000)}},
        {"$defs": {str(i): {"$id": f"{'y/' * 900}{i}", "$ref": f"#/{'a/' * 500}"} for i in range(4000)}},
    ],
)
def test_addresses_made_to_be_long_are_not_joined_for_ever(schema: dict) -> None:
    began = time.process_time()
    assert schema_problem(schema, Meter(FULL_STEPS)) is not None
    assert time.process_time() - began < 4


def test_addresses_that_are_none_are_a_problem_in_one_line() -> None:
    for address in ("http://[::1/x", "http://["):
        problem = schema_problem({"$id": address, "$ref": "x"}, Meter(FULL_STEPS))
        assert problem is not None
        assert len(problem.splitlines()) == 1
