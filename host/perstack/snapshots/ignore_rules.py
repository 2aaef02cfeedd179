"""Apply git's ignore rules to one name at a time, while descending from the workspace's top folder.

The caller must not descend into an ignored folder. Names and rules are bytes, as in git; each pattern is matched in
linear time. The last matching rule of a file decides, the file nearest to the name comes first, and `.perstackignore`
at the top overrides them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from perstack.core.schemas.patterns import Pattern, compiled_bytes
from perstack.dataclass import dataclass

MAX_RULES_BYTES = 256 << 10  # maximum bytes read of one file of rules
_MAX_RULES = 2_000
_MAX_RULE_BYTES = 1_000
_GROUP_SIZE = 50  # number of patterns that are tried as one combined pattern first

_DIRECTORY = "(?P<ps_d>/)"
_EITHER = f"(?:{_DIRECTORY}|$)"


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: Pattern
    ignores: bool  # False for a rule that re-includes what earlier rules ignore


@dataclass(frozen=True, slots=True)
class _RuleFile:
    groups: tuple[tuple[Pattern | None, tuple[_Rule, ...]], ...]  # last rules first, each group with a combined pattern

    def verdict(self, path: bytes) -> bool | None:
        """Return whether a path relative to the file's folder is ignored; None if no rule matches."""
        for combined, rules in self.groups:
            if combined is not None and not combined.search(path):
                continue
            for rule in rules:
                if rule.pattern.search(path):
                    return rule.ignores
        return None


@dataclass(frozen=True, slots=True)
class _Layer:
    """File of rules, with the length of the path of its folder in bytes."""

    rules: _RuleFile
    length: int


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Ignore rules of one folder."""

    place: bytes = b""  # path of the folder from the top of the repository, ending in a slash; empty for the top
    layers: tuple[_Layer, ...] = ()  # files of rules, the strongest first
    first: _Layer | None = None

    def for_subfolder(self, name: bytes, gitignore: bytes | None) -> IgnoreRules:
        """Return the rules of a subfolder that has a `.gitignore`."""
        folder = self.place + name + b"/"
        return _add_layer(replace(self, place=folder), gitignore)

    def ignores(self, name: bytes, *, is_folder: bool) -> bool:
        """Return whether a name in this folder, and all below it, is ignored."""
        if self.first is None and not self.layers:
            return False
        path = self.place + name + (b"/" if is_folder else b"")
        for layer in (self.first, *self.layers):
            verdict = None if layer is None else layer.rules.verdict(path[layer.length :])
            if verdict is not None:
                return verdict
        return False


def rules_at(
    parent_folders: Sequence[tuple[bytes, bytes | None]],
    *,
    exclude: bytes | None = None,
    perstackignore: bytes | None = None,
) -> IgnoreRules:
    """Return the rules of the workspace's folder.

    `parent_folders`: folders from the top of the repository to the workspace, each with its name (empty for the
    first) and its `.gitignore`. `exclude`: the repository's `info/exclude`.
    """
    rules = _add_layer(IgnoreRules(), exclude)
    for index, (name, gitignore) in enumerate(parent_folders):
        rules = rules.for_subfolder(name, gitignore) if index else _add_layer(rules, gitignore)
    if perstackignore:
        rules = replace(rules, first=_Layer(_parse_rules(perstackignore[:MAX_RULES_BYTES]), len(rules.place)))
    return rules


def _add_layer(rules: IgnoreRules, text: bytes | None) -> IgnoreRules:
    if not text:
        return rules
    return replace(rules, layers=(_Layer(_parse_rules(text[:MAX_RULES_BYTES]), len(rules.place)), *rules.layers))


@lru_cache(maxsize=256)
def _parse_rules(text: bytes) -> _RuleFile:
    translated_rules: list[tuple[str, bool]] = []
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:_MAX_RULES]:
        if len(line) <= _MAX_RULE_BYTES and (rule := _translate_line(line.rstrip(b"\r").decode("latin-1"))) is not None:
            translated_rules.append(rule)
    groups: list[tuple[Pattern | None, tuple[_Rule, ...]]] = []
    translated_rules.reverse()
    for first in range(0, len(translated_rules), _GROUP_SIZE):
        group = translated_rules[first : first + _GROUP_SIZE]
        rules = [(compiled_bytes(text.encode("latin-1")), ignores) for text, ignores in group]
        combined = compiled_bytes("|".join(f"(?:{text})" for text, _ in group).encode("latin-1"))
        groups.append((combined, tuple(_Rule(pattern, ignores) for pattern, ignores in rules if pattern is not None)))
    return _RuleFile(tuple(groups))


def _translate_line(line: str) -> tuple[str, bool] | None:
    """Return a rule as a regular expression for paths, and whether it ignores; None if the line is no rule.

    Paths of folders end in a slash. The library's expressions match contents of a folder too; these match the folder
    itself, because nobody descends into it.
    """
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # importing it takes 100 ms

    folders_inside = line.rstrip(" ").endswith("/**/")  # the library treats this like the folder itself
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
