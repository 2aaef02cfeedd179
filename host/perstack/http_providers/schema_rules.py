"""Rules of the wire formats for tools, beyond valid JSON Schema of draft 2020-12: tables with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass
from perstack.http_providers.argument_names import NameRule

Shape = Literal[
    "schema", "schemas", "table", "names", "dependencies", "count", "number", "text", "flag", "value", "values", "type"
]

SHAPES: Mapping[str, Shape] = {
    **dict.fromkeys(("items", "contains", "not", "propertyNames", "if", "then", "else", "contentSchema"), "schema"),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), "schema"),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), "schemas"),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), "table"),
    "required": "names",
    "dependentRequired": "dependencies",
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"), "count"),
    **dict.fromkeys(("minProperties", "maxProperties"), "count"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
    **dict.fromkeys(("title", "description", "pattern", "format", "contentEncoding", "contentMediaType"), "text"),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), "flag"),
    **dict.fromkeys(("default", "const"), "value"),
    **dict.fromkeys(("enum", "examples"), "values"),
    "type": "type",
}
"""Keywords of draft 2020-12 with the shape of their values. All others are left out: vendors know no others, and some
refuse them, even `$schema` and `$id`. `$ref` and definitions are written apart."""

ALL_KEYWORDS = frozenset(SHAPES)


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """Rules of one wire format for tools, beyond valid draft 2020-12 with an object at the root."""

    name: str
    argument_names: NameRule | None  # None: any names
    tool_names: NameRule
    keywords: frozenset[str] = ALL_KEYWORDS
    root_keywords: frozenset[str] = ALL_KEYWORDS
    has_references: bool = True  # False: `$ref` is replaced by its target
    needs_properties: bool = False  # objects below the root must also have `properties`
    needs_items: bool = False  # arrays must have `items`
    requires_declared: bool = False  # `required` may only name properties that the schema declares next to it
    enum_types: tuple[type, ...] | None = None  # types of values in `enum`; None: all
    formats: frozenset[str] | None = None  # values of `format`; None: all
    no_arguments: JsonObject | None = None  # schema of a tool without arguments; None: an object without properties


_ANY_NAME = NameRule("a-zA-Z0-9_-", "a-zA-Z0-9_-")
_COMMON_ARGUMENTS = NameRule("a-zA-Z0-9_.-", "a-zA-Z0-9_.-")
BRANCHING = frozenset(("allOf", "anyOf", "oneOf"))

MESSAGES = SchemaRules(
    "messages",
    argument_names=_COMMON_ARGUMENTS,
    tool_names=_ANY_NAME,
    root_keywords=ALL_KEYWORDS - BRANCHING,
)
"""Anthropic Messages, including Bedrock and Vertex AI.

Source: Claude API, "Define tools"; the API's errors "input_schema does not support oneOf, allOf, or anyOf at the top
level", "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'" and "JSON schema is invalid. It must match JSON
Schema draft 2020-12". Names below the root pass there, but not at every gateway of the format.
"""

OPENAI = SchemaRules(
    "openai",
    argument_names=_COMMON_ARGUMENTS,
    tool_names=_ANY_NAME,
    root_keywords=ALL_KEYWORDS - BRANCHING - {"enum", "const", "not"},
    needs_properties=True,
    needs_items=True,
)
"""Chat Completions and Responses, without strict mode; also of compatible servers.

Source: OpenAI guide, "Function calling"; the API's errors "schema must have type 'object' and not have
'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level", "object schema missing properties" and "array schema missing
items". Names of arguments follow the Messages API, to which many compatible servers forward.
"""

GENERATE_CONTENT = SchemaRules(
    "generateContent",
    argument_names=NameRule("a-zA-Z_", "a-zA-Z0-9_"),
    tool_names=NameRule("a-zA-Z_", "a-zA-Z0-9_-"),
    keywords=frozenset(
        (
            *("type", "format", "title", "description", "enum", "anyOf", "oneOf", "properties", "required"),
            *("additionalProperties", "items", "prefixItems", "minItems", "maxItems", "minimum", "maximum"),
        )
    ),
    root_keywords=frozenset(("type", "title", "description", "properties", "required", "additionalProperties")),
    has_references=False,
    needs_items=True,
    requires_declared=True,
    enum_types=(str, int, float),
    formats=frozenset(("date-time", "date", "time")),
    no_arguments={},
)
"""Gemini, in `parametersJsonSchema`.

Source: Gemini API reference, `FunctionDeclaration` and `responseJsonSchema` (keywords of JSON Schema); Vertex AI
reference, `FunctionDeclaration` (names of parameters and functions; without parameters the field is left unset). The
API has references, but refuses cyclic ones in required properties, and any with other keywords next to them.
"""

CONVERSE = SchemaRules(
    "converse",
    argument_names=_COMMON_ARGUMENTS,
    tool_names=_ANY_NAME,
    root_keywords=frozenset(("type", "properties", "required")),
    has_references=False,
    needs_properties=True,
    needs_items=True,
)
"""Bedrock's Converse, for the models of all vendors.

Source: Amazon Nova user guide, "Tool use", "Defining a tool" (three fields at the root); Amazon Bedrock API reference,
`ToolSpecification` (names of tools); the errors of the Messages API for Claude.
"""

PLAIN = SchemaRules("plain", argument_names=None, tool_names=_ANY_NAME)
"""No more than valid draft 2020-12 with an object at the root."""
