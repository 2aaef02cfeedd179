"""How much the attacks do: a sample in an ordinary run of the tests, all of it with PERSTACK_FAULTS=all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import workload
from hosting import STORAGES, server_variables, storage_of

from perstack.testing.chaos.victims import Victims


@pytest.fixture
def thorough() -> bool:
    """Whether everything is tried, which takes an hour and more."""
    return os.environ.get("PERSTACK_FAULTS") == "all"


@pytest.fixture(params=["file:perstack", "sqlite:perstack/state.db"], ids=["file", "sqlite"])
def storage(request: pytest.FixtureRequest) -> str:
    """Each real storage in turn."""
    return str(request.param)


@pytest.fixture(params=STORAGES)
def any_storage(request: pytest.FixtureRequest, thorough: bool) -> str:
    """Each storage in turn, a server's only where everything is tried."""
    if request.param in ("postgresql", "s3") and not thorough:
        pytest.skip("a server's lease has to expire after each kill: PERSTACK_FAULTS=all")
    return storage_of(request)


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[Victims]:
    """What starts commands that are killed, on the script beside the project."""
    with Victims({**workload.env(tmp_path), **server_variables()}) as victims:
        yield victims
