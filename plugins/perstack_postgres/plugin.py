"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from perstack.errors import UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory


class PostgresStorages:
    """`storage = "postgresql://user@host/database"`: an address as libpq takes it, and `schema=` in its query."""

    credentials = ("PGPASSWORD",)

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def open(self, location: str, workspace: Path) -> Storage:
        """A storage in that database. Nothing is connected before the first use. Raises UsageError."""
        from perstack_postgres.address import parse

        address = parse(location)
        if find_spec("psycopg") is None:
            raise UsageError("storage: PostgreSQL needs its driver: pip install 'perstack[postgres]'")

        from perstack_postgres.storage import PostgresStorage, store_at

        return PostgresStorage(store_at(address))


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    """The PostgreSQL storage, under both names that its addresses begin with."""
    return [PostgresStorages("postgresql"), PostgresStorages("postgres")]
