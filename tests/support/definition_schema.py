"""Generate the JSON schema of perstack.toml for editors, from the models that the file is read into.

Draft 7, because the language servers for TOML read that. Rules that a schema cannot express are checked by `perstack
validate`. The result ships as `perstack.schema.json` in `perstack.config`, and stands beside the documentation. Write
both anew with `python tests/support/definition_schema.py`; a test compares them with the models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast, get_args

from perstack.core.base.records import JsonObject, Record
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import InText
from perstack.core.definitions.project import Project
from perstack.toml_reader.tables import IGNORED, READ_SEPARATELY, keys_of

_DRAFT = "http://json-schema.org/draft-07/schema#"
_REF = "#/definitions/"


def definition_schema() -> JsonObject:
    """Return the schema with which editors complete and check perstack.toml."""
    definitions = dict[str, JsonObject]()
    top = _table_schema(Project, definitions)
    return {"$schema": _DRAFT, "title": "perstack.toml", **top, "definitions": dict(sorted(definitions.items()))}


def _table_schema(model: type[Record], definitions: dict[str, JsonObject]) -> JsonObject:
    """Return the schema of a table; schemas of inner tables are added to `found` by name."""
    raw = _object_schema(model.model_json_schema(by_alias=True, ref_template=_REF + "{model}"))
    fields, inner = _object_schema(raw["properties"]), _object_schema(raw.get("$defs", {}))
    by_alias = {field.alias: field for field in model.model_fields.values()}
    properties: JsonObject = {}
    for name, key in keys_of(model).items():
        field, value = by_alias[key.field], JsonObject()
        if key.tables:
            value = _tables_schema(key.tables, definitions, is_named=key.is_named)
        elif any(isinstance(fact, InText) for fact in (*field.metadata, *get_args(field.annotation))):
            value = {"type": "string"}
        else:
            value = _without_null(_object_schema(fields[key.field]))
            _add_definitions(value, inner, definitions)
        properties[name] = {**value, "description": key.meaning}
    if model is Expert:
        _set_conditions(properties, definitions)
    for name, why in IGNORED.get(model, {}).items():
        properties[name] = {"description": f"has no effect here: {why}", "deprecated": True}
    required = [name for name, key in keys_of(model).items() if key.is_required]
    table: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**table, "required": [*required]} if required else table


def _set_conditions(properties: JsonObject, definitions: dict[str, JsonObject]) -> None:
    from perstack.expert_tests.models import ExpertTest

    for name, meaning in READ_SEPARATELY[Expert].items():
        properties[name] = {"type": "array", "items": _tables_schema((ExpertTest,), definitions, is_named=False)}
        properties[name] = {**_object_schema(properties[name]), "description": meaning}


def _tables_schema(
    models: tuple[type[Record], ...], definitions: dict[str, JsonObject], *, is_named: bool
) -> JsonObject:
    """Return the schema of a table of one or several models, or of tables by name."""
    for model in models:
        if model.__name__ not in definitions:
            definitions[model.__name__] = {}  # stops the recursion of a table within itself
            definitions[model.__name__] = _table_schema(model, definitions)
    refs: list[JsonObject] = [{"$ref": _REF + model.__name__} for model in models]
    reference: JsonObject = {"anyOf": [*refs]} if len(refs) > 1 else {"allOf": [*refs]}
    return {"type": "object", "additionalProperties": reference} if is_named else reference


def _without_null(value: JsonObject) -> JsonObject:
    """Remove null, which TOML does not have, and keywords that editors do not need."""
    cleaned: JsonObject = {}
    for name, part in value.items():
        if name in ("title", "default", "discriminator"):
            continue
        if isinstance(part, list):
            items = [_without_null(item) if isinstance(item, dict) else item for item in part]
            cleaned[name] = [item for item in items if item != {"type": "null"}]
        else:
            cleaned[name] = _without_null(part) if isinstance(part, dict) else part
    match cleaned.get("anyOf"):
        case [dict() as only]:
            return {**{name: part for name, part in cleaned.items() if name != "anyOf"}, **only}
        case _:
            return cleaned


def _add_definitions(value: object, inner: JsonObject, definitions: dict[str, JsonObject]) -> None:
    """Add the definitions that a value refers to."""
    if isinstance(value, list):
        for item in cast("list[object]", value):
            _add_definitions(item, inner, definitions)
    if not isinstance(value, dict):
        return
    for name, part in cast("dict[str, object]", value).items():
        if name == "$ref" and isinstance(part, str) and (model := part.removeprefix(_REF)) not in definitions:
            definitions[model] = _without_null(_object_schema(inner[model]))
            _add_definitions(definitions[model], inner, definitions)
        else:
            _add_definitions(part, inner, definitions)


def _object_schema(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"a schema has {type(value).__name__} where an object has to be")
    return cast("JsonObject", value)


if __name__ == "__main__":
    for folder in ("host/perstack/config", "docs"):
        text = json.dumps(definition_schema(), ensure_ascii=False, indent=2)
        (Path(__file__).parents[2] / folder / "perstack.schema.json").write_text(text + "\n", encoding="utf-8")
