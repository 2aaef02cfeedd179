"""The S3 server shared by the tests of one process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server with an empty bucket; each test uses its own prefix in it."""
    from s3_server import serving  # its client takes time, and few tests need it

    with serving(tmp_path_factory.mktemp("s3") / "log") as endpoint:
        yield endpoint


@pytest.fixture
def s3_store(s3_server: str) -> Iterator[str]:
    """Yield the address of a new store. This process and its children can find the server."""
    from s3_server import BUCKET, server_variables

    with server_variables(s3_server):
        yield f"s3://{BUCKET}/{secrets.token_hex(6)}"
