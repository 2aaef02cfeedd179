"""Split shell scripts into simple commands, redirections, and parts that nobody understands for certain."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from perstack.core.permissions.shell_grammar import SETS_VARIABLE, UNREAD, NotUnderstood, parse_script, redirect_parts
from perstack.core.permissions.shell_syntax import (
    Part,
    Redirect,
    ShellCommand,
    Unparsed,
    descendants,
    is_harmless,
    is_plain,
    parsed,
    source,
    word_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MAX_SCRIPT_CHARS = 50_000
_MAX_DEPTH = 60

_CONTAINER_NODES = _names(  # node types that only contain statements
    """
    program list pipeline subshell compound_statement do_group negated_command if_statement elif_clause
    else_clause while_statement case_item function_definition variable_assignments command_substitution
    process_substitution
    """
)

_RESERVED_WORDS = _names(
    """
    { } ! if then elif else fi do done case esac for while until function select in [[ ]] coproc
    """
)
_CONTROL_CHARS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LINE_CONTINUATION = re.compile(r"(?<![\s\\])\\\n")
_FOLDER_COMMANDS = frozenset({"cd", "pushd", "popd"})


def parts_of_script(script: str, *, is_bash: bool = False) -> list[Part]:
    """Return the parts of a script. A path relative to a folder that the script changes to counts as unknown.

    Two parsers must agree: `parse_script`, which accepts a plain subset, and tree-sitter's grammar of bash.
    Where they disagree, the script is asked about, and the tree's commands are still checked against rules that deny.
    """
    problem = _unreadable_reason(script)
    if problem is not None:
        return [Unparsed(_short(script), problem)]
    if _LINE_CONTINUATION.search(script):
        script = script.replace(
            "\\\n", ""
        )  # safe: no quote or other backslash precedes it, so none of these is literal text
    root = parsed(script)
    if root.has_error:
        return [Unparsed(_short(script), "the script cannot be read")]
    parts = list(_statement(root, 0))
    try:
        plain_parts = parse_script(script, is_bash=is_bash)
    except NotUnderstood as error:
        parts.append(Unparsed(_short(script), str(error)))
    else:
        if _is_same(plain_parts, parts):
            parts = [*plain_parts, *(part for part in parts if isinstance(part, Unparsed))]
        else:
            parts.append(Unparsed(_short(script), "the script can be read in more than one way"))
    if not any(isinstance(part, ShellCommand) and _FOLDER_COMMANDS.intersection(part.known[:2]) for part in parts):
        return parts
    return [without_place(part) for part in parts]


def _is_same(first: list[Part], second: list[Part]) -> bool:

    def sort_keys(parts: list[Part]) -> list[str]:
        return sorted(
            repr((part.words[:1], len(part.words), part.assignments))
            if isinstance(part, ShellCommand)
            else repr((part.path, part.is_read))
            for part in parts
            if not isinstance(part, Unparsed)
        )

    return sort_keys(first) == sort_keys(second)


def _unreadable_reason(script: str) -> str | None:
    if len(script) > _MAX_SCRIPT_CHARS:
        return "the script is too long to be read"
    if _CONTROL_CHARS.search(script):
        return "the script has characters that cannot be seen"
    if not script.isascii() and any(_is_odd(char) for char in script):
        return "the script has characters that look like spaces, or like none"
    if _LINE_CONTINUATION.search(script) and any(mark in script for mark in ("'", '"', "<<", "#", "\\\\\n")):
        return "a word of the script continues in the next line"
    return None


def _is_odd(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cf", "Cc", "Cs", "Co")


def without_place(part: Part) -> Part:
    """Return a part with an unknown folder."""
    if isinstance(part, ShellCommand):
        return replace(part, is_elsewhere=True)
    if isinstance(part, Redirect) and part.path is not None and not part.path.startswith("/"):
        return Redirect(part.shown, None, part.is_read, text=part.path)
    return part


def _statement(node: Node, depth: int) -> Iterator[Part]:
    if depth > _MAX_DEPTH:
        yield Unparsed(_short(source(node)), "it is nested too deep to be read")
        return
    reader = _READERS.get(node.type)
    if reader is not None:
        yield from reader(node, depth + 1)
    elif node.type in _CONTAINER_NODES:
        yield from _parts_within(node, depth)
    elif node.type != "comment":
        yield Unparsed(_short(source(node)), UNREAD)


def _parts_within(node: Node, depth: int) -> Iterator[Part]:
    if node.type == "command_substitution" and source(node).startswith("`") and "\\" in source(node):
        yield Unparsed(_short(source(node)), UNREAD)
    name = node.child_by_field_name("name") if node.type == "function_definition" else None
    values = node.children_by_field_name("value") if node.type == "case_item" else ()
    for value in values:
        yield from _word(value, depth)[1]
    plain = [source(value) for value in values]
    for child in node.named_children:
        is_value = child.type not in _STATEMENTS and source(child) in plain
        if not is_value and not (name is not None and child.type == "word"):
            yield from _statement(child, depth + 1)


def _word(node: Node, depth: int) -> tuple[str | None, list[Part]]:
    """Return a word's text, None if unknown, and the commands that run in order to expand it."""
    text, nodes, problem = word_of(node)
    parts = [part for child in nodes for part in _statement(child, depth + 1)]
    if problem is not None:
        parts.append(Unparsed(_short(source(node)), problem))
    return text, parts


