"""What storages keep besides logs, derived from the logs again: to compare it, or to write it anew."""

from __future__ import annotations

from perstack.core.checkpoint import CheckpointFile, RunSetting, checkpoint_file, run_setting
from perstack.core.events import StoredEvent
from perstack.core.ids import event_id_of
from perstack.core.job import Job
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.engine.logs.runs import load_job
from perstack.engine.pages import every_id
from perstack.ports.storage import KeepsCopies, Storage

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Derived:
    """The caches of a Job, as its logs have them."""

    job: Job
    settings: dict[str, RunSetting]
    """run-setting.json of each Run."""
    checkpoints: dict[str, CheckpointFile]
    """Those that were put, and that the logs have."""


async def checkpoint_ids(storage: Storage, job_id: str) -> list[str]:
    """Of all checkpoints of a Job that were put; none where no copies are kept."""
    if not isinstance(storage, KeepsCopies):
        return []
    return await every_id(lambda after: storage.checkpoints(job_id, limit=_PAGE, after=after))


async def derive(storage: Storage, job_id: str) -> Derived:
    """Fold all logs of a Job. Raises Damaged and NotFound."""
    put = frozenset(await checkpoint_ids(storage, job_id))
    checkpoints: dict[str, CheckpointFile] = {}

    def observe(_: StoredEvent, run: Run) -> None:
        place = event_id_of(run.id, run.head.seq)
        if place in put:
            checkpoints[place] = checkpoint_file(run)

    loaded = await load_job(storage, job_id, observe)
    settings = {run_id: run_setting(run.start) for run_id, run in loaded.runs.items()}
    return Derived(loaded.job, settings, checkpoints)
