"""docs/recordings.md: its commands do what it says, and its tables are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from page_walk import Walk
from pages import page

from perstack.recordings import model
from perstack.recordings.model import (
    FORMAT,
    MAX_BLOB_BYTES,
    MAX_RECORDING_BYTES,
    Piece,
    RecordedCall,
    RecordedReply,
    RecordedRun,
    Recording,
)

PAGE = page("docs/recordings.md")
SCRIPT = [
    {"tools": [{"name": "writeTextFile", "input": {"path": "haiku.md", "text": "Each step written down.\n"}}]},
    {"tools": [{"name": "exec", "input": {"command": "wc", "args": ["-w", "haiku.md"]}}]},
    {"text": "Written, in eleven words."},
]


def test_the_page_is_followed_from_an_empty_folder(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"experts": {"*": {"turns": SCRIPT}}}))
    env = {"PERSTACK_PLUGINS": "perstack.testing.plugin", "PERSTACK_SCRIPT": str(script)}
    walk = Walk(tmp_path / "empty", env)
    walk.folder.mkdir()
    walk.follow(PAGE)
    assert (walk.folder / "fresh" / "haiku.md").read_text() == "Each step written down.\n"
    assert len(walk.lines) == 8


@pytest.mark.parametrize("piece", [Recording, RecordedRun, RecordedReply, RecordedCall])
def test_the_page_has_every_key_of_the_file(piece: type[Piece]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.partition("## File format")[2], re.M)
    table = tables[(Recording, RecordedRun, RecordedReply, RecordedCall).index(piece)]
    named = [key for row in table.splitlines()[2:] for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(str(field.alias) for field in piece.model_fields.values())


def test_the_page_has_the_limits_and_the_format_of_the_code() -> None:
    assert f"`{FORMAT}`" in PAGE
    assert f"{MAX_BLOB_BYTES >> 20} MiB at most, of {MAX_RECORDING_BYTES >> 20} MiB in all" in " ".join(PAGE.split())
    assert model.__doc__
