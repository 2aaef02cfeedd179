"""The pytest plugin. pytest imports it wherever perstack is installed, so it imports the rest only when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from perstack.testing.experts.pytest_items import DefinitionItems, MakeBench


@pytest.fixture
def perstack_host(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBench:
    """Return a function that makes a bench to run Experts on: `perstack_host(model)`, with a script or a recording.

    The definition is the perstack.toml in the test's folder or above it; `config=` names another. See docs/testing.md.
    """
    from perstack.testing.experts.pytest_items import MakeBench

    return MakeBench(request.path.parent, tmp_path)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> DefinitionItems | None:
    """Collect the tests of a definition file that is named on pytest's command line."""
    if file_path.suffix != ".toml" or not parent.session.isinitpath(file_path):
        return None
    from perstack.testing.experts.pytest_items import DefinitionItems

    make = DefinitionItems.from_parent  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return make(parent, path=file_path)
