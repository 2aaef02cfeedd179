"""The embedded model with a window of 4,096 tokens, on a task that does not fit: `make test-local-model`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from terminal import Result, Terminal

from perstack_local.llama import is_installed
from perstack_local.weights import is_present, weights_path

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not is_installed(), reason="the library of the embedded model is not installed"),
    pytest.mark.skipif(
        not is_present(weights_path(os.environ)),
        reason="the embedded model's weights are not there: python -m perstack_local fetch",
    ),
]

PATIENCE = 1500
"""Seconds for one Run: the model reads 4,096 tokens several times, on the processor alone."""

BOOK = '''
import random
from pathlib import Path
from mcp.server.mcpserver import MCPServer

server = MCPServer("book")
NAMES = "harbour market bridge garden station library bakery mill".split()
THINGS = "lamp boat basket letter clock ladder barrel window carpet bell".split()


@server.tool()
def readPage(name: str) -> str:
    """Read a page of the book."""
    if name not in NAMES:
        return f"There is no page {name}."
    number = NAMES.index(name)
    chance = random.Random(number)
    counted = [f"{chance.choice(THINGS)} and {chance.choice(THINGS)}" for _ in range(44)]
    lines = [f"{both} were counted and left where they were." for both in counted]
    if number + 1 == len(NAMES):
        lines.append('This was the last page. Next: write the report "complete".')
    else:
        lines.append(f"Next: read the page {NAMES[number + 1]}.")
    return "\\n".join(lines)


@server.tool()
def writeReport(text: str) -> str:
    """Write the report, after the last page."""
    Path("report.txt").write_text(text)
    return "The report is written. Next: finish."


server.run()
'''

DEFINITION = """
{compaction}
keepResults = 2
contextWindow = 4096
maxSteps = 20

[provider]
providerName = "local"
[provider.setting]
contextLength = 4096
maxTokens = 300

[experts.reader]
instruction = "You read a book, page by page. Each page ends with what to do next: do exactly that next."

[experts.reader.skills.base]
type = "mcpStdioSkill"
command = "npx"
packageName = "@perstack/base"
pick = ["attemptCompletion"]

[experts.reader.skills.book]
type = "mcpStdioSkill"
command = {python}
args = ["book.py"]
"""


def _reads_the_book(workspace: Path, compaction: str = "") -> Result:
    workspace.mkdir()
    terminal = Terminal(workspace)
    terminal.env = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ}
    definition = DEFINITION.format(compaction=compaction, python=json.dumps(sys.executable))
    (workspace / "perstack.toml").write_text(definition)
    (workspace / "book.py").write_text(BOOK)
    return terminal.run("run", "reader", "Read the page harbour.", seconds=PATIENCE)


def test_it_finishes_with_compaction_what_it_cannot_finish_without(tmp_path: Path) -> None:
    compacted = _reads_the_book(tmp_path / "auto")
    assert compacted.code == 0
    assert "compactHistory" in [event["type"] for event in compacted.events]
    assert (tmp_path / "auto" / "report.txt").read_text() == "complete"

    whole = _reads_the_book(tmp_path / "off", 'compaction = "off"')
    assert whole.code == 1
    assert "ContextOverflow" in whole.out
    assert not (tmp_path / "off" / "report.txt").exists()
