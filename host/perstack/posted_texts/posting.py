"""Post texts to the Runs of Jobs that any process drives, list what people said to them, and remove such texts."""

from __future__ import annotations

import secrets

from perstack.core.base.ids import By, check_id, check_job_id
from perstack.core.jobs.job import Job
from perstack.core.runs.state import Run
from perstack.engine.context.host_setup import SetupSource
from perstack.engine.jobs.reader import JobReader
from perstack.errors import NotFound
from perstack.next_steps import Inspect
from perstack.posted_texts.mailboxes import Mailboxes
from perstack.posted_texts.model import Delivery, PostedText, StandingText, check_posted, find_receiver, standing_texts
from perstack.system.user import this_user


class PostedTexts:
    """The texts that people post to Jobs of one storage, from any process. The driver of a Run takes them."""

    def __init__(self, source: SetupSource, reader: JobReader) -> None:
        self._source = source
        self._reader = reader
        self._mailboxes = Mailboxes(reader.storage)

    async def tell(self, job_id: str, text: str, *, run_id: str | None = None, by: By | None = None) -> Delivery:
        """Post a text to a Run of a Job, by default the Coordinator, whose model sees it before its next generation.

        The text survives power loss when this returns. It waits while the Job does. Raises UsageError for an empty
        text, one of more than 20,000 characters, and a Job or Run that has ended; Conflict if 100 texts wait; NotFound.
        """
        check_posted(text)
        job = await self._reader.load(check_job_id(job_id))
        run = find_receiver(job, None if run_id is None else check_id(run_id, "run"))
        return await self._post(run, by, text=text)

    async def drop(self, job_id: str, text_id: str, *, by: By | None = None) -> Delivery:
        """Remove a text that `standing_texts` lists: the models of the Job are not sent it again.

        Raises NotFound for another text, and UsageError for a Job that has ended.
        """
        job = await self._reader.load(check_job_id(job_id))
        find_receiver(job, None)
        for run in _possible_receivers(job):
            if any(text.id == text_id for text in standing_texts(run, await self._mailboxes.list_waiting(run))):
                return await self._post(run, by, drops=text_id)
        raise NotFound(f"Job {job_id} has no posted text {text_id}", next_steps=(Inspect("log", job_id),))

    async def standing_texts(self, job_id: str, *, run_id: str | None = None) -> tuple[StandingText, ...]:
        """Return what is never summarised away for the Coordinator or another Run, oldest first. Raises NotFound."""
        job = await self._reader.load(check_job_id(job_id))
        run = job.coordinator if run_id is None else job.runs.get(run_id)
        if run is None:
            raise NotFound(f"Job {job_id} has no Run {run_id}", next_steps=(Inspect("log", job_id),))
        return standing_texts(run, await self._mailboxes.list_waiting(run))

    async def _post(self, run: Run, by: By | None, *, text: str = "", drops: str = "") -> Delivery:
        await self._reader.storage.require_own(run.start.job_id)
        posted = PostedText(
            id=secrets.token_hex(6),
            timestamp=self._source.setup.clock.now(),
            by=by or this_user(),
            text=text,
            drops=drops,
        )
        await self._mailboxes.post(run, posted)
        is_driven = await self._reader.storage.lease_info(run.start.job_id) is not None
        return Delivery(id=posted.id, run_id=run.id, status=run.status, is_driven=is_driven)


def _possible_receivers(job: Job) -> list[Run]:
    """Return the Runs that may take a text, the Coordinator first."""
    others = [run for run in job.runs.values() if not run.is_coordinator and run.status != "completed"]
    return [job.coordinator, *others]
