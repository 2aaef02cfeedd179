"""The site of docs/: it is built strictly, it has every page, and a browser gets all of it from where it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from pages import ROOT

OWN = ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")


def build(source: Path, to: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "mkdocs.yml", "--site-dir", str(to)],
        cwd=source,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    to = tmp_path_factory.mktemp("site")
    done = build(ROOT, to)
    assert done.returncode == 0, done.stdout + done.stderr
    return to


class _Loaded(HTMLParser):
    """What a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        address = found.get("href") if tag == "link" else found.get("src")
        if address and not (tag == "link" and found.get("rel") in ("canonical", "prev", "next")):
            self.addresses.append(address)


def test_the_site_loads_nothing_from_another_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        seen = _Loaded()
        seen.feed(page.read_text())
        assert [one for one in seen.addresses if re.match(r"(https?:)?//", one)] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text()), sheet


def nav_files(nav: object) -> list[str]:
    """The files that a nav names, at any depth."""
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(values, (list, type({}.values())))
    return [name for value in values for name in nav_files(value)]


def test_every_page_is_once_in_the_nav() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    names = nav_files(nav)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages - set(names)) == []
    assert len(names) == len(set(names))


def test_a_page_in_no_part_and_a_link_to_no_heading_end_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in OWN:
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "docs" / "stray.md").write_text("# Stray\n\n[There](budgets.md#no-such-heading), [gone](gone.md)\n")
    done = build(tmp_path, tmp_path / "site")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "stray.md" in said.partition('not included in the "nav"')[2]
    assert "no-such-heading" in said
    assert "gone.md" in said
