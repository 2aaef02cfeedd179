"""A server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_server import known, serving


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that this process and its children find."""
    with serving(tmp_path_factory.mktemp("s3") / "log") as endpoint, known(endpoint):
        yield endpoint
