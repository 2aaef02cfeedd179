"""Parts of a command line, and the words of a shell script in tree-sitter's tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from perstack.dataclass import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


@dataclass(frozen=True)
class ShellCommand:
    """Simple command."""

    words: tuple[str | None, ...]  # words; None for a word that is known only at run time and may expand to several
    assignments: tuple[str, ...] = ()  # assignments `NAME=value` for the command that can change what it does
    reason: str = ""  # reason why a person is asked: the command runs more than its name says
    is_around: bool = False  # True for a wrapper whose inner commands are parsed too: only rules that name it apply
    is_by_option: bool = False  # True if `reason` comes from options alone, which an `allow` rule may name
    is_elsewhere: bool = False  # True if its script changes the folder, so that it may run in any

    @cached_property
    def known(self) -> tuple[str, ...]:
        """The words before the first unknown one."""
        return tuple(word for word in takewhile(lambda word: word is not None, self.words) if word is not None)

    @property
    def is_known(self) -> bool:
        """True if every word is known before it runs."""
        return None not in self.words


@dataclass(frozen=True, slots=True)
class Redirect:
    """File that the shell itself reads or writes."""

    shown: str
    path: str | None  # path; None if it is known only at run time
    is_read: bool = False
    text: str = ""  # path as written, if it is relative to a folder that is known only at run time


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Part that cannot be parsed, or is known only at run time."""

    shown: str
    reason: str


Part = ShellCommand | Redirect | Unparsed


# Syntax tree from tree-sitter's bash grammar, which is imported only when a rule names a command.


def parsed(script: str) -> Node:
    """Return the tree of a script; `has_error` says whether a part was not parsed."""
    return _parser().parse(script.encode("utf-8", "replace")).root_node


def source(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def descendants(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += current.children


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


# Variables that change what a program does, or which program runs.

_HARMLESS_VARIABLE = re.compile(
    r"CI|DEBUG|VERBOSE|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|PYTHONHASHSEED|NODE_ENV|RUST_BACKTRACE|RUST_LOG|OMP_NUM_THREADS"
)
_LOWER_CASE_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_SHELL_VARIABLE = re.compile(r".*_?proxy|path|fpath|cdpath|histchars")


def is_harmless(name: str) -> bool:
    """Return whether a variable changes at most how a program displays things."""
    return _HARMLESS_VARIABLE.fullmatch(name) is not None


def is_plain(name: str) -> bool:
    """Return whether a script may set a variable for itself: most that programs know are in capitals."""
    return is_harmless(name) or (
        _LOWER_CASE_NAME.fullmatch(name) is not None and _SHELL_VARIABLE.fullmatch(name) is None
    )


_UNREADABLE = "this part of the script cannot be read"

_PLAIN = re.compile(r"(?:[^\\*?\[\]{}$`~\"'\s;&|<>()!]|\\[^\n])+", re.DOTALL)
"""Bare word without expansions. `!` is literal in a script, but excluded to be safe."""

_EXPANSION = re.compile(r"\$\{#?(?:[A-Za-z_]\w*|\d+|[@*#?$-])(?::?[-+?][^`]*|[#%/^,][^`@]*)?\}", re.DOTALL)
"""Expansion that runs nothing by itself: a value, its default, a part cut off."""

_NUMBERS = re.compile(r"\$(?:\(\(|\[)[\s\d+\-*/%()<>=!&|^~\]]*")

Word: TypeAlias = (
    "tuple[str | None, list[Node], str | None]"  # text, None if unknown; substitutions in it; problem or None
)


def word_of(node: Node) -> Word:
    """Return the text, the substitutions and the problem of a word."""
    match node.type:
        case "word" | "number" | "test_operator" | "==" | "=~" | "special_variable_name" | "variable_name":
            return _bare_word(node)
        case "raw_string":
            return source(node)[1:-1], [], None
        case "string":
            return _quoted_word(node)
        case "concatenation":
            return _concatenated_word(node)
        case "ansi_c_string" | "translated_string" | "extglob_pattern" | "regex" | "brace_expression":
            return None, [], _UNREADABLE if "`" in source(node) or "$(" in source(node) else None
        case "simple_expansion":
            return None, [], None
        case "expansion":
            return _expansion(node)
        case "arithmetic_expansion":
            return None, [], None if _NUMBERS.fullmatch(source(node)) else "what it computes is known when it runs"
        case "command_substitution" | "process_substitution":
            return None, [node], None
        case _:
            return None, [], _UNREADABLE


def _bare_word(node: Node) -> Word:
    text = source(node)
    if text == "{}":
        return text, [], None
    unescaped = re.sub(r"\\.", "", text, flags=re.DOTALL)
    if "`" in unescaped or "$" in unescaped or node.named_children or "\\\n" in text:
        return None, [], _UNREADABLE
    if text.startswith("~") or not _PLAIN.fullmatch(text.replace("!", "").replace("]", "") or "x"):
        return None, [], None
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL), [], None


def _quoted_word(node: Node) -> Word:
    text = source(node)
    if not (len(text) >= 2 and text[0] == text[-1] == '"'):
        return None, [], _UNREADABLE
    content = text[1:-1]
    children = [child for child in node.named_children if child.type != "string_content"]
    plain = re.sub(r"\\.", "", content, flags=re.DOTALL)
    if not children:
        if "`" in plain or "$(" in plain or "${" in plain:
            return None, [], _UNREADABLE
        if "$" in plain:
            return None, [], None
        return re.sub(r"\\([\\$`\"\n])", lambda match: match[1].strip("\n"), content), [], None
    runs: list[Node] = []
    problem: str | None = None
    for child in children:
        _, nodes, child_problem = word_of(child)
        runs += nodes
        problem = problem or child_problem
    substitutions = sum(descendant.type == "command_substitution" for descendant in descendants(node))
    if problem is None and (
        plain.count("`") > 2 * substitutions or plain.count("$(") > substitutions + 2 * plain.count("$((")
    ):
        problem = _UNREADABLE
    return None, runs, problem


def _concatenated_word(node: Node) -> Word:
    texts: list[str | None] = []
    runs: list[Node] = []
    problem: str | None = None
    for child in node.children:
        text, nodes, child_problem = word_of(child)
        texts.append(text)
        runs += nodes
        problem = problem or child_problem
    is_whole = "".join(map(source, node.children)) == source(node)
    if source(node) == "{}":
        return "{}", [], None
    if not is_whole or source(node).startswith("~"):
        return None, runs, problem
    known = [text for text in texts if text is not None]
    return ("".join(known) if len(known) == len(texts) else None), runs, problem


def _expansion(node: Node) -> Word:
    runs = [child for child in descendants(node) if child.type in ("command_substitution", "process_substitution")]
    text = source(node)
    problem = None if _EXPANSION.fullmatch(text) and text.count("$(") <= len(runs) else _UNREADABLE
    return None, runs, problem
