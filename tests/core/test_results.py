"""The JSON in what a model wrote, and what is said of a schema."""

from __future__ import annotations

import json

import pytest

from perstack.core.schemas.result_schemas import check_result, move_schema, parse_result_schema, schema_fault

CITY = {"type": "object", "properties": {"people": {"type": ["integer", "null"]}}, "required": ["people"]}
FITS = '{"people": 3}'


@pytest.mark.parametrize(
    "text",
    [
        FITS,
        f"  {FITS}\n",
        f"\ufeff{FITS}",
        f"```json\n{FITS}\n```",
        f"```\n{FITS}\n```",
        f"Here it is:\n\n  ```JSON\n{FITS}\n  ```\n\nThat is all.",
        f"````json\n{FITS}\n````",
    ],
)
def test_the_object_is_found_alone_or_in_the_only_fenced_block(text: str) -> None:
    assert check_result(text, CITY).value == {"people": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("three", "it is not JSON"),
        (f"It is {FITS}", "it is not JSON"),
        (f"{FITS} I think", "it is not JSON"),
        (f"{FITS}\n{FITS}", "it is not JSON"),
        (f"```json\n{FITS}\n", "it is not JSON"),
        (f"```\n{FITS}\n```\nor\n```\n{FITS}\n```", "2 fenced blocks"),
        ("[3]", "is not of type 'object'"),
        ("null", "is not of type 'object'"),
        ('{"people": NaN}', "it is not JSON"),
        ('{"people": -Infinity}', "it is not JSON"),
        ('{"people": 1e999}', "out of range"),
        (f'{{"people": {"9" * 5000}}}', "number out of range"),
        ('{"people": 1, "people": 2}', 'the key "people" twice'),
        ('{"people": 1, "a": {"b": 1, "b": 1}}', 'the key "b" twice'),
        ('{"people": "\\ud800"}', "it is not JSON"),
        ('{"people": "\ud800"}', "it is not JSON"),
        ("{'people': 3}", "it is not JSON"),
        ('{"people": 3,}', "it is not JSON"),
        ('{"people": 1, "a": ' + "[" * 120 + "]" * 120 + "}", "levels deep"),
        ("[" * 100_000, "it is not JSON"),
        ('{"people": "' + "x" * 4_000_000 + '"}', "and may have 4,000,000"),
    ],
)
def test_anything_else_is_refused_with_a_reason_that_is_short(text: str, words: str) -> None:
    found = check_result(text, CITY)
    assert found.value is None
    assert words in found.problem
    assert len(found.problem) < 1000
    assert found == check_result(text, CITY), "replay judges again"


def test_null_within_the_object_is_kept() -> None:
    assert check_result('{"people": null}', CITY).value == {"people": None}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$defs": {"b": {"$dynamicAnchor": "a"}}, "properties": {"a": {"$dynamicRef": "#a"}}}, "`$dynamicRef`"),
        ({"properties": {"a": {"$ref": "#a"}}}, "refers to #a, which is not in it"),
        ({"properties": {"a": {"$ref": "other.json#/a"}}}, "refers to other.json#/a, which is not in it"),
        ({"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}, "refers to itself without end"),
        ({"if": {"$ref": "#"}}, "refers to itself without end"),
    ],
)
def test_a_schema_that_no_result_can_be_held_to_is_found_before(schema: dict[str, object], words: str) -> None:
    assert words in (schema_fault(parse_result_schema(json.dumps(schema))) or "")


def test_a_schema_may_refer_to_itself_below_a_property_and_by_anchors() -> None:
    tree = parse_result_schema(
        '{"properties": {"left": {"$ref": "#"}, "of": {"$ref": "#leaf"}}, "$defs": {"l": {"$anchor": "leaf"}}}'
    )
    assert schema_fault(tree) is None
    assert check_result('{"left": {"left": {}}}', tree).value is not None
    assert "is not of type" in check_result('{"left": {"left": 1}}', tree).problem


def test_a_schema_within_another_refers_to_itself_and_one_with_names_is_not_put_there() -> None:
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "leaf": {"$ref": "#/$defs/leaf"}},
        "$defs": {"leaf": {}},
    }
    placed = move_schema(tree, "#/properties/result")
    assert placed is not None
    assert placed["properties"] == {
        "left": {"$ref": "#/properties/result"},
        "leaf": {"$ref": "#/properties/result/$defs/leaf"},
    }
    assert move_schema({**tree, "$schema": "http://json-schema.org/draft-07/schema#"}, "#/properties/result") is None
