"""Registration of the plugin with the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from perstack.ports.formats import ForeignJob, JobFormat, ReadableFolder
from perstack.ports.hooks import hookimpl

if TYPE_CHECKING:
    from perstack.core.runs.events import StoredEvent

PLUGIN_API = 1


class OriginalFormat(JobFormat):
    """Format of `perstack export --format perstack`, and of Job directories that the original Perstack wrote."""

    name = "perstack"
    writer = "the original Perstack"

    @override
    def read(self, job_id: str, runs: ReadableFolder, names: Sequence[str]) -> ForeignJob:
        # imported late: most processes do not need it
        from perstack_original.importing import read_job

        return read_job(job_id, runs, names)

    def write(self, logs: Mapping[str, Sequence[StoredEvent]], blobs: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files of a Job. A missing blob becomes a text that names it."""
        from perstack_original.export import to_original

        return to_original(logs, blobs)


@hookimpl
def perstack_formats() -> Sequence[JobFormat]:
    return [OriginalFormat()]
