"""Agent Skills in their public format: folders with a SKILL.md, whose front matter is YAML and whose body is Markdown.

The rules follow the format's specification and its validator. Unknown keys are ignored and reported, because other
programs have keys of their own. Any other problem makes the skill unusable.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Protocol, TypeAlias, cast

from perstack.dataclass import dataclass

# Untrusted YAML is limited to plain tables, lists and texts.

MAX_YAML_DEPTH = 4  # maximum nesting of tables and lists
_MAX_YAML_VALUES = 1_000  # maximum number of values

Value: TypeAlias = "str | Sequence[Value] | Mapping[str, Value]"


class NotPlain(ValueError):
    """YAML outside the accepted subset; the message continues the file's name."""


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
        return _Reading(events).table()
    except yaml.YAMLError as error:
        raise NotPlain(f"has YAML that cannot be read{_yaml_problem(error, first_line)}") from None


def _yaml_problem(error: Exception, first_line: int) -> str:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f" at line {mark.line + first_line}"
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    hint = "; put a text that has `: ` in it in quotes" if problem.startswith("mapping values") else ""
    return f"{line} ({problem}){hint}"


class _Reading:
    """Convert parser events into values one at a time, so that the parser never runs ahead."""

    def __init__(self, events: Iterator[_YamlEvent]) -> None:
        self._events = events
        self._count = 0

    def table(self) -> Mapping[str, Value]:
        """Return the only document, which must be a table. Raises NotPlain."""
        kind, _ = self._next_event()
        if kind == "StreamStart":
            kind, _ = self._next_event()
        document = self._value(*self._next_event(), 1) if kind == "DocumentStart" else ""
        if not isinstance(document, Mapping):
            raise NotPlain("has no table in its YAML")
        self._next_event()
        if self._next_event()[0] != "StreamEnd":
            raise NotPlain("has several documents in its YAML")
        return document

    def _next_event(self) -> tuple[str, _YamlEvent]:
        event = next(self._events)
        kind = type(event).__name__.removesuffix("Event")
        self._count += 1
        if self._count > _MAX_YAML_VALUES:
            raise NotPlain(f"has more than {_MAX_YAML_VALUES} values in its YAML")
        if kind == "Alias" or getattr(event, "anchor", None) is not None:
            raise NotPlain("has an anchor or an alias in its YAML: write the value out")
        if kind != "DocumentStart" and getattr(event, "tag", None) is not None:
            raise NotPlain("has a tag in its YAML: leave it out")
        return kind, event

    def _value(self, kind: str, event: _YamlEvent, level: int) -> Value:
        if level > MAX_YAML_DEPTH:
            raise NotPlain(f"is nested more than {MAX_YAML_DEPTH} levels deep in its YAML")
        match kind:
            case "Scalar":
                return event.value
            case "SequenceStart":
                return self._items(level)
            case _:
                return self._entries(level)

    def _items(self, level: int) -> list[Value]:
        items: list[Value] = []
        while (item := self._next_event())[0] != "SequenceEnd":
            items.append(self._value(*item, level + 1))
        return items

    def _entries(self, level: int) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        while (item := self._next_event())[0] != "MappingEnd":
            kind, key = item
            if kind != "Scalar":
                raise NotPlain("has a key in its YAML that is no text")
            if key.value in entries:
                raise NotPlain(f"has `{key.value[:64]}` twice in its YAML")
            entries[key.value] = self._value(*self._next_event(), level + 1)
        return entries


SKILL_FILE = "SKILL.md"

MAX_HEAD_BYTES = 16 << 10  # maximum bytes of the front matter
_MAX_NAME_CHARS = 64
_MAX_DESCRIPTION_CHARS = 1024
_MAX_COMPATIBILITY_CHARS = 500
_FENCE = "---"
_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


class NotASkill(ValueError):
    """Folder that is not a valid skill; the message continues its name."""


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


