"""Summaries of Jobs for pages, without folding a log twice.

job.json of a Job at rest is shown as it is. That of a running Job may be a step old, so its logs are folded; the
states of its Runs are kept, and later requests fold only what was appended since. A page that must appear at once shows
job.json of a long Job; the page's stream then sends the folded state.

A state has all messages of its Run: 1 to 2 KB for an event of 400 bytes, and about its size for a large one. So the
bytes of the logs are bounded, and a driven Job with a larger log is shown from job.json, which its driver writes with
each step. Such a Job keeps nothing here, however long a page follows it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field

from perstack.core.base.chain import open_line
from perstack.core.jobs.job import Job
from perstack.core.jobs.summary import JobSummary, summarize
from perstack.core.runs.state import Run
from perstack.dataclass import dataclass
from perstack.doors.served_project import ServedProject
from perstack.engine.log.event_log import LoadedState, run_ids
from perstack.engine.log.run_log import run_logs
from perstack.engine.log.storage_access import read_summary
from perstack.errors import Damaged, NotFound, PerstackError
from perstack.ports.storage import RunRef
from perstack_studio.places import EarlyVerification

MAX_KEPT_BYTES = 32 << 20  # maximum bytes of the folded logs whose states are kept, over all Jobs
MAX_DRIVEN_BYTES = 4 << 20  # maximum bytes of the folded logs of one driven Job
_MAX_DRIVEN_EVENTS = 10_000  # maximum events of the logs of a driven Job that are folded to learn their bytes
_ROWS_PER_TURN = 50  # rows of a list that are read between two turns of the event loop
SHORT_LOG = 500  # maximum new events that a request folds before its page is shown


@dataclass(slots=True)
class _FoldedJob:
    """The states of a Job's Runs up to the events read so far."""

    runs: dict[str, LoadedState[Run]] = field(default_factory=dict[str, LoadedState[Run]])
    size: int = 0  # bytes of the folded events
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def events(self) -> int:
        return sum(loaded.head.seq for loaded in self.runs.values())


