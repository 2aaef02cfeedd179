"""Each message that docs/troubleshooting.md quotes is one that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from pages import ROOT, page

QUOTED = re.findall(r"^\| `([^`]+)` \|", page("docs/troubleshooting.md"), re.MULTILINE)


def texts(path: Path) -> list[str]:
    """The texts of a module; what is filled in, in an f-string, divides them."""
    found = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    return [one for one in found if isinstance(one, str)]


TEXTS = [one for top in ("host", "plugins") for path in (ROOT / top).rglob("*.py") for one in texts(path)]


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_message_that_is_quoted_is_in_the_code(quoted: str) -> None:
    assert any(quoted in text for text in TEXTS)


def test_there_are_messages() -> None:
    assert len(QUOTED) > 15
