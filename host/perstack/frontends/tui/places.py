"""The checkpoints of a Job, as a person chooses from them."""

from __future__ import annotations

from perstack.engine.logs.runs import checkpoint_at
from perstack.frontends.tui.view.history import Place
from perstack.host import Host


async def places_of(host: Host, job_id: str) -> tuple[Place, ...]:
    """Those of all its Runs, Run by Run, the oldest first. Raises PerstackError."""
    found: list[Place] = []
    for run in (await host.jobs.runs(job_id)).runs:
        for line in await host.jobs.events(run.id, job_id=job_id):
            checkpoint = checkpoint_at(line.event)
            if checkpoint is not None:
                found.append(Place(line.event.step_number, checkpoint, run.expert_key))
    return tuple(found)
