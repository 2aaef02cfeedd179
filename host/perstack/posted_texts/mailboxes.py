"""Mailboxes: the texts that people posted to the Runs of a storage, and that no driver has taken yet.

A text waits until the process that drives its Run takes it before a generation (`take`), on whichever machine.
It is removed once the event that has it is on disk; a crash in between leaves it, and its id in the Run's state says
that it was taken.
"""

from __future__ import annotations

from pydantic import ValidationError

from perstack.core.base.ids import job_of_run
from perstack.core.jobs.job import Job
from perstack.core.runs.state import Run
from perstack.engine.log.run_session import RunSession
from perstack.engine.log.storage_access import MAILBOX_SPACES, PendingRecords
from perstack.errors import Conflict, Damaged
from perstack.ports.storage import Storage
from perstack.posted_texts.model import MAX_WAITING, PostedText, posted_events


class Mailboxes:
    """The mailboxes of one storage: one for each Job, which its Coordinator's Runs share, and one for each delegate."""

    def __init__(self, storage: Storage) -> None:
        self._of_jobs, self._of_delegates = (PendingRecords(storage.space(name)) for name in MAILBOX_SPACES)

    async def post(self, run: Run, text: PostedText) -> None:
        """Add a text for a Run; it survives power loss when this returns. Raises Conflict if too many wait."""
        box, owner_id = self._mailbox_of(run)
        if len(await box.records(owner_id)) >= MAX_WAITING:
            raise Conflict(f"{MAX_WAITING} texts wait for {run.id} already: post more when it has read them")
        await box.add(owner_id, text.to_json())

    async def list_waiting(self, run: Run) -> list[PostedText]:
        """Return the texts that wait for a Run, oldest first. Raises StorageError."""
        box, owner_id = self._mailbox_of(run)
        return _parse(owner_id, await box.records(owner_id))

    async def take(self, job: Job, session: RunSession) -> bool:
        """Record the texts that wait for a Run, and return whether there were new ones.

        Raises NotAgreed for texts of others, and StorageError.
        """
        box, owner_id = self._mailbox_of(session.run)
        if not await self.list_waiting(session.run):
            return False
        texts = _parse(owner_id, await box.own_records(owner_id))
        events = posted_events(session.run, texts, job.taken_post_ids, session.stamp)
        session.record_all(events)
        await session.flush()
        await box.remove(owner_id, len(texts))
        return bool(events)

    async def copy_job(self, job_id: str, target: Mailboxes) -> None:
        """Add the texts that wait for a Job and its delegates to another storage, unless they wait there already."""
        boxes = [(self._of_jobs, target._of_jobs, job_id)]
        boxes += [
            (self._of_delegates, target._of_delegates, run_id) for run_id in await self._delegates_with_mail(job_id)
        ]
        for source, other, owner_id in boxes:
            existing = set(await other.records(owner_id))
            for record in await source.records(owner_id):
                if record not in existing:
                    await other.add(owner_id, record)

    async def forget_job(self, job_id: str) -> None:
        """Remove all texts for a deleted Job and its delegates. Raises StorageError."""
        await self._of_jobs.forget(job_id)
        for run_id in await self._delegates_with_mail(job_id):
            await self._of_delegates.forget(run_id)

    async def _delegates_with_mail(self, job_id: str) -> list[str]:
        return [run_id for run_id in await self._of_delegates.owners() if job_of_run(run_id) == job_id]

    def _mailbox_of(self, run: Run) -> tuple[PendingRecords, str]:
        return (self._of_jobs, run.start.job_id) if run.is_coordinator else (self._of_delegates, run.id)


def _parse(owner_id: str, records: list[bytes]) -> list[PostedText]:
    texts: list[PostedText] = []
    for record in records:
        try:
            texts.append(PostedText.model_validate_json(record))
        except ValidationError as error:
            raise Damaged(
                f"the mailbox of {owner_id}: this version cannot read text {len(texts) + 1}: use a newer one",
                readable=len(texts),
            ) from error
    return texts
