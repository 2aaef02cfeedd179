"""Annotations for keys of definition files.

A function `…_problem` returns what is wrong with a value, as a phrase that follows its key, or None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Sequence
from math import isfinite
from typing import Final, Literal, TypeAlias

from pydantic import GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from perstack.core.base.records import JsonObject
from perstack.dataclass import dataclass

KeyPath: TypeAlias = tuple[str | int, ...]  # names of tables and positions in arrays (from 0), from the top of the file

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def spell(path: KeyPath) -> str:
    """Return the path in TOML notation: `experts."@org/a".delegates[0]`."""
    spelt = ""
    for part in path:
        if isinstance(part, int):
            spelt += f"[{part}]"
            continue
        name = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
        spelt += f".{name}" if spelt else name
    return spelt


# Annotations on model fields: what a key of perstack.toml means, and which values are allowed. The type and default are
# the field's own. Rules hold for definition files only: recorded values followed the rules of their version, and values
# made in Python are the caller's responsibility.

FROM_FILE: Final = object()  # validation context in which rules hold
PART_OF_FILE: Final = object()  # context for valid parts of an invalid table: in file form, and checked already

BROKEN: Final = "brokenRule"
EMPTY: Final = "must not be empty"


KeyEffect = Literal["text", "narrows", "executes", "reads", "writes", "reaches", "pays", "table"]
"""Effect of a key of a definition. `text`: what a model reads, or a choice that costs and opens nothing. `narrows`: a
limit or a refusal, up to `Key.widens_above`. The next five act on the user's machine, data or account, and have no
effect before the user has agreed: the key starts a program or lets one run, reads or writes files outside the
definition's folder, reaches an address, or spends more than a limit says. `table`: the keys of its tables have them."""


def _never(value: object) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Key:
    """Annotation of a field that is a key of perstack.toml."""

    meaning: str
    effect: KeyEffect
    name: str | None = None  # name in files, if it differs from the recorded name
    is_required: bool = False  # True if files must have the key although recorded definitions need not
    default: float | None = None  # value in force if no level sets one; None if `meaning` says what applies then
    zero_lifts: bool = False  # True if 0 means no limit
    widens_above: float | None = None  # a limit above this, or none, permits more spending: its effect is `pays`
    is_path: bool = False  # True if paths, and addresses of files, within the definition's folder have no effect
    is_inert: Callable[[object], bool] = _never  # returns whether a value, or one item of a list, has no effect

    def widens(self, value: object) -> bool:
        """Return True if a limit permits more spending than `widens_above` does."""
        if self.widens_above is None or not isinstance(value, int | float):
            return False
        return value > self.widens_above or (self.zero_lifts and value == 0)

    @property
    def text(self) -> str:
        """The meaning with the default, for docs, messages and the JSON schema."""
        default = "" if self.default is None else f"; default {self.default}"
        return f"{self.meaning}{default}{', 0 for no limit' if self.zero_lifts else ''}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule for the value of a key, beyond its type. An absent value satisfies every rule."""

    find_problem: Callable[..., str | None]  # return what is wrong, as a phrase that follows the key; None if nothing
    limit: str = ""  # limit to show in the docs' list of keys, if the meaning does not say it
    least: int | None = None  # minimum of a number

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Apply the rule after pydantic's own validation."""

        def check_rule(value: object, info: core_schema.ValidationInfo[object]) -> object:
            if info.context is FROM_FILE and value is not None and (problem := self.find_problem(value)) is not None:
                raise _refusal(problem)
            return value

        return core_schema.with_info_after_validator_function(check_rule, handler(source))


@dataclass(frozen=True, slots=True)
class InText:
    """Annotation of a value that definition files have as text."""

    read: Callable[[str], object]  # convert the text. Raises ValueError with a message that follows its key's name

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Convert the text before pydantic's own validation."""

        def read(value: object, info: core_schema.ValidationInfo[object]) -> object:
            if info.context not in (FROM_FILE, PART_OF_FILE):
                return value
            if not isinstance(value, str):
                raise PydanticKnownError("string_type")
            try:
                return self.read(value)
            except ValueError as error:
                raise _refusal(str(error) if value.strip() else EMPTY) from error

        return core_schema.with_info_before_validator_function(read, handler(source))


