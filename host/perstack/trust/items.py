"""Items of a definition that its user has to agree to, derived from the effects that its keys declare.

A perstack.toml may be written by somebody else: the author of a cloned repository, or a model. So each key declares its
effect (`Key.effect`), and a key that is neither a text nor a restriction does nothing before the user of the folder has
agreed to it. There is no list of dangerous keys: a key cannot be declared without an effect, and the walk below meets
every key.

`items_to_trust` returns an item for each key of the file and of its Experts that has an effect: for a list of tables,
one for each table, such as a skill. What is agreed to is the digest of all its keys with an effect, and `shown` is made
of the same keys, whole. `inert_project` returns the definition without them: what remains can be shown and listed, but
starts, reads, writes, reaches and pays nothing.

A declaration that runs files of the folder is bound to their content (`Ownership.files`), since a file that changes
changes what the declaration does.

Three declarations are checked again where they are used, since recorded definitions contain them too: skills, providers
and `iterate`. Their digests do not depend on their place, so that equal ones of two Experts are agreed to once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from hashlib import sha256
from typing import TypeAlias, TypeVar, cast

from pydantic import Field, JsonValue

from perstack.core.base.records import JsonObject, Record, canonical_json, falsy
from perstack.core.base.text import approvable_line
from perstack.core.definitions.exec_grant import EXEC
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.keys import Key, KeyPath, spell
from perstack.core.definitions.models import Models
from perstack.core.definitions.project import Project, Workspace
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.definitions.skills import AnySkill, McpStdioSkill, PluginSkill, is_base_skill
from perstack.dataclass import dataclass

_TableT = TypeVar("_TableT", bound=Record)

_INERT = ("text", "narrows")
_EXPERTS = "experts"
_EXPERT_SCOPE = 2  # names before an Expert's key in a path: `experts`, and the Expert
_USED_ANYWHERE = ("skills", "provider", "iterate")

IsVendor: TypeAlias = Callable[[str], bool | None]
"""Return True for a provider that sends the user's key to its vendor's own address and does nothing else without
settings, False for another, None for an unknown name."""


class StoredItem(Record):
    """Item as agreements store it, without its values."""

    place: str  # key of the definition, such as `experts.writer.skills.search`
    digest: str  # digest of the declaration with the content of its files
    declaration: str = Field(default="", exclude_if=falsy)  # digest without files; empty without any
    # content of each file that it runs, by its path from the folder
    files: dict[str, str] = Field(default_factory=dict, exclude_if=falsy)

    @property
    def without_files(self) -> str:
        """Digest of the declaration without the content of its files."""
        return self.declaration or self.digest

    def changes_since(self, earlier: StoredItem) -> list[str]:
        """Return a phrase for each file that differs between an earlier item of this declaration and this one."""
        names = sorted({*self.files, *earlier.files})
        phrases = {
            (True, True): "has changed",
            (True, False): "is gone",
            (False, True): "is new",
        }
        return [
            f"{name} {phrases[name in earlier.files, name in self.files]}"
            for name in names
            if self.files.get(name) != earlier.files.get(name)
        ]


class TrustItem(StoredItem):
    """One declaration that acts on the user's machine, data or account."""

    kinds: tuple[str, ...]  # effects of its keys; not stored
    shown: str
    """What a person agrees to, in one line; not stored. Not masked: the author of a definition could make a command
    look like a secret, to hide what runs."""

    def to_stored(self) -> StoredItem:
        """Return the stored part."""
        return StoredItem(place=self.place, digest=self.digest, declaration=self.declaration, files=self.files)


def digests_of(items: Iterable[StoredItem]) -> frozenset[str]:
    """Return the digests by which items are compared."""
    return frozenset(item.digest for item in items)


def no_files(table: Record) -> Mapping[str, str]:
    """Return no content, for a definition that is agreed to whatever its files contain."""
    return {}


@dataclass(frozen=True, slots=True)
class Ownership:
    """Names that a definition may use without an agreement: paths in its own folder, and vendors of models."""

    contains: Callable[[str], bool] = lambda path: False
    """Return whether a path, or the address of a file, stays in the definition's folder, also through links."""
    is_vendor: IsVendor = lambda name: None
    files: Callable[[Record], Mapping[str, str]] = no_files
    """Return the content of each file of the folder that a table runs, as a digest, by the file's path."""


def items_to_trust(
    project: Project, own: Ownership, tests: Mapping[str, Iterable[Record]] | None = None
) -> list[TrustItem]:
    """Return the items of a project, each once, in the order of declaration; `tests`: tables of tests by Expert."""
    items = [*_items_of_table(project, (), own)]
    for key, expert in project.experts.items():
        items += _items_of_table(expert, (_EXPERTS, key), own)
        for test in (tests or {}).get(key, ()):
            items += items_of_test(key, test, own)
    items += _items_of_named_providers(project, own)
    by_digest: dict[str, TrustItem] = {}
    for item in items:
        by_digest.setdefault(item.digest, item)
    return [*by_digest.values()]


