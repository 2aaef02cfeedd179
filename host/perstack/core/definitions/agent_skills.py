"""Agent Skills, as their public format has them: a folder with a SKILL.md, whose head is YAML and whose body Markdown.

The rules are those of the format's specification and of its validator. A key that the format does not know is ignored,
and said: other programs have keys of their own. What is wrong otherwise keeps a skill from being used.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from hashlib import sha256

from perstack.core.plain_yaml import NotPlain, Value, read_table
from perstack.dataclass import dataclass

SKILL_FILE = "SKILL.md"

LONGEST_HEAD = 16 << 10
"""Bytes."""
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1024
_LONGEST_COMPATIBILITY = 500
_FENCE = "---"
_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")


class NotASkill(ValueError):
    """Why a folder is no skill, in words that follow its name."""


@dataclass(frozen=True, slots=True)
class SkillHead:
    """What the head of a SKILL.md says, and nothing of what it is wrong about."""

    name: str = ""
    description: str = ""
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, str] | None = None
    allowed_tools: tuple[str, ...] = ()
    """For people to see: it grants nothing."""
    ignored: tuple[str, ...] = ()
    """Keys that the format does not have."""


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill, as it was when the skill was read."""

    path: str
    """From the skill's folder, with slashes."""
    sha256: str
    size: int


def digest_of_files(files: Iterable[SkillFile]) -> str:
    """Of all files of a skill: of lines as `sha256sum` writes them, in the order of their paths."""
    lines = (f"{one.sha256}  {one.path}\n" for one in sorted(files, key=lambda one: one.path))
    return f"sha256:{sha256(''.join(lines).encode(errors='surrogateescape')).hexdigest()}"


def is_part_of_skill(name: str) -> bool:
    """Whether a file or folder of that name belongs to a skill: hidden ones, such as `.env`, and what Python leaves
    behind when a script is run do not."""
    return not name.startswith(".") and name != "__pycache__"


def divided(text: str) -> tuple[str, str]:
    """The head of a SKILL.md, as YAML, and its body. Raises NotASkill."""
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[0].rstrip() != _FENCE:
        raise NotASkill(f"must begin with a line `{_FENCE}` and YAML below it")
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == _FENCE:
            head = "\n".join(lines[1:number])
            if len(head.encode(errors="replace")) > LONGEST_HEAD:
                raise NotASkill(f"has more than {LONGEST_HEAD >> 10} KiB above its second line `{_FENCE}`: shorten it")
            return head, "\n".join(lines[number + 1 :]).strip()
    raise NotASkill(f"has no second line `{_FENCE}`, which ends its YAML")


def read_head(head: str, folder: str) -> tuple[SkillHead, tuple[str, ...]]:
    """What YAML says of the skill in a folder of that name, and all that is wrong with it."""
    try:
        table = read_table(head, first_line=2)
    except NotPlain as error:
        return SkillHead(), (str(error),)
    problems: list[str] = []
    found = SkillHead(
        name=_name(table, folder, problems),
        description=_text(table, "description", _LONGEST_DESCRIPTION, problems, is_required=True),
        license=_text(table, "license", LONGEST_HEAD, problems),
        compatibility=_text(table, "compatibility", _LONGEST_COMPATIBILITY, problems),
        metadata=_metadata(table, problems),
        allowed_tools=_allowed_tools(table, problems),
        ignored=tuple(key for key in table if key not in _KEYS),
    )
    return found, tuple(problems)


def wrong_skill_name(name: str) -> str | None:
    """What is wrong with a skill's name."""
    plain = unicodedata.normalize("NFKC", name)
    if not plain:
        return "must not be empty"
    if len(plain) > _LONGEST_NAME:
        return f"has {len(plain)} characters: shorten it to {_LONGEST_NAME}"
    if plain != plain.lower():
        return f"must be in lower-case letters, not `{plain}`"
    if not all(sign.isalnum() or sign == "-" for sign in plain):
        return f"must be of letters, digits and hyphens alone, not `{plain}`"
    if plain.startswith("-") or plain.endswith("-") or "--" in plain:
        return f"must have its hyphens between letters, one at a time, not `{plain}`"
    return None


def _name(table: Mapping[str, Value], folder: str, problems: list[str]) -> str:
    name = unicodedata.normalize("NFKC", _text(table, "name", LONGEST_HEAD, problems, is_required=True))
    wrong = wrong_skill_name(name) if name else None
    if wrong is None and name and name != unicodedata.normalize("NFKC", folder):
        wrong = f"must be that of its folder, `{folder}`, not `{name}`"
    if wrong is not None:
        problems.append(f"`name` {wrong}")
    return name


def _text(table: Mapping[str, Value], key: str, longest: int, problems: list[str], *, is_required: bool = False) -> str:
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
    if len(text) > longest:
        problems.append(f"`{key}` has {len(text):,} characters: shorten it to {longest:,}")
        return ""
    return text


def _metadata(table: Mapping[str, Value], problems: list[str]) -> Mapping[str, str] | None:
    value = table.get("metadata")
    if value is None or value == "":
        return None
    if not isinstance(value, Mapping):
        problems.append("`metadata` must be a table of texts")
        return None
    found = {key: one for key, one in value.items() if isinstance(one, str)}
    if len(found) != len(value):
        problems.append("`metadata` must be a table of texts")
    return found


def _allowed_tools(table: Mapping[str, Value], problems: list[str]) -> tuple[str, ...]:
    value = table.get("allowed-tools")
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(_words(value))
    found = () if isinstance(value, Mapping) else tuple(one for one in value if isinstance(one, str))
    if isinstance(value, Mapping) or len(found) != len(value):
        problems.append("`allowed-tools` must be text, or a list of texts")
    return found


def _words(text: str) -> Iterable[str]:
    """The words of a text; blanks in brackets, as in `Bash(git log)`, part none."""
    word, depth = "", 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign.isspace() and depth <= 0:
            if word:
                yield word
            word = ""
        else:
            word += sign
    if word:
        yield word
