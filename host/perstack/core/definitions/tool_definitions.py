"""The definition of a skill's tool: its digest, which agreements are bound to, and the difference of two definitions.

A definition is everything that a model is shown or a permission rule is decided by: name, description, input schema,
effect (a server's annotations), kind, and the meaning of arguments. A server's output schema is not part of it: the
host only checks results with it, and a violation can quote nothing that a result could not contain as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

from perstack.core.base.records import JsonObject, canonical_json
from perstack.core.definitions.skills import ToolSpec

VERSION = "d1"  # version of the hashed form; another form needs another version

Definitions = Mapping[str, Mapping[str, str]]  # digests of definitions by skill and by the tool's name in its skill

_DIFF_STEPS = 1_000_000


def definition_digest(spec: ToolSpec) -> str:
    """Return the digest of a tool's definition, independent of the order of keys in its schema and of its skill's name.

    >>> definition_digest(ToolSpec(name="a")) == definition_digest(ToolSpec(name="a", skill_name="s"))
    True
    >>> definition_digest(ToolSpec(name="a")) == definition_digest(ToolSpec(name="a", effect="readOnly"))
    False
    """
    definition: JsonObject = {
        "description": spec.description,
        "effect": spec.effect,
        "kind": spec.kind,
        "name": spec.name,
        "polling": spec.polling,
        "subject": None if spec.subject is None else spec.subject.to_json().decode(),
        "target": spec.target,
    }
    schema = json.dumps(spec.input_schema, sort_keys=True, separators=(",", ":"))
    return f"{VERSION}:{sha256(canonical_json([definition, schema])).hexdigest()}"


def text_digest(text: str) -> str:
    """Return the digest of a skill's instructions."""
    return f"{VERSION}:{sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def by_name(specs: Iterable[ToolSpec]) -> Mapping[str, ToolSpec]:
    """Return tools by their own names; of equal names the last one."""
    return {spec.name: spec for spec in specs}


def merged_definitions(old: Definitions, new: Definitions) -> Definitions:
    """Return definitions with later ones added, which replace those of the same tools."""
    return {**old, **{skill: {**old.get(skill, {}), **digests} for skill, digests in new.items()}} if new else old


def unrecorded_definitions(current: Definitions, recorded: Definitions) -> dict[str, dict[str, str]]:
    """Return the current definitions that are not recorded, or are recorded differently."""
    changed = {
        skill: {name: digest for name, digest in digests.items() if recorded.get(skill, {}).get(name) != digest}
        for skill, digests in current.items()
    }
    return {skill: digests for skill, digests in changed.items() if digests}


def definition_diff(old: ToolSpec | None, new: ToolSpec | None) -> tuple[str, ...]:
    """Return the lines that differ, each after `- ` or `+ `. None: there is no tool, or its definition is unknown."""
    return text_diff("" if old is None else _definition_text(old), "" if new is None else _definition_text(new))


def text_diff(old: str, new: str) -> tuple[str, ...]:
    """Return the lines of two texts that differ, each after `- ` or `+ `."""
    from perstack.core.files.line_diff import Effort, as_text, line_diff, split_lines  # few definitions change

    before, after = (split_lines(text.encode(errors="replace")) for text in (old, new))
    hunks = line_diff(before, after, Effort(_DIFF_STEPS), context=0).hunks
    return tuple(f"{sign} {as_text(line).rstrip(chr(10))}" for hunk in hunks for sign, line in hunk.lines)


def _definition_text(spec: ToolSpec) -> str:
    return "\n".join(_definition_lines(spec)) + "\n"


def _definition_lines(spec: ToolSpec) -> Iterator[str]:
    description = spec.description.splitlines() or [""]
    yield f"description: {description[0]}"
    yield from (f"    | {line}" for line in description[1:])  # no line of a server's text looks like one of ours
    yield f"effect: {spec.effect}"
    if spec.kind != "tool":
        yield f"kind: {spec.kind}"
    if spec.polling:
        yield "polling: true"
    if spec.subject is not None:
        yield f"arguments: {spec.subject.to_json().decode()}"
    if spec.target:
        yield f"target: {spec.target}"
    for name, value in sorted(spec.input_schema.items()):
        if name != "properties":
            yield f"schema.{name}: {_json(value)}"
    properties = spec.input_schema.get("properties")
    for name, value in sorted(properties.items()) if isinstance(properties, dict) else ():
        yield f"argument {json.dumps(name)}: {_json(value)}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