class JobStates:
    """The states of running Jobs that pages show. The least recently shown Jobs are dropped first."""

    def __init__(self, served_project: ServedProject) -> None:
        self._served_project = served_project
        self._folded_jobs: OrderedDict[str, _FoldedJob] = OrderedDict()
        self._verification = EarlyVerification(served_project.host.storage)
        self._large_jobs: set[str] = set()  # driven Jobs whose logs have more than `MAX_DRIVEN_BYTES`

    async def current(self, job_id: str) -> JobSummary:
        """Return a Job's summary as of its logs. Raises NotFound, Damaged and StorageError."""
        stored = await self._stored_summary(job_id)
        if stored is None or _is_at_rest(stored):
            return await self._served_project.job(job_id) if stored is None else stored
        return await self._follow(stored)

    async def page_summary(self, job_id: str) -> JobSummary:
        """Return a Job's summary for a page that must appear at once: of a long driven Job, the stored one.

        Of a Job with a damaged log it is the stored one with the error, so that its other Runs can be opened. The logs
        of a long Job are verified in the background, for the person's next click.
        """
        try:
            summary = await self._row_summary(job_id)
        except Damaged as error:
            stored = await self._stored_summary(job_id)
            if stored is None:
                raise
            return stored.model_copy(update={"damaged": True, "error": str(error)})
        self._verification.begin(summary)
        return summary

    async def close(self) -> None:
        """End the verification of logs."""
        await self._verification.close()

    async def _row_summary(self, job_id: str, *, questions_from_logs: bool = False) -> JobSummary:
        """Return a Job's summary, of a long Job that is driven or asks something the stored one."""
        stored = await self._stored_summary(job_id)
        if stored is None or _is_at_rest(stored):
            return await self._served_project.job(job_id) if stored is None else stored
        folded = self._folded_jobs.get(job_id)
        new_events = sum(run.head_seq for run in stored.runs) - (0 if folded is None else folded.events)
        if new_events > SHORT_LOG:
            is_sufficient = await self._is_driven(job_id) if stored.asking is None else not questions_from_logs
            if is_sufficient:
                return stored
        return await self._follow(stored)

    async def rows(self, job_ids: Sequence[str], *, questions_from_logs: bool = False) -> list[JobSummary]:
        """Return the summaries of these Jobs, without deleted ones. Damaged Jobs are as the Host lists them.

        With `questions_from_logs` no question is read from job.json, which anything may have written.
        """
        rows: list[JobSummary] = []
        for number, job_id in enumerate(job_ids):
            rows += filter(None, [await self._row(job_id, questions_from_logs)])
            if number % _ROWS_PER_TURN == 0:
                await asyncio.sleep(0)  # other requests must be served meanwhile
        return rows

    async def _row(self, job_id: str, questions_from_logs: bool) -> JobSummary | None:
        try:
            return await self._row_summary(job_id, questions_from_logs=questions_from_logs)
        except NotFound:
            return None
        except PerstackError:
            return await self._served_project.host.jobs.row(job_id)

    async def _stored_summary(self, job_id: str) -> JobSummary | None:
        """Return job.json; None if the Host must derive the summary, or must refuse to show the Job."""
        stored = await read_summary(self._served_project.host.storage, job_id, JobSummary)
        if stored is None or stored.id != job_id or stored.status == "queued":
            return None
        return stored if self._served_project.definitions.offers(stored.expert_key) else None

    async def _follow(self, stored_summary: JobSummary) -> JobSummary:
        """Return the summary as of the logs, or the stored one of a large Job whose driver writes it."""
        if (
            stored_summary.asking is None
            and self._is_large(stored_summary)
            and await self._is_driven(stored_summary.id)
        ):
            self._drop_states(stored_summary.id)
            return stored_summary
        return await self._fold(stored_summary.id)

    def _is_large(self, stored_summary: JobSummary) -> bool:
        """Return whether the states of a driven Job are too large to be kept."""
        folded = self._folded_jobs.get(stored_summary.id)
        if folded is not None and folded.size > MAX_DRIVEN_BYTES:
            self._large_jobs.add(stored_summary.id)
        return (
            stored_summary.id in self._large_jobs
            or sum(run.head_seq for run in stored_summary.runs) > _MAX_DRIVEN_EVENTS
        )

    def _drop_states(self, job_id: str) -> None:
        folded = self._folded_jobs.get(job_id)
        if folded is not None and not folded.lock.locked():
            del self._folded_jobs[job_id]

    async def _fold(self, job_id: str) -> JobSummary:
        folded = self._folded_jobs.setdefault(job_id, _FoldedJob())
        self._folded_jobs.move_to_end(job_id)
        async with folded.lock:
            try:
                await self._catch_up(job_id, folded)
            except BaseException:
                self._folded_jobs.pop(job_id, None)
                raise
            job = Job(job_id)
            for loaded in folded.runs.values():
                job.update(loaded.state)
        self._drop_old()
        if not job.coordinators:
            return await self._served_project.job(job_id)  # raises the error, since no Run could be folded
        return summarize(job, is_driven=await self._is_driven(job_id))

    async def _is_driven(self, job_id: str) -> bool:
        return await self._served_project.host.storage.lease_info(job_id) is not None

    async def _catch_up(self, job_id: str, folded: _FoldedJob) -> None:
        """Fold the appended events. After a redaction, or if a log was replaced, fold everything again."""
        storage = self._served_project.host.storage
        for run_id in await run_ids(storage, job_id):
            ref, previous = RunRef(job_id, run_id), folded.runs.get(run_id)
            if previous is not None:
                lines = await storage.read(ref, after=previous.head.seq - 1, limit=2)
                if not lines or open_line(lines[0]).hash != previous.head.hash:
                    folded.runs.clear()
                    break
                if len(lines) == 1:
                    continue
            states = {other_run_id: loaded.state for other_run_id, loaded in folded.runs.items()}
            async for line, state in run_logs(storage, states).fold(ref, since=previous):
                folded.runs[run_id] = LoadedState(state, line.head)
                folded.size += len(line.line)
                if previous is not None and line.event.type == "redactEvent":
                    folded.runs.clear()  # the kept states still have the redacted content
                    break
            if not folded.runs:
                break
        else:
            return
        folded.size = 0
        await self._catch_up(job_id, folded)

    def _drop_old(self) -> None:
        total = sum(folded.size for folded in self._folded_jobs.values())
        while total > MAX_KEPT_BYTES and len(self._folded_jobs) > 1:
            _, oldest = self._folded_jobs.popitem(last=False)
            total -= oldest.size


def _is_at_rest(summary: JobSummary) -> bool:
    """Return whether job.json can be shown as it is. An open question cannot: it is derived from the logs."""
    return summary.status != "running" and summary.asking is None
