"""The site's pages that do not stand in docs/, and links as they are seen from there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "reporting.md",
    "LICENSE": "license.md",
}
"""Pages of the repository's top, and what they are called on the site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's top."""
    for name, place in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name == "LICENSE":
            text = f"# License\n\n```text\n{text}```\n"
        files.append(File.generated(config, place, content=_as_seen_from_docs(text, ROOT)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to where their pages are on the site."""
    source = page.file.abs_src_path
    return markdown if source is None else _as_seen_from_docs(markdown, Path(source).parent)


def _as_seen_from_docs(text: str, folder: Path) -> str:
    """The text with each link as it is on the site; a file that is not there is named without a link."""

    def moved(link: re.Match[str]) -> str:
        sign, words, target, anchor = link.groups(default="")
        file = Path(os.path.normpath(folder / target))
        if file.is_relative_to(DOCS):
            return f"{sign}[{words}]({os.path.relpath(file, DOCS if folder == ROOT else folder)}{anchor})"
        place = PAGES.get(str(file.relative_to(ROOT)))
        return f"{sign}[{words}]({place}{anchor})" if place else words

    return _LINK.sub(moved, text)
