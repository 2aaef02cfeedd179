"""Every link within the project's pages leads somewhere, and no page names a place on somebody's machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT

FOLDERS = ("docs", "constraints", "demo", "experts", "host", "plugins")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _prose(page: Path) -> str:
    """A page without its examples, in which brackets are no links."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links to them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        assert not name.startswith("/"), f"{target} is an absolute path"
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target} is not there"
        assert file.is_relative_to(ROOT), f"{target} is outside of the project"
        assert not anchor or anchor in _anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_page_names_a_place_on_somebodys_machine(page: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:work|home|root|Users)/\S*", page.read_text()) == []


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"](docs/{page.name})" not in readme] == []
