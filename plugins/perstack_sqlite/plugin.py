"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory


class SqliteStorages:
    """`storage = "sqlite:perstack/state.db"`: what follows the colon is the file, made when it is first needed."""

    scheme = "sqlite"

    def open(self, location: str, workspace: Path) -> Storage:
        """A storage in that file; `perstack/state.db` in the workspace if no file is named."""
        from perstack_sqlite.storage import SqliteStorage

        return SqliteStorage(workspace / (Path(location).expanduser() if location else "perstack/state.db"))


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    """The SQLite storage."""
    return [SqliteStorages()]
