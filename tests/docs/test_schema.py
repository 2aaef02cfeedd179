"""The JSON schema of perstack.toml, in the package and beside the pages, is what the code makes of its models."""

from __future__ import annotations

import json

import pytest
from definition_schema import definition_schema
from pages import ROOT


@pytest.mark.parametrize("place", ["host/perstack/config", "docs"])
def test_the_files_in_the_package_and_in_the_pages_are_up_to_date(place: str) -> None:
    file = ROOT / place / "perstack.schema.json"
    how = "python tests/support/definition_schema.py"
    assert json.loads(file.read_text()) == definition_schema(), f"write them anew: {how}"
