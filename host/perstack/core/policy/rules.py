"""The syntax of a permission rule: `TOOL`, `SKILL/TOOL` or `delegate/EXPERT`, with arguments in parentheses or without.

`exec(git push *)` has a bare glob; `deleteDirectory(path=src/**, recursive=true)` names arguments, and all must match.
"""

from __future__ import annotations

import re
from functools import lru_cache

from perstack.core.policy.globs import Glob
from perstack.dataclass import dataclass

DELEGATE = "delegate"

_LONGEST = 4_000
_NAMED = r"\s*(?P<name>[A-Za-z_][\w.-]*)\s*="
_NEXT = r",\s*(?=[A-Za-z_][\w.-]*\s*=)"


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """A rule, taken apart."""

    text: str
    tool: Glob
    """Of an Expert's key, for a delegate."""
    skill: Glob | None = None
    is_delegate: bool = False
    bare: Glob | None = None
    named: tuple[tuple[str, Glob], ...] = ()

    @property
    def has_arguments(self) -> bool:
        return self.bare is not None or bool(self.named)

    @property
    def weight(self) -> tuple[bool, int, int, int]:
        """How particular it is: of two rules that match, the one that weighs more wins."""
        arguments = self.bare.weight if self.bare is not None else sum(glob.weight for _, glob in self.named)
        return self.has_arguments, arguments, self.tool.weight, 0 if self.skill is None else self.skill.weight


@lru_cache(maxsize=4096)
def read_rule(text: str) -> PermissionRule:
    """Raises ValueError that says what is wrong with the rule, in words that follow the name of its key."""
    if not text.strip():
        raise ValueError("must not be empty")
    if len(text) > _LONGEST:
        raise ValueError(f"has {len(text):,} characters: shorten it to {_LONGEST:,}")
    if "\0" in text:
        raise ValueError("must not contain a NUL character: leave it out")
    head, opened, rest = text.strip().partition("(")
    if opened and not rest.endswith(")"):
        raise ValueError(f"`{text}` has no `)` at its end: write `TOOL(…)`")
    if not opened and ")" in head:
        raise ValueError(f"`{text}` has no `(`: write `TOOL(…)`")
    is_delegate, skill, tool = _head(head.strip(), text)
    bare, named = _arguments(rest[:-1], text) if opened else (None, ())
    return PermissionRule(text, Glob(tool), None if skill is None else Glob(skill), is_delegate, bare, named)


def wrong_rule(text: str) -> str | None:
    """What is wrong with a rule; None if nothing is."""
    try:
        read_rule(text)
    except ValueError as error:
        return str(error)
    return None


def _head(head: str, text: str) -> tuple[bool, str | None, str]:
    if head.startswith(f"{DELEGATE}/"):
        expert = head.removeprefix(f"{DELEGATE}/")
        if not expert:
            raise ValueError(f"`{text}` names no Expert: write `delegate/EXPERT`, or `delegate/*` for all")
        return True, None, expert
    skill, separator, tool = head.rpartition("/")
    if not tool or (separator and not skill):
        raise ValueError(f"`{text}` names no tool: write `TOOL`, `SKILL/TOOL` or `delegate/EXPERT`")
    if re.search(r"\s", tool):
        raise ValueError(f"`{text}` has a space in the tool's name: arguments stand in parentheses, `TOOL(…)`")
    return False, skill if separator else None, tool


def _arguments(inside: str, text: str) -> tuple[Glob | None, tuple[tuple[str, Glob], ...]]:
    if not inside.strip():
        raise ValueError(f"`{text}` has nothing in its parentheses: leave them out, or write `TOOL(*)`")
    if re.match(_NAMED, inside) is None:
        return Glob(inside.strip()), ()
    named: dict[str, Glob] = {}
    for part in re.split(_NEXT, inside):
        found = re.match(_NAMED, part)
        if found is None:
            raise ValueError(f"`{text}` has an argument without a name: write `name=GLOB, name=GLOB`")
        name = found["name"]
        if name in named:
            raise ValueError(f"`{text}` names the argument {name} twice: write two rules")
        named[name] = Glob(part[found.end() :].strip())
    return None, tuple(named.items())
