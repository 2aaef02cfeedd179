"""Print every message that a person may see, in one list to read: `messages_page.py [FOLDER…]`.

A message is a text of an error, a notice, or a problem of a definition. A text in a variable is found if the same
function assigns it.

    PYTHONPATH=tests/support python tests/support/messages_page.py host/perstack/core
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping

from sources import ROOT

_SPEAKERS = {
    "notice",
    "print_err",
    "refuse",
    "fail",
    "GiveUp",
    "ErrorInfo",
    "Finding",
    "Problem",
    "problem",
    "add_problem",
    "BrokenSeal",
    "ReadError",
}
"""Functions and classes that take a message, in addition to all whose name ends like that of an exception."""
_ENDINGS = ("Error", "Conflict", "NotFound", "Damaged", "Refused", "NotAgreed", "Invalid", "Event", "Exit", "Problem")


def messages_in(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each message, who says it, and the text; expressions in it are in braces."""
    tree = ast.parse(source)
    for function in _all_functions(tree):
        texts = _assigned_texts(function)
        for node in _own_nodes(function):
            if isinstance(node, ast.Call) and _is_speaker(name := _function_name(node.func)):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in _TEXTS)]
                for argument in arguments:
                    for text in _string_values(argument, texts):
                        if " " in text.strip():
                            yield node.lineno, name, text


_TEXTS = {"message", "reason", "problem", "text", "remedy"}


def _all_functions(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions in it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


def _assigned_texts(function: ast.AST) -> Mapping[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in _own_nodes(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _is_speaker(name: str) -> bool:
    return name in _SPEAKERS or name.endswith(_ENDINGS)


def _function_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _string_values(node: ast.expr, texts: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr():
            yield "".join(_readable_part(value) for value in node.values)
        case ast.Name() if node.id in texts:
            for value in texts[node.id]:
                yield from _string_values(value, {})
        case ast.IfExp():
            yield from _string_values(node.body, texts)
            yield from _string_values(node.orelse, texts)
        case ast.BinOp(op=ast.Add()):
            sides = [next(_string_values(side, {}), f"{{{ast.unparse(side)}}}") for side in (node.left, node.right)]
            yield "".join(sides)
        case _:
            return


def _readable_part(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    return f"{{{ast.unparse(value.value)}}}" if isinstance(value, ast.FormattedValue) else ast.unparse(value)


def main(folders: list[str]) -> None:
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for line, name, text in sorted(set(messages_in(path.read_text()))):
            print(f"{path.relative_to(ROOT)}:{line}  {name}: {text!r}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["host", "plugins"])
