"""CONTRIBUTING's list of words: none of those that are not to be used is on a page, in a help or in a message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pages import ROOT, first_cells, page, section

from perstack.doors.cli.main import perstack

FORMS = {
    "is told": r"\b(?:is|are|was|were|be|been) told\b",
    "lacks": r"\black(?:s|ed|ing)?\b",
    "goes before": r"\bgo(?:es)? before\b",
    "goes on": r"\b(?:go|goes|going|gone|went) on\b",
    "forgets a login": r"\bforg[eo]t\w* .{0,12}login",
    "spoilt": r"\bspoil(?:t|ed|s)?\b",
    "what it has made": r"\bhas made(?=[,.:;]|$)",
    "artefact": r"(?<![.\w`])artefacts?\b",
    "approves of": r"\bapprov(?:e|es|ed|ing) of\b",
    "anew": r"\banew\b",
    "in words": r"\bin (?:a few )?words\b",
    "words for the model": r"\bwords for the model\b",
    "mends": r"\bmend(?:s|ed|ing)?\b",
    "hears of": r"\bhears? of\b",
    "in vain": r"\bin vain\b",
    "his affair": r"\b(?:his|its|their|whose) affair\b",
}
"""What each row of the list is looked for by."""

UNWANTED = re.compile("|".join(FORMS.values()), re.IGNORECASE | re.MULTILINE)
THE_MODELS = {"perstack/core/definitions/instruction.py"}
"""What models are sent as their instruction."""

PAGES = sorted(
    [*(ROOT / "docs").glob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY"))]
)
SOURCES = sorted(
    file
    for top in ("host", "plugins")
    for file in (ROOT / top).rglob("*.py")
    if str(file.relative_to(ROOT / top)) not in THE_MODELS
)


def prose(text: str) -> str:
    """A page without its examples, and without the list itself, on as many lines."""
    text = re.sub(
        r"(?<=^\| not \| but \|\n).*?\n(?=\n)", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S
    )
    return re.sub(r"^```.*?^```$|`[^`\n]*`", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)


def texts_of_module(file: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module, with their lines: no names, and none of what documents the code."""
    tree = ast.parse(file.read_text())
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in documents:
            continue
        if " " in node.value:
            yield node.lineno, node.value


def helps(command: click.Command, parent: click.Context | None = None) -> Iterator[str]:
    """What a command's --help says, and those below it."""
    settings = {**command.context_settings, "terminal_width": 10_000}
    context = click.Context(command, parent, info_name=command.name, **settings)
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below, context)


def test_the_list_is_what_is_looked_for() -> None:
    assert first_cells(section(page("CONTRIBUTING.md"), "## Words")) == list(FORMS)
    for term, form in FORMS.items():
        assert re.search(form, term, re.I), term


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_no_page_has_an_unwanted_word(file: Path) -> None:
    lines = enumerate(prose(file.read_text()).splitlines(), 1)
    assert [f"{file.name}:{number}: {line}" for number, line in lines if UNWANTED.search(line)] == []


def test_no_text_that_is_shown_has_an_unwanted_word() -> None:
    found = (
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in SOURCES
        for line, text in texts_of_module(file)
        if UNWANTED.search(text)
    )
    assert list(found) == []


def test_no_help_has_an_unwanted_word() -> None:
    assert [line for text in helps(perstack) for line in text.splitlines() if UNWANTED.search(line)] == []