def items_of_test(expert_key: str, test: Record, own: Ownership) -> list[TrustItem]:
    return _make_items((_EXPERTS, expert_key, "tests", str(getattr(test, "name", ""))), _table_part(test, own))


def items_of_skill(skill: AnySkill, place: str, own: Ownership) -> list[TrustItem]:
    return _make_items(("skills",), _table_part(skill, own), place)


def items_of_provider(setting: ProviderSetting, own: Ownership) -> list[TrustItem]:
    return _make_items(("provider",), _table_part(setting, own), f"provider {setting.provider_name}")


def items_of_iterate(settings: Iterate, expert_key: str, own: Ownership) -> list[TrustItem]:
    return _make_items(("iterate",), _table_part(settings, own), f"iterate of {expert_key}")


def items_of_keys(project: Project, names: Iterable[str], own: Ownership) -> list[TrustItem]:
    """Return the items of some keys of a project, by the names of its fields."""
    keys = _active_keys(Project)
    return [item for name in names for item in _items_of_key(name, keys[name], getattr(project, name), (), own)]


def inert_project(project: Project, own: Ownership, is_agreed: Callable[[str], bool]) -> Project:
    """Return the project without the declarations that have an effect, except for agreed ones, by their digests."""
    experts = {key: _inert_table(expert, (_EXPERTS, key), own, is_agreed) for key, expert in project.experts.items()}
    return _inert_table(project, (), own, is_agreed).model_copy(update={"experts": experts})


# Walk of the keys.


@cache
def _active_keys(model: type[Record]) -> Mapping[str, Key]:
    """Return the keys of a table that may have an effect, by the names of their fields."""
    pairs = ((name, part) for name, field in model.model_fields.items() for part in field.metadata)
    return {
        name: part
        for name, part in pairs
        if isinstance(part, Key)
        and (part.effect not in _INERT or part.widens_above is not None)
        and not (model is Project and name == _EXPERTS)
    }


@dataclass(slots=True)
class _Part:
    """Keys of a table that have an effect, with their values."""

    value: JsonObject
    kinds: set[str]
    files: Mapping[str, str] = field(default_factory=dict[str, str])


def _items_of_table(table: Record, scope: KeyPath, own: Ownership) -> Iterator[TrustItem]:
    for name, key in _active_keys(type(table)).items():
        yield from _items_of_key(name, key, getattr(table, name), scope, own)


def _items_of_key(name: str, key: Key, value: object, scope: KeyPath, own: Ownership) -> Iterator[TrustItem]:
    place = (*scope, key.name or _camel_case(name))
    if key.effect == "table" and isinstance(value, tuple):
        for element in cast("tuple[Record, ...]", value):
            yield from _make_items((*place, str(getattr(element, "name", ""))), _table_part(element, own))
        return
    if key.effect == "table" and isinstance(value, Record):
        yield from _make_items(place, _table_part(value, own))
        return
    yield from _make_items(place, _key_part(name, key, value, own))


def _key_part(name: str, key: Key, value: object, own: Ownership) -> _Part | None:
    """Return the part of a table that one key makes up; None without an effect. 0 is a value with an effect."""
    if value is None or value is False or value in ("", (), {}):
        return None
    if key.widens_above is not None:
        return _Part({key.name or _camel_case(name): cast("JsonValue", value)}, {"pays"}) if key.widens(value) else None
    if key.effect != "table":
        active_value = _active_value(key, value, own)
        return (
            _Part({key.name or _camel_case(name): active_value}, {key.effect})
            if active_value or active_value == 0
            else None
        )
    if isinstance(value, tuple):
        parts = [part for item in cast("tuple[Record, ...]", value) if (part := _table_part(item, own)) is not None]
        kinds = {kind for part in parts for kind in part.kinds}
        return _Part({_camel_case(name): [part.value for part in parts]}, kinds) if parts else None
    part = _table_part(cast("Record", value), own)
    return None if part is None else _Part({_camel_case(name): part.value}, part.kinds)


def _table_part(table: Record, own: Ownership) -> _Part | None:
    if isinstance(table, McpStdioSkill) and is_base_skill(table):
        # the built-in skill starts no command, and a `pick` of this name lets it run every program
        return _Part({"pick": [EXEC]}, {"executes"}) if EXEC in table.pick else None
    if isinstance(table, PluginSkill) and table.functions:
        return None  # functions come from the calling program, never from a file
    parts = [_key_part(name, key, getattr(table, name), own) for name, key in _active_keys(type(table)).items()]
    merged = _Part({}, set())
    for part in parts:
        if part is not None:
            merged.value.update(part.value)
            merged.kinds |= part.kinds
    if isinstance(table, ProviderSetting) and own.is_vendor(table.provider_name) and _is_about_replies(table):
        return None
    if not merged.value:
        return None
    merged.files = own.files(table)
    return merged


