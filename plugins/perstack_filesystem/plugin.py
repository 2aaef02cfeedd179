"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perstack.ports.formats import JobFormat
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory


class FilesystemStorages:
    """`storage = "file:perstack"`: what follows the colon is the state directory, made when it is first needed."""

    scheme = "file"

    def open(self, location: str, workspace: Path) -> Storage:
        """A storage in that directory; `perstack` in the workspace if no directory is named."""
        return self.open_with(location, workspace, ())

    def open_with(self, location: str, workspace: Path, formats: Sequence[JobFormat]) -> Storage:
        """The same; it shows Jobs that other programs wrote there in these formats, and continues them."""
        from perstack_filesystem.storage import FilesystemStorage

        root = workspace / (Path(location).expanduser() if location else "perstack")
        return FilesystemStorage(root, formats=formats)


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    """The filesystem storage."""
    return [FilesystemStorages()]
