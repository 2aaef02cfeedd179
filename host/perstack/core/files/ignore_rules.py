"""git's rules of what to ignore, asked of one name at a time on the way down: whoever asks does not go into a folder
that is ignored. Names and rules are bytes, as they are to git; each pattern is matched in linear time.

Of several rules the last one that matches decides, and of several files the one nearest to the name; what
`.perstackignore` at the top says goes before all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from perstack.core.patterns import Pattern, compiled_bytes
from perstack.dataclass import dataclass

LONGEST_RULES = 256 << 10
"""Bytes that are read of one file of rules."""
_MOST_RULES = 2_000
_LONGEST_RULE = 1_000
_TOGETHER = 50
"""So many patterns are asked in one before each of them is."""

_DIRECTORY = "(?P<ps_d>/)"
_EITHER = f"(?:{_DIRECTORY}|$)"


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: Pattern
    ignores: bool
    """Otherwise what matches is recorded, whatever earlier rules say."""


@dataclass(frozen=True, slots=True)
class _RuleFile:
    groups: tuple[tuple[Pattern | None, tuple[_Rule, ...]], ...]
    """The last rules first: each group with one pattern that matches if one of it does."""

    def verdict(self, path: bytes) -> bool | None:
        """Whether what has this path, seen from the file's folder, is ignored; None if no rule is about it."""
        for together, rules in self.groups:
            if together is not None and not together.search(path):
                continue
            for rule in rules:
                if rule.pattern.search(path):
                    return rule.ignores
        return None


@dataclass(frozen=True, slots=True)
class _Layer:
    """A file of rules, and how many bytes of a path lead to the folder that it stands in."""

    rules: _RuleFile
    length: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What is ignored in one folder."""

    place: bytes = b""
    """The folder, from the top of the repository, with a slash behind it; empty there."""
    layers: tuple[_Layer, ...] = ()
    """The strongest first."""
    first: _Layer | None = None
    """`.perstackignore`."""

    def inside(self, name: bytes, gitignore: bytes | None) -> Rules:
        """Those in a folder of this one, with what its own `.gitignore` says."""
        place = self.place + name + b"/"
        return _with(replace(self, place=place), gitignore)

    def ignores(self, name: bytes, *, is_folder: bool) -> bool:
        """Whether a name in this folder is ignored, and with it what is below."""
        if self.first is None and not self.layers:
            return False
        path = self.place + name + (b"/" if is_folder else b"")
        for layer in (self.first, *self.layers):
            verdict = None if layer is None else layer.rules.verdict(path[layer.length :])
            if verdict is not None:
                return verdict
        return False


def rules_at(
    above: Sequence[tuple[bytes, bytes | None]], *, exclude: bytes | None = None, perstackignore: bytes | None = None
) -> Rules:
    """The rules in the workspace's folder.

    `above` are the folders from the top of the repository to the workspace, each by its name (the first by none), with
    its `.gitignore`; `exclude` is what the repository ignores besides.
    """
    rules = _with(Rules(), exclude)
    for place, (name, gitignore) in enumerate(above):
        rules = rules.inside(name, gitignore) if place else _with(rules, gitignore)
    if perstackignore:
        rules = replace(rules, first=_Layer(_read(perstackignore[:LONGEST_RULES]), len(rules.place)))
    return rules


def _with(rules: Rules, text: bytes | None) -> Rules:
    if not text:
        return rules
    return replace(rules, layers=(_Layer(_read(text[:LONGEST_RULES]), len(rules.place)), *rules.layers))


@lru_cache(maxsize=256)
def _read(text: bytes) -> _RuleFile:
    found: list[tuple[str, bool]] = []
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:_MOST_RULES]:
        if len(line) <= _LONGEST_RULE and (rule := _translated(line.rstrip(b"\r").decode("latin-1"))) is not None:
            found.append(rule)
    groups: list[tuple[Pattern | None, tuple[_Rule, ...]]] = []
    found.reverse()
    for first in range(0, len(found), _TOGETHER):
        group = found[first : first + _TOGETHER]
        rules = [(compiled_bytes(text.encode("latin-1")), ignores) for text, ignores in group]
        together = compiled_bytes("|".join(f"(?:{text})" for text, _ in group).encode("latin-1"))
        groups.append((together, tuple(_Rule(one, ignores) for one, ignores in rules if one is not None)))
    return _RuleFile(tuple(groups))


def _translated(line: str) -> tuple[str, bool] | None:
    """A rule as an expression for paths, those of folders with a slash at the end, and whether it ignores; None for a
    line that is no rule. The library's expressions match also what is in a folder that they match: nobody gets there.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # 100 ms of imports

    folders_inside = line.rstrip(" ").endswith("/**/")  # which the library takes for the folder itself
    try:
        text, ignores = GitIgnoreSpecPattern.pattern_to_regex(line.rstrip(" ")[:-1] if folders_inside else line)
    except ValueError:
        return None
    if text is None or ignores is None:
        return None
    if text.endswith(_EITHER):
        text = f"{text.removesuffix(_EITHER)}/?$"
    elif text.endswith(_DIRECTORY):
        text = f"{text.removesuffix(_DIRECTORY)}/$"
    elif text.endswith("/"):
        text += ".+/$" if folders_inside else "."
    elif folders_inside:
        text = "/$"
    return text.replace(_DIRECTORY, "/"), ignores
