"""What of a result's schema is sent to vendors."""

from __future__ import annotations

import pytest

from perstack.http_providers.structured_output import portable_schema, requires_all
from perstack.ports.provider import GenerationRequest
from perstack_anthropic.messages_api import takes_schemas
from perstack_openai.dialect import Dialect
from perstack_openai.profiles import PLAIN


def of(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


def test_bounds_are_left_out_and_objects_are_closed():
    schema = of(name={"type": "string", "minLength": 1, "description": "whose"}, age={"type": ["integer", "null"]})
    assert portable_schema({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", **schema}) == {
        "type": "object",
        "properties": {"name": {"description": "whose", "type": "string"}, "age": {"type": ["integer", "null"]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }


def test_lists_choices_and_unions_within_are_sent():
    schema = of(
        many={"type": "array", "items": {"anyOf": [{"type": "string", "const": "a"}, of(b={"type": "number"})]}}
    )
    found = portable_schema(schema)
    assert found is not None
    inner = found["properties"]["many"]["items"]["anyOf"]
    assert inner[0] == {"type": "string", "enum": ["a"]}
    assert inner[1]["additionalProperties"] is False


@pytest.mark.parametrize(
    "inner",
    [
        {"$ref": "#"},
        {"oneOf": [{"type": "string"}]},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": ["object", "null"], "properties": {"a": {"type": "string"}}},
        {"enum": ["a"]},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {}}}},
        },
        {"type": "string", "enum": [str(number) for number in range(501)]},
        of(**{f"p{number}": {"type": "string"} for number in range(101)}),
        True,
        {},
    ],
)
def test_what_one_of_the_vendors_refuses_is_not_sent_at_all(inner):
    assert portable_schema(of(a=inner)) is None


def test_only_a_schema_whose_every_property_is_required_is_kept_to_the_letter():
    assert requires_all(portable_schema(of(a={"type": "array", "items": of(b={"type": "string"})})))
    optional = {**of(b={"type": "string"}), "required": []}
    assert not requires_all(portable_schema(of(a={"type": "array", "items": optional})))
    assert not requires_all(portable_schema(optional))


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("claude-sonnet-4-5", True),
        ("anthropic.claude-haiku-4-5-20251001-v1:0", True),
        ("claude-opus-4-6", True),
        ("claude-sonnet-5", True),
        ("claude-opus-4-1-20250805", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-3-7-sonnet-latest", False),
    ],
)
def test_claude_takes_a_schema_from_4_5_on(model, takes):
    assert takes_schemas(model) is takes


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("gpt-4o", True),
        ("gpt-4.1-mini", True),
        ("gpt-5", True),
        ("o3-mini", True),
        ("o1", True),
        ("gpt-4o-2024-05-13", False),
        ("gpt-4-turbo", False),
        ("gpt-3.5-turbo", False),
        ("o1-mini", False),
    ],
)
def test_openais_own_models_are_sent_a_schema_by_their_names_and_others_by_the_setting_alone(model, takes):
    request = GenerationRequest(model, "", (), (), blobs=nothing, output=of(a={"type": "string"}))
    assert (Dialect().schema_format(request) is not None) is takes
    assert Dialect(profile=PLAIN).schema_format(request) is None
    assert Dialect(profile=PLAIN, structured_output=True).schema_format(request)["strict"] is True
    assert Dialect(structured_output=False).schema_format(request) is None


async def nothing(sha256):
    return b""
