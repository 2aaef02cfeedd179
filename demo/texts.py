"""Real texts to run the demo on: passages of this repository's own pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SHORTEST, LONGEST = 700, 1500
"""Characters of a passage: enough to be worth a note, and read by the embedded model in half a minute."""


@dataclass(frozen=True, slots=True)
class Text:
    """A passage: where it is from, the heading that it stands under, and its paragraphs."""

    source: str
    title: str
    body: str


def texts(root: Path = ROOT) -> list[Text]:
    """Every passage of prose: the first of each page, then the second of each, and so on."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md")), root / "LICENSE"]
    per_page = [list(_passages(page, root)) for page in pages if page.exists()]
    return [text for row in zip_longest(*per_page) for text in row if text is not None]


def _passages(page: Path, root: Path) -> Iterator[Text]:
    """Neighbouring paragraphs, as many as it takes."""
    title, body = "", ""
    for heading, paragraph in _paragraphs(page):
        title = title if body else heading
        body = f"{body}\n\n{paragraph}".strip()
        if len(body) >= SHORTEST:
            if len(body) <= LONGEST:
                yield Text(str(page.relative_to(root)), title, body)
            body = ""


def _paragraphs(page: Path) -> Iterator[tuple[str, str]]:
    """Each paragraph of whole sentences on one line, under its heading: no code, tables, lists or comments."""
    heading = page.stem
    text = re.sub(r"(?s)```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"))
    for block in re.split(r"\n\s*\n", text):
        one = re.sub(r"\s*\n\s*", " ", block.strip())
        if one.startswith("#"):
            heading = one.lstrip("# ")
        elif one.endswith((".", "!")) and not re.match(r"[-*+|>(]|\d+\. ", one):
            yield heading, one
