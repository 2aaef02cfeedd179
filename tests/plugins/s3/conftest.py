"""A server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_server import server_variables


@pytest.fixture(scope="module")
def s3(s3_server: str) -> Iterator[str]:
    """The address of a server that this process and its children find."""
    with server_variables(s3_server):
        yield s3_server
