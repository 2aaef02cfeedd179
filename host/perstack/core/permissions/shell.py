"""The script of a shell, taken apart: its simple commands, what it is redirected to, and what cannot be told.

Only what is understood for certain is taken as a command. Whatever the tree or a word may hide becomes `Unread`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from perstack.core.policy.lines import Command, Part, Redirect, Unread
from perstack.core.policy.syntax import Node, descendants, parsed, source
from perstack.core.policy.variables import is_harmless, is_plain
from perstack.core.policy.words import word_of


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LONGEST = 50_000
_DEEPEST = 60

_INSIDE = _names(
    """
    program list pipeline subshell compound_statement do_group negated_command if_statement elif_clause
    else_clause while_statement case_item function_definition variable_assignments command_substitution
    process_substitution
    """
)
"""What is as good as the statements in it."""

_RESERVED = _names(
    """
    { } ! if then elif else fi do done case esac for while until function select in [[ ]] coproc
    """
)
_QUIET = re.compile(r"/dev/(?:null|stdout|stderr|zero|fd/\d+)")
_NETWORK = re.compile(r"/dev/(?:tcp|udp)/")
_DESCRIPTOR = re.compile(r"\d+-?|-")
_MARK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_JOINED = re.compile(r"(?<![\s\\])\\\n")
_MOVES = frozenset({"cd", "pushd", "popd"})


def parts_of_script(script: str) -> list[Part]:
    """What a script comes to. A path that is seen from where the script has gone meanwhile is not known."""
    problem = _unreadable(script)
    if problem is not None:
        return [Unread(_short(script), problem)]
    if _JOINED.search(script):
        script = script.replace("\\\n", "")  # no quotes are in it, in which that would be text
    root = parsed(script)
    if root.has_error:
        return [Unread(_short(script), "the script cannot be read")]
    found = list(_statement(root, 0))
    if not any(isinstance(part, Command) and _MOVES.intersection(part.known[:2]) for part in found):
        return found
    return [_unplaced(part) for part in found]


def _unreadable(script: str) -> str | None:
    if len(script) > _LONGEST:
        return "the script is too long to be read"
    if _MARK.search(script):
        return "the script has characters that cannot be seen"
    if not script.isascii() and any(_is_odd(each) for each in script):
        return "the script has characters that look like spaces, or like none"
    if _JOINED.search(script) and ("'" in script or '"' in script or "<<" in script or "#" in script):
        return "a word of the script continues in the next line"
    return None


def _is_odd(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cf", "Cc", "Cs", "Co")


def _unplaced(part: Part) -> Part:
    if isinstance(part, Redirect) and part.path is not None and not part.path.startswith("/"):
        return Redirect(part.shown, None, part.is_read, text=part.path)
    return part


def _statement(node: Node, depth: int) -> Iterator[Part]:
    if depth > _DEEPEST:
        yield Unread(_short(source(node)), "it is nested too deep to be read")
        return
    read = _READERS.get(node.type)
    if read is not None:
        yield from read(node, depth + 1)
    elif node.type in _INSIDE:
        yield from _within(node, depth)
    elif node.type != "comment":
        yield Unread(_short(source(node)), "this part of the script cannot be read")


def _within(node: Node, depth: int) -> Iterator[Part]:
    if node.type == "command_substitution" and source(node).startswith("`") and "\\" in source(node):
        yield Unread(_short(source(node)), "this part of the script cannot be read")
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
    """A word, None if it is not known, and what is run in order to know it."""
    text, inner, problem = word_of(node)
    found = [part for one in inner for part in _statement(one, depth + 1)]
    if problem is not None:
        found.append(Unread(_short(source(node)), problem))
    return text, found


def _command(node: Node, depth: int) -> Iterator[Part]:
    words: list[str | None] = []
    assignments: list[str] = []
    for child in node.children:
        if child.type == "variable_assignment":
            name, text, parts = _assigned(child, depth)
            yield from parts
            if not is_harmless(name):
                assignments.append(text)
        elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            yield from _redirect(child, depth)
        elif child.type == "command_name":
            word, parts = _word(child.children[0], depth)
            yield from parts
            words.append(word)
            if source(child) in _RESERVED:
                yield Unread(_short(source(node)), "this part of the script cannot be read")
        elif child.is_named or child.type in ("==", "=~"):
            word, parts = _word(child, depth)
            yield from parts
            words.append(word)
        else:
            yield Unread(_short(source(node)), "this part of the script cannot be read")
    if words:
        yield Command(tuple(words), tuple(assignments))
    else:
        yield Unread(_short(source(node)), "this part of the script cannot be read")


def _redirected(node: Node, depth: int) -> Iterator[Part]:
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
        if path is not None and ((mark in (">&", "<&") and _DESCRIPTOR.fullmatch(path)) or _QUIET.fullmatch(path)):
            continue
        if path is not None and _NETWORK.match(path):
            yield Unread(path, "it opens a connection")
            continue
        if mark.startswith("<"):
            yield Redirect(_short(source(target)), path, is_read=True)
        if mark != "<":
            yield Redirect(_short(source(target)), path)


def _heredoc(node: Node, depth: int) -> Iterator[Part]:
    start = next((child for child in node.named_children if child.type == "heredoc_start"), None)
    end = next((child for child in node.named_children if child.type == "heredoc_end"), None)
    body = next((child for child in node.named_children if child.type == "heredoc_body"), None)
    for child in node.named_children:
        if child.type in ("file_redirect", "herestring_redirect"):
            yield from _redirect(child, depth)
        elif child.type not in ("heredoc_start", "heredoc_end", "heredoc_body", "file_descriptor"):
            word = child.type in _WORDS
            yield from (_word(child, depth)[1] if word else _statement(child, depth))
            if word:
                yield Unread(_short(source(child)), "this part of the script cannot be read")
    if start is None or end is None:
        yield Unread(_short(source(node)), "a here-document has no end")
        return
    text = "" if body is None else source(body)
    delimiter = re.sub(r"[\"'\\]", "", source(start))
    lines = [line.lstrip("\t") for line in text.splitlines()]
    if source(end).strip("\t\n") != delimiter or delimiter in lines:
        yield Unread(_short(text), "a here-document cannot be read")
    elif source(start) == delimiter and body is not None:
        yield from _expanded(body, depth)


def _expanded(body: Node, depth: int) -> Iterator[Part]:
    """What is run inside of a text that is not quoted."""
    text = re.sub(r"\\[\\$`]", "", source(body))
    inner = [child for child in body.named_children if child.type not in ("heredoc_content", "string_content")]
    run = sum(one.type == "command_substitution" for one in descendants(body))
    if "`" in text or text.count("$(") > run + text.count("$(("):
        yield Unread(_short(source(body)), "a here-document cannot be read")
    for child in inner:
        yield from _word(child, depth)[1]


def _assigned(node: Node, depth: int) -> tuple[str, str, list[Part]]:
    """The name of a variable, its assignment as a text, and what is run for it."""
    name = node.child_by_field_name("name")
    value = node.child_by_field_name("value")
    parts: list[Part] = []
    if name is None or name.type != "variable_name":
        parts.append(Unread(_short(source(node)), "the index of an array may run a program"))
    text: str | None = ""
    if value is not None and value.type == "array":
        for child in value.named_children:
            parts += _word(child, depth)[1]
        text = None
    elif value is not None:
        text, parts_of_value = _word(value, depth)
        parts += parts_of_value
    called = "" if name is None else source(name)
    return called, f"{called}={'…' if text is None else text}", parts


def _assignment(node: Node, depth: int) -> Iterator[Part]:
    name, text, parts = _assigned(node, depth)
    yield from parts
    if not is_plain(name):
        yield Unread(_short(text), "it sets a variable that can change which program runs")


def _declaration(node: Node, depth: int) -> Iterator[Part]:
    keyword = source(node.children[0])
    for child in node.named_children:
        if child.type == "variable_assignment":
            name, text, parts = _assigned(child, depth)
            yield from parts
            if not (is_harmless(name) or (keyword != "export" and is_plain(name))):
                yield Unread(_short(text), "it sets a variable that can change which program runs")
        elif child.type != "variable_name":
            word, parts = _word(child, depth)
            yield from parts
            if word is None or not re.fullmatch(r"-[gprxaAfF]+|\w+", word):
                yield Unread(_short(source(node)), "what it declares is known when it runs")


def _unset(node: Node, depth: int) -> Iterator[Part]:
    if not re.fullmatch(r"unset(?:\s+-[fv]+)?(?:\s+\w+)*", source(node)):
        yield Unread(_short(source(node)), "the index of an array may run a program")
    yield from ()


def _test(node: Node, depth: int) -> Iterator[Part]:
    """`[ … ]` and `[[ … ]]`, which run nothing but what their words do; numbers are computed, and that may."""
    text = source(node)
    if re.search(r"\s-[vR]\s", text) or (text.startswith("[[") and re.search(r"\s-(?:eq|ne|lt|le|gt|ge)\s", text)):
        yield Unread(_short(text), "what it computes is known when it runs")
    yield from _substituted(node, depth)


def _arithmetic(node: Node, depth: int) -> Iterator[Part]:
    yield Unread(_short(source(node)), "what it computes is known when it runs")
    yield from _substituted(node, depth)


def _substituted(node: Node, depth: int) -> Iterator[Part]:
    """What is run inside of words, wherever below a node they are."""
    seen = 0
    for one in descendants(node):
        if one.type in ("command_substitution", "process_substitution"):
            yield from _statement(one, depth + 1)
        elif one.type in ("expansion", "arithmetic_expansion", "regex", "extglob_pattern"):
            seen += 1
            problem = word_of(one)[2]
            if problem is not None:
                yield Unread(_short(source(one)), problem)
    run = sum(one.type in ("command_substitution", "process_substitution") for one in descendants(node))
    text = source(node)
    if text.count("`") + text.count("$(") + text.count("<(") + text.count(">(") > 2 * run:
        yield Unread(_short(text), "this part of the script cannot be read")


def _loop(node: Node, depth: int) -> Iterator[Part]:
    """`for` and `select`."""
    for child in node.named_children:
        if child.type == "do_group" or child.type in _STATEMENTS:
            yield from _statement(child, depth)
        elif child.type == "variable_name":
            if not is_plain(source(child)):
                yield Unread(_short(source(node)), "it sets a variable that can change which program runs")
        else:
            yield from _word(child, depth)[1]


def _case(node: Node, depth: int) -> Iterator[Part]:
    for child in node.named_children:
        yield from (_statement(child, depth) if child.type == "case_item" else _word(child, depth)[1])


def _compound(node: Node, depth: int) -> Iterator[Part]:
    if source(node).startswith("(("):
        yield from _arithmetic(node, depth)
    else:
        yield from _within(node, depth)


_READERS = {
    "command": _command,
    "redirected_statement": _redirected,
    "declaration_command": _declaration,
    "unset_command": _unset,
    "variable_assignment": _assignment,
    "test_command": _test,
    "for_statement": _loop,
    "c_style_for_statement": _arithmetic,
    "case_statement": _case,
    "compound_statement": _compound,
}
_STATEMENTS = _INSIDE | frozenset(_READERS)
_WORDS = _names(
    """
    word string raw_string ansi_c_string concatenation simple_expansion expansion number
    """
)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"