def _is_about_replies(setting: ProviderSetting) -> bool:
    """Return whether a vendor's settings are only numbers and flags, which cannot name an address or data to send."""
    return all(isinstance(value, bool | int | float) for value in setting.setting.values())


def _active_value(key: Key, value: object, own: Ownership) -> JsonValue:
    """Return the part of a value that has an effect, as JSON."""
    if isinstance(value, Workspace):
        value = value.path or ""
    if isinstance(value, Record):
        return None if key.is_inert(value) else value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if isinstance(value, tuple):
        items = cast("tuple[JsonValue, ...]", value)
        return [item for item in items if not _is_inert(key, item, own)]
    if isinstance(value, dict):
        table = cast("JsonObject", value)
        return {name: item for name, item in table.items() if not key.is_inert(item)}
    return None if _is_inert(key, value, own) else cast("JsonValue", value)


def _is_inert(key: Key, value: object, own: Ownership) -> bool:
    return key.is_inert(value) or (key.is_path and isinstance(value, str) and own.contains(value))


def _items_of_named_providers(project: Project, own: Ownership) -> Iterator[TrustItem]:
    """Yield each provider, except vendors', that the name of a model selects: `provider/model`."""
    models = (project.model, *project.models.values(), *(expert.model for expert in project.experts.values()))
    names = dict.fromkeys(name.partition("/")[0] for item in models for name in _model_names(item) if "/" in name)
    for name in names:
        if own.is_vendor(name) is False:
            yield from items_of_provider(ProviderSetting(provider_name=name), own)


def _model_names(models: Models | None) -> tuple[str, ...]:
    return () if models is None else (models,) if isinstance(models, str) else models


def _inert_table(table: _TableT, scope: KeyPath, own: Ownership, is_agreed: Callable[[str], bool]) -> _TableT:
    """Return a copy of the project, or of an Expert, whose keys without agreement have their default."""
    update: dict[str, object] = {}
    for name, key in _active_keys(type(table)).items():
        value = getattr(table, name)
        items = [*_items_of_key(name, key, value, scope, own)]
        if not items or all(is_agreed(item.digest) for item in items):
            continue
        if key.effect == "table" and isinstance(value, tuple):
            elements = cast("tuple[Record, ...]", value)
            update[name] = tuple(
                element
                for element in elements
                if all(is_agreed(item.digest) for item in _items_of_key(name, key, (element,), scope, own))
            )
        else:
            update[name] = _inert_value(table, name, key, own)
    return table.model_copy(update=update) if update else table


def _inert_value(table: Record, name: str, key: Key, own: Ownership) -> object:
    """Return the value of a key without its effect: tables keep keys that narrow; None if impossible."""
    value, model_field = getattr(table, name), type(table).model_fields[name]
    if key.effect != "table" or not isinstance(value, Record):
        if isinstance(value, tuple):
            items = cast("tuple[object, ...]", value)
            return tuple(item for item in items if _is_inert(key, item, own))
        return None if model_field.is_required() else model_field.get_default(call_default_factory=True)
    update: dict[str, object] = {}
    for inner, inner_key in _active_keys(type(value)).items():
        if _key_part(inner, inner_key, getattr(value, inner), own) is not None:
            if type(value).model_fields[inner].is_required():
                return None
            update[inner] = _inert_value(value, inner, inner_key, own)
    return value.model_copy(update=update)


def _camel_case(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(map(str.capitalize, rest))


# What a person is shown, and the digest of it.


def _make_items(path: KeyPath, part: _Part | None, place: str = "") -> list[TrustItem]:
    """Return the item of one declaration, or none."""
    if part is None:
        return []
    key = path[_EXPERT_SCOPE] if path[0] == _EXPERTS else path[0]
    identity: JsonValue = key if key in _USED_ANYWHERE else [*path]
    digest = declaration = sha256(canonical_json([identity, part.value])).hexdigest()
    shown = approvable_line(", ".join(_text_lines(part.value)))
    if part.files:
        digest = sha256(canonical_json([declaration, {**part.files}])).hexdigest()
        shown += f"; as they are now: {approvable_line(', '.join(part.files))}"
    kinds = tuple(sorted(part.kinds))
    return [
        TrustItem(
            place=place or spell(path),
            digest=digest,
            declaration=declaration if part.files else "",
            files={**part.files},
            kinds=kinds,
            shown=f"{', '.join(kinds)}: {shown}",
        )
    ]


def _text_lines(value: JsonObject, prefix: str = "") -> Iterator[str]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _text_lines(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} = {json.dumps(item, ensure_ascii=False)}"
