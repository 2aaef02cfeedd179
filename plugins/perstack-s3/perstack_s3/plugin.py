"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perstack.core.base.records import JsonObject
from perstack.errors import UsageError
from perstack.ports.formats import JobFormat
from perstack.ports.hooks import hookimpl
from perstack.ports.storage import Storage, StorageFactory

PLUGIN_API = 1


class S3Storages(StorageFactory):
    """Factory for `storage = "s3://bucket/prefix"`.

    Endpoint and region come from `[storageSetting]` or the usual AWS variables, keys from the variables.
    """

    scheme = "s3"
    has_settings = True

    def open(
        self, location: str, workspace: Path, *, setting: JsonObject | None = None, formats: Sequence[JobFormat] = ()
    ) -> Storage:
        """Open the storage below a bucket's prefix; `[storageSetting]` has `endpoint` and `region`."""
        try:
            from perstack_s3.objects import BucketLocation, Objects
            from perstack_s3.storage import S3Storage
        except ModuleNotFoundError as error:
            raise UsageError(
                f"storage s3:{location} needs {error.name}: install it with `pip install 'perstack[s3]'`"
            ) from error
        settings = setting or {}
        unknown = sorted(set(settings) - {"endpoint", "region"})
        if unknown or not all(isinstance(value, str) for value in settings.values()):
            raise UsageError(
                "storageSetting: s3 takes `endpoint` and `region`, each a string, not"
                f" {', '.join(unknown) or 'this type'}"
            )
        bucket = BucketLocation.of(location, {name: str(value) for name, value in settings.items()})
        return S3Storage(Objects(bucket))


@hookimpl
def perstack_storages() -> Sequence[StorageFactory]:
    return [S3Storages()]