@dataclass(frozen=True, slots=True)
class AsIs:
    """Annotation of a field that pydantic does not validate: a dataclass validator costs 4 ms at every start."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept any value."""
        return core_schema.any_schema()


def _refusal(words: str) -> PydanticCustomError:
    return PydanticCustomError(BROKEN, "{words}", {"words": words})


def at_least(least: int) -> Rule:
    """Return a rule with a minimum for numbers; values of other types satisfy it."""

    def minimum_problem(value: object) -> str | None:
        return f"must be at least {least}, not {value}" if isinstance(value, int) and value < least else None

    return Rule(minimum_problem, least=least)


def at_most(max_chars: int) -> Rule:
    """Return a rule with a maximum number of characters."""

    def length_problem(text: str) -> str | None:
        return f"has {len(text):,} characters: shorten it to {max_chars:,}" if len(text) > max_chars else None

    return Rule(length_problem, f"at most {max_chars:,} characters")


def _emptiness_problem(value: object) -> str | None:
    if isinstance(value, str) and "\0" in value:
        return "must not contain a NUL character: leave it out"
    return None if (value.strip() if isinstance(value, str) else value) else EMPTY


NOT_EMPTY: Final = Rule(_emptiness_problem)  # text that is not blank and has no NUL, or a list with items


EXPERT_KEY = r"^(@[a-z0-9][a-z0-9._-]*/)?[a-zA-Z0-9][a-zA-Z0-9._-]*$"
"""Pattern of an Expert's key without its version: `name`, `@coordinator/name`, or `@org/name` of a published one."""

RUNTIME_LEVEL = (1, 0, 0)  # version of the original's runtime, which `minRuntimeVersion` is compared with

_MAX_NAME_CHARS = 255
_VERSION = r"(?a)(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[\w.-]+)?(?:\+[\w.-]+)?"
_LEVEL = r"(?a)v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:[-+][0-9A-Za-z.+-]+)?"
_ENTRY = r"\w+(\.\w+)*:\w+(\.\w+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*"
_VARIABLE = r"env:[A-Za-z_][A-Za-z0-9_]*"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def key_and_version(key: str) -> tuple[str, str | None]:
    """Split `name@version`; a leading `@` belongs to a scope and starts no version."""
    name, separator, version = key.rpartition("@")
    return (name, version) if separator and name else (key, None)


def scope_of(key: str) -> str | None:
    """Return the scope of `@scope/name`; None for a key without one."""
    scope, separator, _ = key.removeprefix("@").partition("/")
    return scope if separator and key.startswith("@") else None


def delegation_problem(key: str, delegate: str, keys: Container[str]) -> str | None:
    """Return why the Expert `key` may not delegate to an existing Expert, or None. `keys` are those of all Experts.

    A scope that is the key of an Expert makes the Expert a delegate of that coordinator: the coordinator and its other
    delegates may call it, and it must not call the coordinator. Any other scope is a publisher's, and says nothing.
    """
    scope, own_scope = scope_of(delegate), scope_of(key)
    if scope is not None and scope in keys and scope not in (key, own_scope):
        return f"`{delegate}` is a delegate of `{scope}` alone: delegate to `{scope}`, or name it without `@{scope}/`"
    if own_scope == delegate:
        return f"`{key}` is a delegate of `{delegate}`, and must not call it: it returns its result to it"
    return None


def hint_for_scoped_key(key: str, keys: Container[str] = ()) -> str:
    """Return what to do about an unknown Expert whose key has a scope; empty for a key without one.

    `keys` are those of all Experts. A scope that is not among them counts as a publisher's.
    """
    scope = scope_of(key)
    if scope is None:
        return ""
    if scope in keys:
        return f'; define it in [experts."{key}"]'
    return "; bring a published Expert over with `include`: docs/from-perstack.md"


def expert_key_problem(key: str) -> str | None:
    if re.fullmatch(EXPERT_KEY, key) and len(key) <= _MAX_NAME_CHARS:
        return None
    name, version = key_and_version(key)
    if version is not None and re.fullmatch(EXPERT_KEY, name):
        return f'an Expert\'s key has no version in it: name it `{name}` and write version = "{version}"'
    if len(key) > _MAX_NAME_CHARS:
        return f"an Expert's key has at most {_MAX_NAME_CHARS} characters, this one {len(key)}"
    return (
        "is not a valid Expert key: `name` or `@coordinator/name`, of letters, digits, `.`, `_` and `-`,"
        " a letter or digit first"
    )


