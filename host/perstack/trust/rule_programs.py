"""Find the programs and scripts of a project that its `allow` rules name by relative paths.

What an allow rule runs must be what its author saw, so such files are read-only for Experts and sandboxes. A path
counts if the rule has it literally, without a wildcard. Files that a program reads by itself are not found:
Makefile, package.json, conftest.py, and modules that a script imports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from posixpath import join, normpath

from perstack.core.definitions.exec_grant import EXEC
from perstack.core.definitions.permissions import PermissionRule, parse_rule
from perstack.core.files.globs import Glob
from perstack.core.permissions.command_patterns import CommandPattern, OptionGroup, WordPattern, parse_command
from perstack.core.permissions.shell_syntax import ShellCommand

_FILE = re.compile(r"(?:[^/]+/)+[^/]+|[^/\s]+\.[A-Za-z][A-Za-z0-9]*")
"""Word that looks like a file: it has a folder or a file name extension."""

_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_REVISION = re.compile(r"[^/]*\.\.[^/]*")
_MAX_DEPTH = 3


def programs_named_by(rules: Iterable[str]) -> tuple[str, ...]:
    """Return the relative paths of programs and scripts that these `allow` rules name, normalized and sorted.

    Rules that cannot be parsed name none. The files need not exist.

    >>> programs_named_by(["exec(./check.sh *)", "exec(python3 tools/count.py *)", "exec(git log *)"])
    ('check.sh', 'tools/count.py')
    """
    return tuple(sorted({path for text in rules for path in _files_of_rule(text)}))


def _files_of_rule(text: str) -> Iterator[str]:
    try:
        rule = parse_rule(text)
        # of the base skill only `exec` runs programs; the path in a rule of another tool is a file to read or write
        if rule.is_delegate or rule.group is not None or (rule.skill is None and not rule.tool.matches(EXEC)):
            return
        if rule.bare is not None:
            yield from _files_of_words(_literal_words(parse_command(rule.bare.text)))
        else:
            yield from _files_of_words(_named_words(rule))
    except ValueError:
        return


def _literal_words(pattern: CommandPattern) -> tuple[str, ...]:
    words: list[str] = []
    for item in pattern.items:
        patterns: list[WordPattern | None] = [item] if isinstance(item, WordPattern) else []
        if isinstance(item, OptionGroup):
            patterns = [word for option in item.options for word in (option.word, option.value)]
        words += [word.texts[0] for word in patterns if word is not None and word.is_literal]
    return tuple(words)


def _named_words(rule: PermissionRule) -> tuple[str, ...]:
    """Return the literal values of arguments: `exec(command=python3, args=count.py)`."""
    arguments = dict(rule.named)
    folder = _literal(arguments.get("cwd"))
    words = [_literal(glob) for name, glob in rule.named if name != "cwd"]
    return tuple(join(folder, word) if "/" in word or "." in word else word for word in words if word)


def _literal(glob: Glob | None) -> str:
    return glob.literal if glob is not None and glob.is_literal else ""


def _files_of_words(words: Sequence[str], depth: int = 0) -> Iterator[str]:
    """Yield the files among the words of a command, and of the script that a shell is given."""
    for index, word in enumerate(words):
        path = _relative_path(word.partition("=")[2] if word.startswith("-") else word)
        if index and words[index - 1] == "-m":
            yield from _module_files(word)
        elif path:
            yield path
        if index and depth < _MAX_DEPTH and re.search(r"[\s;&|]", word):
            yield from _files_of_script(word, depth + 1)


def _files_of_script(script: str, depth: int) -> Iterator[str]:
    from perstack.core.permissions.shell import parts_of_script  # few rules need the grammar

    for part in parts_of_script(script, is_bash=True):
        if isinstance(part, ShellCommand):
            yield from _files_of_words([word for word in part.words if word is not None], depth)


def _relative_path(word: str) -> str:
    """Return a word as a path in the workspace if it looks like a file's; empty if not."""
    if not word or word.startswith(("/", "~", "-")) or ":" in word or _REVISION.fullmatch(word):
        return ""
    path = normpath(word)
    is_file = _FILE.fullmatch(word) is not None and not re.search(r"\s", word)
    return path if is_file and path != "." and not path.startswith("../") else ""


def _module_files(module: str) -> Iterator[str]:
    """Yield the files that `python -m MODULE` looks for in the top folder first."""
    if _MODULE.fullmatch(module):
        *packages, path = ("/".join(module.split(".")[: count + 1]) for count in range(module.count(".") + 1))
        yield from (f"{package}/__init__.py" for package in packages)
        yield from (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py")
