"""Answering what a Job asks, and seeing it to its next end or stop, wherever it is driven."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perstack.core.job import JobSummary

if TYPE_CHECKING:
    from perstack.core.by import By
    from perstack.engine.emit import OnEvent
    from perstack.host import Host


def is_elsewhere(host: Host, job: JobSummary) -> bool:
    """Whether a Job was submitted, and workers can be told that it continues."""
    return job.queued is not None and host.dispatcher is not None


async def answered(
    host: Host, job: JobSummary, text: str, *, question_id: str | None, by: By, on_event: OnEvent
) -> JobSummary:
    """Answer it. A Job that was submitted is left to its workers, and shown from there on; any other is driven here.

    If this is cancelled, a Job that workers drive goes on. Raises as `Host.answer`.
    """
    if not is_elsewhere(host, job):
        return await host.answer(text, job_id=job.id, question_id=question_id, by=by, drive=True, on_event=on_event)
    seen = {run_id: head.seq for run_id, head in (await host.load(job.id)).job.heads.items()}
    await host.answer(text, job_id=job.id, question_id=question_id, by=by, drive=False)
    return await host.jobs.follow(job.id, after=seen, on_event=on_event)