def version_problem(version: str) -> str | None:
    return None if re.fullmatch(_VERSION, version) else f'must be a semantic version such as "1.0.0", not "{version}"'


def runtime_level_problem(version: str) -> str | None:
    """Refuse a `minRuntimeVersion` that is invalid or higher than `RUNTIME_LEVEL`."""
    level = re.fullmatch(_LEVEL, version)
    if level is None:
        return f'must be a version such as "v1.0", not "{version}"'
    if tuple(int(part or 0) for part in level.groups()) > RUNTIME_LEVEL:
        own_level = ".".join(map(str, RUNTIME_LEVEL[:2]))
        return f"needs runtime {version}, but this one is v{own_level}: install a newer one"
    return None


def domain_problem(domain: str) -> str | None:
    """Refuse what is not a domain, and punycode."""
    if not re.fullmatch(_DOMAIN, domain):
        return "is not a domain: write `example.com`, or `*.example.com` for all below it"
    # a punycode name can look like another domain
    if any(part.casefold().startswith("xn--") for part in domain.split(".")):
        return "must not be punycode (xn--): only plain ASCII domains are accepted"
    return None


def issuer_problem(issuer: str) -> str | None:
    is_address = issuer.startswith(("https://", "http://"))
    return None if is_address else "must be an address such as https://auth.example.com"


def entry_problem(entry: str) -> str | None:
    """Refuse what is not `package.module:function`."""
    return None if re.fullmatch(_ENTRY, entry) else f'must be "package.module:function", not "{entry}"'


def number_problem(number: float) -> str | None:
    """Refuse infinity and NaN."""
    return None if isfinite(number) else "must be a finite number"


def budget_problem(dollars: float) -> str | None:
    """Return what is wrong with a budget in US dollars, or None."""
    return None if isfinite(dollars) and 0 < dollars <= 1_000_000_000 else "must be US dollars, more than 0"


def price_problem(dollars: float) -> str | None:
    """Return what is wrong with a price in US dollars per million tokens, or None."""
    return None if isfinite(dollars) and 0 <= dollars <= 1_000_000 else "must be US dollars for a million tokens"


def tool_price_problem(dollars: float) -> str | None:
    """Return what is wrong with a price in US dollars per thousand uses of a tool, or None."""
    return None if isfinite(dollars) and 0 <= dollars <= 1_000_000 else "must be US dollars for a thousand uses"


def anchor_problem(anchor: str | Sequence[str]) -> str | None:
    """Refuse what is not `file:PATH`, an https address or a program."""
    from urllib.parse import urlsplit  # few definitions have an anchor

    if not isinstance(anchor, str):
        return None if anchor and anchor[0] else "names no program: the first item of the list must be a program"
    if anchor.startswith("file:"):
        return None if anchor != "file:" else "names no file: write `file:PATH`"
    if not anchor.startswith(("https://", "http://")):
        return 'must be `file:PATH`, an `https://` address, or a program as a list: ["program", "argument"]'
    try:
        address = urlsplit(anchor)
        host = address.hostname
        has_user = address.username is not None or address.password is not None
    except ValueError:
        return "is not an address"
    if has_user:
        return "must not contain a user or a password: name a program instead, which gets them from elsewhere"
    if address.scheme == "http" and host not in _LOOPBACK:
        return "must be `https://`: without encryption, what is sent can be changed on its way"
    return None if host else "is not an address: the host is missing"


def key_reference_problem(key: str) -> str | None:
    """Refuse what is not a reference to a key, without repeating the text: it may be the key itself."""
    if re.fullmatch(_VARIABLE, key) or (key.startswith("file:") and key != "file:"):
        return None
    return "must name a file, `file:PATH`, or a variable, `env:NAME`: the key itself does not belong here"


def parse_schema(text: str) -> JsonObject:
    """Return the JSON schema of an object from a text. Raises ValueError that says what is wrong with the text."""
    try:
        schema: JsonValue = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError:
        raise ValueError("is nested too deeply: make it flatter") from None
    if not isinstance(schema, dict):
        raise ValueError('must be the JSON schema of an object: write {"type": "object", …}')
    if schema.get("type", "object") != "object":
        raise ValueError(f'must be the schema of an object: write "type": "object", not {json.dumps(schema["type"])}')
    return {"type": "object", **schema}
