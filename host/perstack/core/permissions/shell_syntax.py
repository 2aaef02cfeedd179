"""One word of a shell script: the text that it stands for, if that is known before it runs."""

from __future__ import annotations

import re

from perstack.core.policy.syntax import Node, descendants, source

_HIDDEN = "this part of the script cannot be read"

_PLAIN = re.compile(r"(?:[^\\*?\[\]{}$`~\"'\s;&|<>()!]|\\[^\n])+", re.DOTALL)
"""A bare word in which nothing is expanded. A `!` is none in a script, but is kept out to be sure."""

_EXPANSION = re.compile(r"\$\{#?(?:[A-Za-z_]\w*|\d+|[@*#?$-])(?::?[-+?][^`]*|[#%/^,][^`@]*)?\}", re.DOTALL)
"""One that runs nothing by itself: a value, its default, a piece cut off."""

_NUMBERS = re.compile(r"\$(?:\(\(|\[)[\s\d+\-*/%()<>=!&|^~\]]*")

Word = tuple[str | None, list[Node], str | None]
"""The text, None if it is not known; what is run in order to know it; why it cannot be told, if it cannot."""


def word_of(node: Node) -> Word:
    """What a word is."""
    match node.type:
        case "word" | "number" | "test_operator" | "==" | "=~" | "special_variable_name" | "variable_name":
            return _bare(node)
        case "raw_string":
            return source(node)[1:-1], [], None
        case "string":
            return _quoted(node)
        case "concatenation":
            return _concatenated(node)
        case "ansi_c_string" | "translated_string" | "extglob_pattern" | "regex" | "brace_expression":
            return None, [], _HIDDEN if "`" in source(node) or "$(" in source(node) else None
        case "simple_expansion":
            return None, [], None
        case "expansion":
            return _expansion(node)
        case "arithmetic_expansion":
            return None, [], None if _NUMBERS.fullmatch(source(node)) else "what it computes is known when it runs"
        case "command_substitution" | "process_substitution":
            return None, [node], None
        case _:
            return None, [], _HIDDEN


def _bare(node: Node) -> Word:
    text = source(node)
    if text == "{}":
        return text, [], None
    unescaped = re.sub(r"\\.", "", text, flags=re.DOTALL)
    if "`" in unescaped or "$" in unescaped or node.named_children or "\\\n" in text:
        return None, [], _HIDDEN
    if text.startswith("~") or not _PLAIN.fullmatch(text.replace("!", "").replace("]", "") or "x"):
        return None, [], None
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL), [], None


def _quoted(node: Node) -> Word:
    text = source(node)
    if not (len(text) >= 2 and text[0] == text[-1] == '"'):
        return None, [], _HIDDEN
    inside = text[1:-1]
    inner = [child for child in node.named_children if child.type != "string_content"]
    plain = re.sub(r"\\.", "", inside, flags=re.DOTALL)
    if not inner:
        if "`" in plain or "$(" in plain or "${" in plain:
            return None, [], _HIDDEN
        if "$" in plain:
            return None, [], None
        return re.sub(r"\\([\\$`\"\n])", lambda found: found[1].strip("\n"), inside), [], None
    runs: list[Node] = []
    problem: str | None = None
    for child in inner:
        _, found, why = word_of(child)
        runs += found
        problem = problem or why
    known = sum(one.type == "command_substitution" for one in descendants(node))
    if problem is None and (plain.count("`") > 2 * known or plain.count("$(") > known + 2 * plain.count("$((")):
        problem = _HIDDEN
    return None, runs, problem


def _concatenated(node: Node) -> Word:
    texts: list[str | None] = []
    runs: list[Node] = []
    problem: str | None = None
    for child in node.children:
        text, found, why = word_of(child)
        texts.append(text)
        runs += found
        problem = problem or why
    is_whole = b"".join(child.text for child in node.children) == node.text
    if source(node) == "{}":
        return "{}", [], None
    if not is_whole or source(node).startswith("~"):
        return None, runs, problem
    known = [text for text in texts if text is not None]
    return ("".join(known) if len(known) == len(texts) else None), runs, problem


def _expansion(node: Node) -> Word:
    runs = [child for child in descendants(node) if child.type in ("command_substitution", "process_substitution")]
    text = source(node)
    problem = None if _EXPANSION.fullmatch(text) and text.count("$(") <= len(runs) else _HIDDEN
    return None, runs, problem
