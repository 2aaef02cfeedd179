"""The checkpoints of a Job, as a person chooses from them."""

from __future__ import annotations

from perstack.frontends.shared.log_entries import Place, places_in
from perstack.host import Host


async def places_of(host: Host, job_id: str) -> tuple[Place, ...]:
    """Those of all its Runs, Run by Run, the oldest first. Raises PerstackError."""
    return tuple(place for log in await host.logs(job_id) for place in places_in(log))
