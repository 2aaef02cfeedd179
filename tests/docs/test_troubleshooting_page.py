"""Each message that docs/troubleshooting.md quotes is one that the code has."""

from __future__ import annotations

import ast
import re

from pages import ROOT, page

QUOTED = re.findall(r"^\| `([^`]+)` \|", page("docs/troubleshooting.md"), re.MULTILINE)


def texts_of_the_code() -> list[str]:
    """Return the string constants of all modules. A placeholder divides an f-string into several."""
    modules = (ast.parse(path.read_text()) for top in ("host", "plugins") for path in (ROOT / top).rglob("*.py"))
    constants = (node.value for module in modules for node in ast.walk(module) if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


def test_each_message_that_is_quoted_is_in_the_code() -> None:
    # one test of all: each of several test processes would parse the whole code for its share
    code = texts_of_the_code()
    assert [quoted for quoted in QUOTED if not any(quoted in text for text in code)] == []


def test_there_are_messages() -> None:
    assert len(QUOTED) > 15
