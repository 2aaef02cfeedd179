"""What storages keep besides logs, derived from the logs again: to compare it, or to write it anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from perstack.core.checkpoint import CheckpointFile, RunSetting, checkpoint_file, run_setting
from perstack.core.events import StoredEvent
from perstack.core.ids import event_id_of
from perstack.core.job import Job
from perstack.core.runs.state import Run
from perstack.engine.load import load_run
from perstack.engine.logs.lines import every_id, run_ids
from perstack.ports.storage import RunRef, Storage

_PAGE = 1000


@dataclass(slots=True)
class Derived:
    """The caches of a Job, as its logs have them."""

    job: Job
    settings: dict[str, RunSetting] = field(default_factory=dict[str, RunSetting])
    """run-setting.json of each Run."""
    checkpoints: dict[str, CheckpointFile] = field(default_factory=dict[str, CheckpointFile])
    """Those that were put, and that the logs have."""


async def checkpoint_ids(storage: Storage, job_id: str) -> list[str]:
    """Of all checkpoints of a Job that were put."""
    return await every_id(lambda after: storage.checkpoints(job_id, limit=_PAGE, after=after))


async def derive(storage: Storage, job_id: str) -> Derived:
    """Fold all logs of a Job. Raises Damaged and NotFound."""
    put = frozenset(await checkpoint_ids(storage, job_id))
    derived = Derived(Job(job_id))
    known: dict[str, Run] = {}

    def observe(event: StoredEvent, run: Run) -> None:
        derived.job.apply(event)
        place = event_id_of(run.id, run.head.seq)
        if place in put:
            derived.checkpoints[place] = checkpoint_file(run)

    for run_id in await run_ids(storage, job_id):
        run = await load_run(storage, RunRef(job_id, run_id), known=known, observe=observe)
        if run is not None:
            known[run_id] = run
            derived.job.anchor(run_id, run.head.seq, run.head.hash)
            derived.settings[run_id] = run_setting(run.start)
    return derived
