"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from typing_extensions import override

from perstack.core.base.records import JsonObject
from perstack.errors import UsageError
from perstack.ports.formats import JobFormat
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory

PLUGIN_API = 1


class PostgresStorages(StorageFactory):
    """Factory for `storage = "postgresql://user@host/database"`.

    The address is one of libpq, with an optional `schema=` in its query.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    @override
    def open(
        self, location: str, workspace: Path, *, setting: JsonObject | None = None, formats: Sequence[JobFormat] = ()
    ) -> Storage:
        from perstack_postgres.address import parse

        address = parse(location)
        if find_spec("psycopg") is None:
            raise UsageError("storage: PostgreSQL needs its driver: pip install 'perstack[postgres]'")

        from perstack_postgres.storage import PostgresStorage, store_at

        return PostgresStorage(store_at(address))


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    """Return the PostgreSQL storage factories, one for each scheme of its addresses."""
    return [PostgresStorages("postgresql"), PostgresStorages("postgres")]
