"""The pytest plugin: what is imported wherever pytest runs beside perstack, so that nothing else is imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from perstack.testing.experts.in_pytest import DefinitionItems, MakeBench


@pytest.fixture
def perstack_host(request: pytest.FixtureRequest, tmp_path: Path) -> MakeBench:
    """Makes what Experts are run on: `perstack_host(model)`, where `model` is a script or a recording.

    The definition is the perstack.toml of the test's folder or above it, `config=` another. See docs/testing.md.
    """
    from perstack.testing.experts.in_pytest import MakeBench

    return MakeBench(request.path.parent, tmp_path)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> DefinitionItems | None:
    """The tests of a definition file that is named on pytest's own command line."""
    if file_path.suffix != ".toml" or not parent.session.isinitpath(file_path):
        return None
    from perstack.testing.experts.in_pytest import DefinitionItems

    make = DefinitionItems.from_parent  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return make(parent, path=file_path)
