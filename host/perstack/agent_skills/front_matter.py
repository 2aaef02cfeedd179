"""Agent Skills in their public format: folders with a SKILL.md, whose front matter is YAML and whose body is Markdown.

Public skills are written for programs that are tolerant, so only what leaves nothing to use makes a skill unusable: no
front matter, no description, other bytes than UTF-8. Everything else is read as well as it can be and reported: a key
that the YAML parser refuses is read by itself, as text; what is too long is shortened; what has the wrong type is made
text or ignored. The folder's name is always the name of the skill.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Protocol, TypeAlias, cast

from perstack.core.definitions.skills import MAX_SKILL_NAME_CHARS
from perstack.dataclass import dataclass

# Untrusted YAML is limited to plain tables, lists and texts.

MAX_YAML_DEPTH = 4  # maximum nesting of tables and lists
_MAX_YAML_VALUES = 1_000  # maximum number of values

Value: TypeAlias = "str | Sequence[Value] | Mapping[str, Value]"


class NotPlain(ValueError):
    """Raised for YAML outside the accepted subset; the message is a predicate of the file's name."""


class _YamlEvent(Protocol):
    """PyYAML parser event; PyYAML ships no types."""

    anchor: str | None
    tag: str | None
    value: str


def read_table(text: str, first_line: int = 1) -> Mapping[str, Value]:
    """Return the table in a YAML text; `first_line` is the line of its file at which it begins.

    Raises NotPlain. All values stay texts; none becomes a date, a number or a boolean. Aliases are refused, because a
    few bytes could expand to gigabytes, and so are tags, which name types to construct. Time grows with the length of
    the text only.
    """
    import yaml

    # the Python parser, because the C one aborts on some texts; a table this small is parsed quickly
    events = cast("Iterator[_YamlEvent]", yaml.parse(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    try:
        return _YamlReader(events).read_document()
    except yaml.YAMLError as error:
        raise NotPlain(f"has YAML that cannot be read{_yaml_problem(error, first_line)}") from None


def _yaml_problem(error: Exception, first_line: int) -> str:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f" at line {mark.line + first_line}"
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    hint = "; put a text that has `: ` in it in quotes" if problem.startswith("mapping values") else ""
    return f"{line} ({problem}){hint}"


class _YamlReader:
    """Converter of parser events into values, one at a time, so that the parser never runs ahead."""

    def __init__(self, events: Iterator[_YamlEvent]) -> None:
        self._events = events
        self._count = 0

    def read_document(self) -> Mapping[str, Value]:
        """Return the only document, which must be a table. Raises NotPlain."""
        kind, _ = self._next_event()
        if kind == "StreamStart":
            kind, _ = self._next_event()
        document = self._read_value(*self._next_event(), 1) if kind == "DocumentStart" else ""
        if not isinstance(document, Mapping):
            raise NotPlain("has no table in its YAML")
        self._next_event()
        if self._next_event()[0] != "StreamEnd":
            raise NotPlain("has several documents in its YAML")
        return document

    def _next_event(self) -> tuple[str, _YamlEvent]:
        yaml_event = next(self._events)
        kind = type(yaml_event).__name__.removesuffix("Event")
        self._count += 1
        if self._count > _MAX_YAML_VALUES:
            raise NotPlain(f"has more than {_MAX_YAML_VALUES} values in its YAML")
        if kind == "Alias" or getattr(yaml_event, "anchor", None) is not None:
            raise NotPlain("has an anchor or an alias in its YAML: write the value out")
        if kind != "DocumentStart" and getattr(yaml_event, "tag", None) is not None:
            raise NotPlain("has a tag in its YAML: leave it out")
        return kind, yaml_event

    def _read_value(self, kind: str, yaml_event: _YamlEvent, level: int) -> Value:
        if level > MAX_YAML_DEPTH:
            raise NotPlain(f"is nested more than {MAX_YAML_DEPTH} levels deep in its YAML")
        match kind:
            case "Scalar":
                return yaml_event.value
            case "SequenceStart":
                return self._read_items(level)
            case _:
                return self._read_entries(level)

    def _read_items(self, level: int) -> list[Value]:
        items: list[Value] = []
        while (item := self._next_event())[0] != "SequenceEnd":
            items.append(self._read_value(*item, level + 1))
        return items

    def _read_entries(self, level: int) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        while (item := self._next_event())[0] != "MappingEnd":
            kind, key = item
            if kind != "Scalar":
                raise NotPlain("has a key in its YAML that is not a string")
            if key.value in entries:
                raise NotPlain(f"has `{key.value[:64]}` twice in its YAML")
            entries[key.value] = self._read_value(*self._next_event(), level + 1)
        return entries


# A front matter that is not plain YAML is read key by key, so that one invalid key does not cost the others.

_KEY_LINE = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+(.*))?$")
_BLOCK_SIGN = re.compile(r"[|>][+-]?\d?[+-]?(?: +#.*)?$")


@dataclass(frozen=True, slots=True)
class _KeyLines:
    """A key at the top of a front matter, with the lines of its value."""

    key: str
    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The value as a text, without quotes and signs of a block."""
        first = _KEY_LINE.match(self.lines[0])
        start = (first[2] or "").strip() if first is not None else ""
        rest = [line.strip() for line in self.lines[1:]]
        value = " ".join(part for part in ("" if _BLOCK_SIGN.match(start) else start, *rest) if part)
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        return value[1:-1] if is_quoted else value


def read_keys(text: str, first_line: int = 1) -> tuple[Mapping[str, Value], tuple[str, ...]]:
    """Return the table in a text that is not plain YAML, read key by key, and the corrections that this made.

    A value that cannot be read by itself becomes text. If a key is repeated, the last one wins.
    """
    table: dict[str, Value] = {}
    repairs: list[str] = []
    for block in _split_by_key(text, first_line):
        name = block.key[:MAX_SKILL_NAME_CHARS]
        if block.key in table:
            repairs.append(f"has `{name}` twice: the one at line {block.line} counts")
        try:
            table[block.key] = read_table("\n".join(block.lines), block.line)[block.key]
        except (NotPlain, KeyError):
            table[block.key] = block.text
            repairs.append(f"`{name}` at line {block.line} is not plain YAML, so it is read as text: quote it")
    return table, tuple(repairs)


def _split_by_key(text: str, first_line: int) -> Iterator[_KeyLines]:
    key, start = "", 0
    lines: list[str] = []
    for number, line in enumerate(text.split("\n")[:_MAX_YAML_VALUES], start=first_line):
        key_match = _KEY_LINE.match(line.rstrip())
        if key_match is None:
            if key and not line.startswith("#"):
                lines.append(line.rstrip())
            continue
        if key:
            yield _KeyLines(key, start, tuple(lines))
        key, start, lines = key_match[1], number, [line.rstrip()]
    if key:
        yield _KeyLines(key, start, tuple(lines))


SKILL_FILE = "SKILL.md"

MAX_HEAD_BYTES = 16 << 10  # maximum bytes of the front matter
_MAX_DESCRIPTION_CHARS = 1024
_MAX_COMPATIBILITY_CHARS = 500
_FENCE = "---"
_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


class NotASkill(ValueError):
    """Raised for a folder that is not a valid skill; the message is a predicate of its name."""


@dataclass(frozen=True, slots=True)
class SkillHead:
    """Valid entries of a SKILL.md's front matter."""

    name: str = ""
    description: str = ""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] | None = None
    allowed_tools: tuple[str, ...] = ()  # text for display only: it grants nothing
    ignored: tuple[str, ...] = ()  # keys that the format does not define
    repairs: tuple[str, ...] = ()  # corrections made while reading, as phrases that follow the file's name