def divided(text: str) -> tuple[str, str]:
    """Split a SKILL.md into its YAML front matter and its body. Raises NotASkill."""
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[0].rstrip() != _FENCE:
        raise NotASkill(f"must begin with a line `{_FENCE}` and YAML below it")
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == _FENCE:
            head = "\n".join(lines[1:number])
            if len(head.encode(errors="replace")) > MAX_HEAD_BYTES:
                raise NotASkill(
                    f"has more than {MAX_HEAD_BYTES >> 10} KiB above its second line `{_FENCE}`: shorten it"
                )
            return head, "\n".join(lines[number + 1 :]).strip()
    raise NotASkill(f"has no second line `{_FENCE}`, which ends its YAML")


def read_head(head: str, folder: str) -> tuple[SkillHead, tuple[str, ...]]:
    """Return the front matter's entries and all problems found in them, for a skill in a folder of this name."""
    try:
        table = read_table(head, first_line=2)
    except NotPlain as error:
        return SkillHead(), (str(error),)
    problems: list[str] = []
    skill_head = SkillHead(
        name=_name(table, folder, problems),
        description=_text(table, "description", _MAX_DESCRIPTION_CHARS, problems, is_required=True),
        license=_text(table, "license", MAX_HEAD_BYTES, problems),
        compatibility=_text(table, "compatibility", _MAX_COMPATIBILITY_CHARS, problems),
        metadata=_metadata(table, problems),
        allowed_tools=_allowed_tools(table, problems),
        ignored=tuple(key for key in table if key not in _KEYS),
    )
    return skill_head, tuple(problems)


def wrong_skill_name(name: str) -> str | None:
    """Return what is wrong with a skill's name, or None."""
    plain = unicodedata.normalize("NFKC", name)
    if not plain:
        return "must not be empty"
    if len(plain) > _MAX_NAME_CHARS:
        return f"has {len(plain)} characters: shorten it to {_MAX_NAME_CHARS}"
    if plain != plain.lower():
        return f"must be in lower-case letters, not `{plain}`"
    if not all(char.isalnum() or char == "-" for char in plain):
        return f"must be of letters, digits and hyphens alone, not `{plain}`"
    if plain.startswith("-") or plain.endswith("-") or "--" in plain:
        return f"must have its hyphens between letters, one at a time, not `{plain}`"
    return None


def _name(table: Mapping[str, Value], folder: str, problems: list[str]) -> str:
    name = unicodedata.normalize("NFKC", _text(table, "name", MAX_HEAD_BYTES, problems, is_required=True))
    problem = wrong_skill_name(name) if name else None
    if problem is None and name and name != unicodedata.normalize("NFKC", folder):
        problem = f"must be that of its folder, `{folder}`, not `{name}`"
    if problem is not None:
        problems.append(f"`name` {problem}")
    return name


def _text(
    table: Mapping[str, Value], key: str, max_chars: int, problems: list[str], *, is_required: bool = False
) -> str:
    value = table.get(key)
    if value is None:
        if is_required:
            problems.append(f"`{key}` is missing")
        return ""
    if not isinstance(value, str):
        problems.append(f"`{key}` must be text")
        return ""
    text = value.strip()
    if not text and is_required:
        problems.append(f"`{key}` must not be empty")
    if len(text) > max_chars:
        problems.append(f"`{key}` has {len(text):,} characters: shorten it to {max_chars:,}")
        return ""
    return text


def _metadata(table: Mapping[str, Value], problems: list[str]) -> Mapping[str, str] | None:
    value = table.get("metadata")
    if value is None or value == "":
        return None
    if not isinstance(value, Mapping):
        problems.append("`metadata` must be a table of texts")
        return None
    texts = {key: text for key, text in value.items() if isinstance(text, str)}
    if len(texts) != len(value):
        problems.append("`metadata` must be a table of texts")
    return texts


def _allowed_tools(table: Mapping[str, Value], problems: list[str]) -> tuple[str, ...]:
    value = table.get("allowed-tools")
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(_words(value))
    names = () if isinstance(value, Mapping) else tuple(item for item in value if isinstance(item, str))
    if isinstance(value, Mapping) or len(names) != len(value):
        problems.append("`allowed-tools` must be text, or a list of texts")
    return names


def _words(text: str) -> Iterable[str]:
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
