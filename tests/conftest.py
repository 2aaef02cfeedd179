"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """An empty directory to give commands in."""
    return Terminal(tmp_path)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--local-model`: also run the tests on the embedded model."""
    parser.addoption("--local-model", action="store_true", help="run the tests that need the 1.1 GB weights")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on the embedded model take minutes each and all of the machine: they are asked for by name."""
    if config.getoption("--local-model"):
        return
    for item in items:
        if item.get_closest_marker("local_model"):
            item.add_marker(
                pytest.mark.skip(reason="needs the 1.1 GB weights of the embedded model: make test-local-model")
            )
