"""How much the attacks do: a sample in an ordinary run of the tests, all of it with PERSTACK_FAULTS=all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import workload
from chaos.processes import Victims
from hosts import STORAGES, server_variables, storage_of


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


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    """What commands are forked from: it imports for longer than most of them run."""
    with Victims(workload.env(tmp_path_factory.mktemp("nursery"))) as victims:
        yield victims


@pytest.fixture
def victims(nursery: Victims, tmp_path: Path) -> Victims:
    """What starts commands that are killed, on the script beside the project."""
    return nursery.with_env({**workload.env(tmp_path), **server_variables()})
