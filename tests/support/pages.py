"""Read the documentation: its tables and examples; and run the examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import warm
from warm_client import READ_AT_START

ROOT = Path(__file__).parents[2]
_LEFT_OUT = (
    *("ANTHROPIC_", "AZURE_", "DEEPSEEK_", "GEMINI_", "GOOGLE_", "OLLAMA_", "OPENAI_"),
    *(prefix for prefix in READ_AT_START if prefix != "LD_"),
)
"""Prefixes of variables that examples do not inherit: vendors' keys, and Python's start-up options."""


def page(name: str) -> str:
    """Return a page by its path from the repository's root."""
    return (ROOT / name).read_text()


def keep_part(name: str, printed: str, wanted: str) -> str:
    """Return a part of a page. With `PERSTACK_KEEP_SCREENS=1`, first replace it by the wanted text."""
    if printed == wanted or not os.environ.get("PERSTACK_KEEP_SCREENS"):
        return printed
    (ROOT / name).write_text(page(name).replace(printed, wanted, 1))
    return wanted


def section(text: str, heading: str) -> str:
    """Return the text below a heading, given with its #, up to the next heading of the same or a higher level."""
    level = len(heading) - len(heading.lstrip("#"))
    match = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)", text, re.M | re.S)
    assert match, f"there is no heading {heading!r}"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the first table in a text, without its head."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("| ---"):
            break
    table: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    assert table, "there is no table"
    return table


def first_cells(text: str) -> list[str]:
    """Return the first cell of each row of the first table, without backticks."""
    return [row[0].strip("`") for row in rows(text)]


def fenced(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def commands(text: str) -> list[str]:
    """Return every line of the sh blocks of a text, including trailing comments."""
    return [line for block in fenced(text, "sh") for line in block.splitlines() if line.strip()]


def run_line(
    line: str, folder: Path, env: Mapping[str, str] | None = None, *, new: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run one line of a page in a shell, with this environment's programs first in the path.

    With `new`, `perstack` is the real console script and not a forked process.
    """
    folders = [*([] if new else [str(warm.programs())]), str(Path(sys.executable).parent), os.environ["PATH"]]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env={**inherited, "PATH": os.pathsep.join(folders), **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
