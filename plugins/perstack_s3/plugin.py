"""Registration with the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perstack.core.base import JsonObject
from perstack.errors import UsageError
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory


class S3Storages:
    """`storage = "s3://bucket/prefix"`: where and as whom is read from `[storageSetting]` and the usual variables."""

    scheme = "s3"
    credentials = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

    def open(self, location: str, workspace: Path) -> Storage:
        """A storage in that bucket, below that prefix. Raises UsageError unless the place is `//bucket/prefix`."""
        return self.open_set(location, workspace, {})

    def open_set(self, location: str, workspace: Path, setting: JsonObject) -> Storage:
        """The same, with what `[storageSetting]` says: `endpoint` and `region`."""
        try:
            from perstack_s3.client import Place
            from perstack_s3.objects import Objects
            from perstack_s3.storage import S3Storage
        except ModuleNotFoundError as error:
            raise UsageError(
                f"storage s3:{location} needs {error.name}: install it with `pip install 'perstack[s3]'`"
            ) from error
        unknown = sorted(set(setting) - {"endpoint", "region"})
        if unknown or not all(isinstance(value, str) for value in setting.values()):
            raise UsageError(
                f"storageSetting: s3 has endpoint and region, each a text; not {', '.join(unknown) or 'this type'}"
            )
        place = Place.of(location, {name: str(value) for name, value in setting.items()})
        return S3Storage(Objects(place))


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    """The S3 storage."""
    return [S3Storages()]
