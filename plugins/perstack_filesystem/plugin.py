"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perstack.core.base.records import JsonObject
from perstack.ports.formats import JobFormat
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory

PLUGIN_API = 1


class FilesystemStorages(StorageFactory):
    """Factory for `storage = "file:perstack"`: the state directory follows the colon and is created on first use."""

    scheme = "file"

    def open(
        self, location: str, workspace: Path, *, setting: JsonObject | None = None, formats: Sequence[JobFormat] = ()
    ) -> Storage:
        """Open the storage in that directory; `perstack` in the workspace without a location."""
        from perstack_filesystem.storage import FilesystemStorage

        root = workspace / (Path(location).expanduser() if location else "perstack")
        return FilesystemStorage(root, formats=formats)


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    return [FilesystemStorages()]