def _command(node: Node, depth: int) -> Iterator[Part]:
    words: list[str | None] = []
    assignments: list[str] = []
    for child in node.children:
        if child.type == "variable_assignment":
            name, text, parts = _read_assignment(child, depth)
            yield from parts
            if not is_harmless(name):
                assignments.append(text)
        elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            yield from _redirect(child, depth)
        elif child.type == "command_name":
            word, parts = _word(child.children[0], depth)
            yield from parts
            words.append(word)
            if source(child) in _RESERVED_WORDS:
                yield Unparsed(_short(source(node)), UNREAD)
        elif child.is_named or child.type in ("==", "=~"):
            word, parts = _word(child, depth)
            yield from parts
            words.append(word)
        else:
            yield Unparsed(_short(source(node)), UNREAD)
    if words:
        yield ShellCommand(tuple(words), tuple(assignments))
    else:
        yield Unparsed(_short(source(node)), UNREAD)


def _redirections(node: Node, depth: int) -> Iterator[Part]:
    for child in node.named_children:
        if child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            yield from _redirect(child, depth)
        else:
            yield from _statement(child, depth)


def _redirect(node: Node, depth: int) -> Iterator[Part]:
    if node.type == "heredoc_redirect":
        yield from _heredoc(node, depth)
        return
    if node.type == "herestring_redirect":
        for child in node.named_children:
            yield from _word(child, depth)[1]
        return
    mark = next((child.type for child in node.children if not child.is_named), "")
    for target in node.children_by_field_name("destination"):
        if target.type == "process_substitution":
            yield from _statement(target, depth)
            continue
        path, parts = _word(target, depth)
        yield from parts
        yield from redirect_parts(mark, path, _short(source(target)))


def _heredoc(node: Node, depth: int) -> Iterator[Part]:
    start = next((child for child in node.named_children if child.type == "heredoc_start"), None)
    end = next((child for child in node.named_children if child.type == "heredoc_end"), None)
    body = next((child for child in node.named_children if child.type == "heredoc_body"), None)
    for child in node.named_children:
        if child.type in ("file_redirect", "herestring_redirect"):
            yield from _redirect(child, depth)
        elif child.type not in ("heredoc_start", "heredoc_end", "heredoc_body", "file_descriptor"):
            is_word = child.type in _WORD_NODES
            yield from (_word(child, depth)[1] if is_word else _statement(child, depth))
            if is_word:
                yield Unparsed(_short(source(child)), UNREAD)
    if start is None or end is None:
        yield Unparsed(_short(source(node)), "a here-document has no end")
        return
    text = "" if body is None else source(body)
    delimiter = re.sub(r"[\"'\\]", "", source(start))
    lines = [line.lstrip("\t") for line in text.splitlines()]
    if source(end).strip("\t\n") != delimiter or delimiter in lines:
        yield Unparsed(_short(text), "a here-document cannot be read")
    elif source(start) == delimiter and body is not None:
        yield from _expansions(body, depth)


def _expansions(body: Node, depth: int) -> Iterator[Part]:
    text = re.sub(r"\\[\\$`]", "", source(body))
    nodes = [child for child in body.named_children if child.type not in ("heredoc_content", "string_content")]
    substitutions = sum(node.type == "command_substitution" for node in descendants(body))
    if "`" in text or text.count("$(") > substitutions + text.count("$(("):
        yield Unparsed(_short(source(body)), "a here-document cannot be read")
    for child in nodes:
        yield from _word(child, depth)[1]


