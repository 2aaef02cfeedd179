"""Registration with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perstack.core.events import StoredEvent
from perstack.ports.formats import Folder, ForeignJob, JobFormat
from perstack.ports.hooks import hookimpl


class OriginalFormat:
    """`perstack export --format perstack`, and the Jobs that stand in such folders."""

    name = "perstack"
    writer = "the original Perstack"

    def read(self, job_id: str, runs: Folder, names: Sequence[str]) -> ForeignJob:
        """The Job of those folders. Raises StorageError, naming the file, if one cannot be read."""
        # imported here, for a start has no use for the original's shapes
        from perstack_original.folders import read_job

        return read_job(job_id, runs, names)

    def write(self, logs: Mapping[str, Sequence[StoredEvent]], blobs: Mapping[str, bytes]) -> dict[str, bytes]:
        """Its files. A blob that is not given is named in the text instead."""
        from perstack_original.exports import to_original

        return to_original(logs, blobs)


@hookimpl
def perstack_formats() -> Sequence[JobFormat]:
    """Format `perstack`."""
    return [OriginalFormat()]
