"""The PostgreSQL storage passes the whole contract."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from postgres_server import PostgresServer

from perstack.ports.storage import RunRef
from perstack.testing.storage_contract import Opener, StorageContract
from perstack_postgres.plugin import perstack_storages


def opener_on(server: PostgresServer) -> Opener:
    """A store in a new schema."""
    address = server.address()
    schema = parse_qs(urlsplit(address).query)["schema"][0]

    def damage(run: RunRef, index: int) -> None:
        server.execute(
            f"UPDATE {schema}.records AS s SET line = replace(convert_from(line, 'UTF8'), %s, %s)::bytea"
            f" FROM {schema}.runs AS r JOIN {schema}.jobs AS j ON j.n = r.job"
            " WHERE r.n = s.run AND j.job_id = %s AND r.run_id = %s AND s.seq = %s",
            '"text":"',
            '"text":"X',
            *run,
            index + 1,
        )

    location = address.partition(":")[2]
    factory = perstack_storages()[0]
    return Opener(
        lambda: factory.open(location, Path.cwd()),
        ("perstack_postgres.plugin", location),
        damage=damage,
        shares_blobs=True,
        expiry=10,  # the server ends the lease when it reads the end of the connection, which a busy machine delays
    )


class TestPostgresStorage(StorageContract):
    @pytest.fixture
    def make_opener(self, postgres):
        return lambda: opener_on(postgres)


@pytest.mark.skipif(os.environ.get("PERSTACK_STORAGES") != "all", reason="takes a minute more: PERSTACK_STORAGES=all")
class TestPostgresSpace(StorageContract):
    """A space of it keeps every promise too."""

    @pytest.fixture
    def make_opener(self, postgres):
        def make() -> Opener:
            whole = opener_on(postgres)
            return Opener(lambda: whole.open().space("kept"), shares_blobs=True)

        return make