@dataclass(frozen=True, slots=True)
class SkillFile:
    """File of a skill, as of the time when the skill was read."""

    path: str  # path relative to the skill's folder, with slashes
    sha256: str
    size: int


def digest_of_files(files: Iterable[SkillFile]) -> str:
    """Return the digest of a skill's files: a hash over lines in `sha256sum` format, sorted by path."""
    lines = (f"{file.sha256}  {file.path}\n" for file in sorted(files, key=lambda file: file.path))
    return f"sha256:{sha256(''.join(lines).encode(errors='surrogateescape')).hexdigest()}"


def is_part_of_skill(name: str) -> bool:
    """Return whether a name belongs to a skill: hidden ones, such as `.env`, and `__pycache__` do not."""
    return not name.startswith(".") and name != "__pycache__"


def split_front_matter(text: str) -> tuple[str, str]:
    """Split a SKILL.md into its YAML front matter and its body. Raises NotASkill."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").lstrip("\n").split("\n")
    if lines[0].rstrip() != _FENCE:
        raise NotASkill(f"must begin with a line `{_FENCE}` and YAML below it")
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == _FENCE:
            yaml_text = "\n".join(lines[1:number])
            if len(yaml_text.encode(errors="replace")) > MAX_HEAD_BYTES:
                raise NotASkill(
                    f"has more than {MAX_HEAD_BYTES >> 10} KiB above its second line `{_FENCE}`: shorten it"
                )
            return yaml_text, "\n".join(lines[number + 1 :]).strip()
    raise NotASkill(f"has no second line `{_FENCE}`, which ends its YAML")


def read_head(yaml_text: str, folder: str) -> tuple[SkillHead, tuple[str, ...]]:
    """Return the entries of a front matter, and the problems that make it unusable; `folder`: the folder's name."""
    repairs: list[str] = []
    try:
        table = read_table(yaml_text, first_line=2)
    except NotPlain as error:
        table, key_repairs = read_keys(yaml_text, first_line=2)
        if not table:
            return SkillHead(), (str(error),)
        repairs += key_repairs
    description = _read_text(table, "description", _MAX_DESCRIPTION_CHARS, repairs)
    skill_head = SkillHead(
        name=_read_name(table, folder, repairs),
        description=description,
        license=_read_text(table, "license", MAX_HEAD_BYTES, repairs),
        compatibility=_read_text(table, "compatibility", _MAX_COMPATIBILITY_CHARS, repairs),
        metadata=_read_metadata(table, repairs),
        allowed_tools=_read_allowed_tools(table, repairs),
        ignored=tuple(key for key in table if key not in _KEYS),
        repairs=tuple(dict.fromkeys(repairs)),
    )
    if description:
        return skill_head, ()
    return skill_head, ("`description` must not be empty" if "description" in table else "`description` is missing",)


