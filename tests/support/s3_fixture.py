"""The S3 server that the tests of one process share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with an empty bucket; each test has a prefix of its own in it."""
    from s3_server import serving  # its client takes time, and few tests need it

    with serving(tmp_path_factory.mktemp("s3") / "log") as endpoint:
        yield endpoint


@pytest.fixture
def s3_store(s3_server: str) -> Iterator[str]:
    """The address of a new store, on a server that this process and its children find."""
    from s3_server import BUCKET, known

    with known(s3_server):
        yield f"s3://{BUCKET}/{secrets.token_hex(6)}"