def _read_assignment(node: Node, depth: int) -> tuple[str, str, list[Part]]:
    """Return a variable's name, its assignment as text, and the commands that run for its value."""
    name = node.child_by_field_name("name")
    value = node.child_by_field_name("value")
    parts: list[Part] = []
    if name is None or name.type != "variable_name":
        parts.append(Unparsed(_short(source(node)), "the index of an array may run a program"))
    text: str | None = ""
    if value is not None and value.type == "array":
        for child in value.named_children:
            parts += _word(child, depth)[1]
        text = None
    elif value is not None:
        text, parts_of_value = _word(value, depth)
        parts += parts_of_value
    variable = "" if name is None else source(name)
    return variable, f"{variable}={'…' if text is None else text}", parts


def _assignment(node: Node, depth: int) -> Iterator[Part]:
    name, text, parts = _read_assignment(node, depth)
    yield from parts
    if not is_plain(name):
        yield Unparsed(_short(text), SETS_VARIABLE)


def _declaration(node: Node, depth: int) -> Iterator[Part]:
    keyword = source(node.children[0])
    for child in node.named_children:
        if child.type == "variable_assignment":
            name, text, parts = _read_assignment(child, depth)
            yield from parts
            if not (is_harmless(name) or (keyword != "export" and is_plain(name))):
                yield Unparsed(_short(text), SETS_VARIABLE)
        elif child.type != "variable_name":
            word, parts = _word(child, depth)
            yield from parts
            if word is None or not re.fullmatch(r"-[gprxaAfF]+|\w+", word):
                yield Unparsed(_short(source(node)), "what it declares is known when it runs")


def _parse_unset(node: Node, depth: int) -> Iterator[Part]:
    if not re.fullmatch(r"unset(?:\s+-[fv]+)?(?:\s+\w+)*", source(node)):
        yield Unparsed(_short(source(node)), "the index of an array may run a program")
    yield from ()


def _test(node: Node, depth: int) -> Iterator[Part]:
    """Read `[ … ]` and `[[ … ]]`: only their words run commands, but computing numbers may run some too."""
    text = source(node)
    if re.search(r"\s-[vR]\s", text) or (text.startswith("[[") and re.search(r"\s-(?:eq|ne|lt|le|gt|ge)\s", text)):
        yield Unparsed(_short(text), "what it computes is known when it runs")
    yield from _substitutions(node, depth)


def _arithmetic(node: Node, depth: int) -> Iterator[Part]:
    yield Unparsed(_short(source(node)), "what it computes is known when it runs")
    yield from _substitutions(node, depth)


def _substitutions(node: Node, depth: int) -> Iterator[Part]:
    for child in descendants(node):
        if child.type in ("command_substitution", "process_substitution"):
            yield from _statement(child, depth + 1)
        elif child.type in ("expansion", "arithmetic_expansion", "regex", "extglob_pattern"):
            problem = word_of(child)[2]
            if problem is not None:
                yield Unparsed(_short(source(child)), problem)
    substitutions = sum(child.type in ("command_substitution", "process_substitution") for child in descendants(node))
    text = source(node)
    if text.count("`") + text.count("$(") + text.count("<(") + text.count(">(") > 2 * substitutions:
        yield Unparsed(_short(text), UNREAD)


def _loop(node: Node, depth: int) -> Iterator[Part]:
    for child in node.named_children:
        if child.type == "do_group" or child.type in _STATEMENTS:
            yield from _statement(child, depth)
        elif child.type == "variable_name":
            if not is_plain(source(child)):
                yield Unparsed(_short(source(node)), SETS_VARIABLE)
        else:
            yield from _word(child, depth)[1]


def _case(node: Node, depth: int) -> Iterator[Part]:
    for child in node.named_children:
        yield from (_statement(child, depth) if child.type == "case_item" else _word(child, depth)[1])


def _parse_compound(node: Node, depth: int) -> Iterator[Part]:
    if source(node).startswith("(("):
        yield from _arithmetic(node, depth)
    else:
        yield from _parts_within(node, depth)


_READERS = {
    "command": _command,
    "redirected_statement": _redirections,
    "declaration_command": _declaration,
    "unset_command": _parse_unset,
    "variable_assignment": _assignment,
    "test_command": _test,
    "for_statement": _loop,
    "c_style_for_statement": _arithmetic,
    "case_statement": _case,
    "compound_statement": _parse_compound,
}
_STATEMENTS = _CONTAINER_NODES | frozenset(_READERS)
_WORD_NODES = _names(
    """
    word string raw_string ansi_c_string concatenation simple_expansion expansion number
    """
)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"
