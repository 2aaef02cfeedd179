"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perstack.core.base.records import JsonObject
from perstack.ports.formats import JobFormat
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory

PLUGIN_API = 1


class SqliteStorages(StorageFactory):
    """Factory for `storage = "sqlite:perstack/state.db"`: the file follows the colon and is created on first use."""

    scheme = "sqlite"

    def open(
        self, location: str, workspace: Path, *, setting: JsonObject | None = None, formats: Sequence[JobFormat] = ()
    ) -> Storage:
        """Open the storage in that file; `perstack/state.db` in the workspace without a location."""
        from perstack_sqlite.storage import SqliteStorage

        return SqliteStorage(workspace / (Path(location).expanduser() if location else "perstack/state.db"))


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    return [SqliteStorages()]