def legal_skill_name(folder: str) -> str:
    """Return the nearest legal name for a folder, such as `my-skill` for `My_Skill`; empty if there is none."""
    normalized = unicodedata.normalize("NFKC", folder).lower()
    hyphenated = "".join(char if char.isalnum() else "-" for char in normalized)
    return re.sub(r"-+", "-", hyphenated).strip("-")[:MAX_SKILL_NAME_CHARS].strip("-")


def _read_name(table: Mapping[str, Value], folder: str, repairs: list[str]) -> str:
    """Return the folder's name, under which the skill is known; a different name in the file is only reported."""
    folder_name = unicodedata.normalize("NFKC", folder)
    if "name" not in table:
        repairs.append(f"`name` is missing: the folder's is used, `{folder_name}`")
        return folder_name
    name = unicodedata.normalize("NFKC", _read_text(table, "name", MAX_HEAD_BYTES, repairs))
    if name != folder_name:
        repairs.append(f"`name` is `{name[:MAX_SKILL_NAME_CHARS]}`: the folder's is used, `{folder_name}`")
    return folder_name


def _read_text(table: Mapping[str, Value], key: str, max_chars: int, repairs: list[str]) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        repairs.append(f"`{key}` is not a string: its values are used")
    text = _flatten(value).strip()
    if len(text) <= max_chars:
        return text
    repairs.append(f"`{key}` has {len(text):,} characters: the first {max_chars:,} are used")
    return f"{text[: max_chars - 1].rstrip()}…"


def _flatten(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_flatten(item)}" for key, item in value.items())
    return ", ".join(map(_flatten, value))


def _read_metadata(table: Mapping[str, Value], repairs: list[str]) -> Mapping[str, str] | None:
    value = table.get("metadata")
    if value is None or value == "":
        return None
    if not isinstance(value, Mapping):
        repairs.append("`metadata` is not a table, so it is ignored")
        return None
    if not all(isinstance(item, str) for item in value.values()):
        repairs.append("`metadata` has values that are not strings: they are used as strings")
    return {key: _flatten(item) for key, item in value.items()}


def _read_allowed_tools(table: Mapping[str, Value], repairs: list[str]) -> tuple[str, ...]:
    value = table.get("allowed-tools")
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(_split_words(value))
    names = () if isinstance(value, Mapping) else tuple(item for item in value if isinstance(item, str))
    if len(names) != len(value):
        repairs.append("`allowed-tools` has values that are not strings; they are ignored")
    return names


def _split_words(text: str) -> Iterable[str]:
    """Yield the words of a text; blanks within parentheses, as in `Bash(git log)`, do not split a word."""
    word, depth = "", 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char.isspace() and depth <= 0:
            if word:
                yield word
            word = ""
        else:
            word += char
    if word:
        yield word
