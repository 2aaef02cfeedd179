"""What tests of the host share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosting import Bench


@pytest.fixture(params=["file:perstack", "sqlite:perstack/state.db"], ids=["file", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A workspace, on each real storage in turn."""
    return Bench(tmp_path, request.param)
