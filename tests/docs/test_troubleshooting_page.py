"""Each message that docs/troubleshooting.md quotes is one that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from pages import ROOT, page

QUOTED = re.findall(r"^\| `([^`]+)` \|", page("docs/troubleshooting.md"), re.MULTILINE)


@cache
def texts_of_the_code() -> list[str]:
    """Return the string constants of all modules. A placeholder divides an f-string into several."""
    modules = (ast.parse(path.read_text()) for top in ("host", "plugins") for path in (ROOT / top).rglob("*.py"))
    constants = (node.value for module in modules for node in ast.walk(module) if isinstance(node, ast.Constant))
    return [value for value in constants if isinstance(value, str)]


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_message_that_is_quoted_is_in_the_code(quoted: str) -> None:
    assert any(quoted in text for text in texts_of_the_code())


def test_there_are_messages() -> None:
    assert len(QUOTED) > 15
