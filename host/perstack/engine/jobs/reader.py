"""Read Jobs: summaries, lists, events, checkpoints, and watch them. Nothing here changes a log.

job.json is a cache: it is trusted unless it says that the Job, or a delegate of a queued Job, runs; then the summary is
derived from the logs. A Job that cannot be read is shown as a failed one, so that lists do not end at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from perstack.core.base.chain import open_line
from perstack.core.base.ids import OwnerKind, check_id, check_job_id, is_place, job_of_run, place_of
from perstack.core.definitions.job_status import ACTIVE
from perstack.core.jobs.due import DUE, job_state, reason_to_resume
from perstack.core.jobs.job_choice import has_labels
from perstack.core.jobs.resuming import UnsettledCall, unsettled_calls
from perstack.core.jobs.summary import JobSummary, RunSummary, summarize
from perstack.core.runs.facts import ContinuedFrom
from perstack.dataclass import dataclass
from perstack.engine.jobs.id_resolution import nth_latest_job, resolve_id
from perstack.engine.log.event_log import StoredLine, read_intact, run_ids
from perstack.engine.log.run_log import RunLog, checkpoint_at, load_job, load_run, run_logs, watch_job
from perstack.engine.log.storage_access import heads_in_summary, read_summary
from perstack.errors import Damaged, NotFound, StorageError, UsageError
from perstack.next_steps import Inspect, Start
from perstack.ports.storage import Page, RunRef, Storage

if TYPE_CHECKING:  # a list of Jobs needs no state of a Run
    from perstack.core.jobs.checkpoints import Checkpoint
    from perstack.core.jobs.job import Job
    from perstack.core.jobs.summary import PlacedRun
    from perstack.core.runs.events import StoredEvent
    from perstack.core.runs.state import Run
    from perstack.engine.log.run_session import OnEvent

_MAX_CONCURRENT_READS = 16  # Jobs read concurrently: with a remote storage, each read is a round trip


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of Jobs, newest first, and the cursor that continues after it."""

    jobs: tuple[JobSummary, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """A page of a Job's Runs, in the order in which they were created, and the cursor that continues after it."""

    runs: tuple[RunSummary, ...]
    next: str | None


class JobReader:
    """Reader of the Jobs in a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def job(self, job_id: str | None = None) -> JobSummary:
        """Return the summary of a Job, or of the latest one. Raises NotFound."""
        job_id = await self.id_or_latest(job_id)
        cached = await read_summary(self.storage, job_id, JobSummary)
        if cached is None or cached.id != job_id:  # copied from another Job
            return await self._derive_summary(job_id)
        # a question is derived from the logs: a person must not answer one from a cache
        if cached.status != "running" and cached.asking is None and not _may_be_stale(cached):
            return cached
        try:
            return await self._derive_summary(job_id)
        except NotFound:
            if await self.storage.lease_info(job_id) is None:
                raise
            return cached  # the Job is about to begin

    async def list(
        self, *, limit: int = 100, after: str | None = None, labels: Mapping[str, str] | None = None
    ) -> JobPage:
        """Return a page of Jobs, most recently written first. `after` is the `next` of the page before.

        With `labels`, the page has only Jobs with all of them, and may have more than `limit`.
        """
        jobs: list[JobSummary] = []
        while True:
            page = await self.storage.jobs(limit=limit, after=after)
            jobs += [summary for summary in await self.rows(page.ids) if has_labels(summary.labels, labels or {})]
            after = page.next
            if after is None or not labels or len(jobs) >= limit:
                return JobPage(tuple(jobs), after)

    @overload
    async def complete_id(self, typed: str, kinds: Sequence[OwnerKind] = ...) -> str: ...
    @overload
    async def complete_id(self, typed: str | None, kinds: Sequence[OwnerKind] = ...) -> str | None: ...
    async def complete_id(self, typed: str | None, kinds: Sequence[OwnerKind] = ("job",)) -> str | None:
        """Return the id that a person typed as a complete id, a unique prefix, `@last` or `@last~N`; None for None.

        Raises UsageError that lists all matches of an ambiguous prefix.
        """
        return None if typed is None else await resolve_id(self.storage, typed, kinds)

    async def rows(self, job_ids: Sequence[str]) -> Sequence[JobSummary]:
        """Return the `row` of each Job that was not deleted."""
        summaries: list[JobSummary | None] = []
        for start in range(0, len(job_ids), _MAX_CONCURRENT_READS):
            summaries += await asyncio.gather(*map(self.row, job_ids[start : start + _MAX_CONCURRENT_READS]))
        return [summary for summary in summaries if summary is not None]

    async def row(self, job_id: str) -> JobSummary | None:
        """Return the summary of a Job for a list: a damaged one if it cannot be read, None if it was deleted."""
        try:
            return await self.job(job_id)
        except NotFound:
            return None
        except StorageError as error:
            return _unreadable_job(job_id, error)

    async def row_to_delete(self, job_id: str) -> JobSummary:
        """Return the `row` of a Job to delete, which may be unreadable or without events. Raises NotFound."""
        try:
            return await self.row(job_id) or await self.job(job_id)
        except NotFound as error:
            if not await self.storage.has_job(job_id):
                raise
            return _unreadable_job(job_id, error)

    async def id_or_latest(self, job_id: str | None) -> str:
        """Return the checked id, or without one the id of the latest Job. Raises NotFound and UsageError."""
        return await nth_latest_job(self.storage, 0) if job_id is None else check_job_id(job_id)

    async def load(self, job_id: str | None = None) -> Job:
        """Return a Job with the states of its Runs. Raises NotFound, and StorageError for a wrong job.json."""
        job_id = await self.id_or_latest(job_id)
        job = await load_job(self.storage, job_id)
        if job.runs and not job.coordinators:
            raise Damaged(
                f"Job {job_id}: the log of the Run that began it is empty or gone; put it back from a copy", readable=0
            )
        if not job.runs:
            if await self.begun_state(job_id) == "removed":
                raise StorageError(
                    f"Job {job_id} had events, and its logs are gone or empty: put them back from a copy"
                )
            raise NotFound(f"Job {job_id} ended before its first event", next_steps=(Start(job_id),))
        return job

    async def begun_state(self, job_id: str) -> Literal["no", "begun", "removed"]:
        """Return `begun` if an existing Job has events, `removed` if job.json names lost ones, otherwise `no`."""
        for run_id in await run_ids(self.storage, job_id):
            with suppress(Damaged):
                if not await self.storage.read(RunRef(job_id, run_id), limit=1):
                    continue
            return "begun"
        return "removed" if heads_in_summary(await self.storage.summary(job_id)) else "no"

    async def runs(self, job_id: str | None = None, *, limit: int = 100, after: str | None = None) -> RunPage:
        """Return a page of a Job's Runs, in the order of creation. `after` is the `next` of the page before.

        Without an id the Runs of all Jobs, most recently written Job first. Raises NotFound, and UsageError for an
        invalid cursor.
        """
        if job_id is None:
            return await self._all_runs(limit, after)
        all_runs = (await self.job(job_id)).runs
        start = (
            0
            if after is None
            else next((n for n, run_summary in enumerate(all_runs, 1) if run_summary.id == after), None)
        )
        if start is None:
            raise NotFound(f"Job {job_id} has no Run {after} to list after")
        page = all_runs[start : start + limit]
        return RunPage(page, page[-1].id if start + limit < len(all_runs) else None)

    async def _all_runs(self, limit: int, after: str | None) -> RunPage:
        cursor, run_id = _cursor(after)
        collected: list[RunSummary] = []
        while True:
            page = await self.storage.jobs(limit=1, after=cursor)
            for summary in await self.rows(page.ids):
                runs = _runs_after(summary.runs, run_id)
                room = limit - len(collected)
                collected += [run_summary.model_copy(update={"job_id": summary.id}) for run_summary in runs[:room]]
                if len(runs) > room:
                    return RunPage(tuple(collected), f"{cursor or ''}/{collected[-1].id}" if collected else after)
            cursor, run_id = page.next, None
            if cursor is None or len(collected) >= limit:
                return RunPage(tuple(collected), None if cursor is None else f"{cursor}/")

    async def run_state(self, job_id: str, run_id: str, *, through: str | None = None) -> Run | None:
        """Return a Run's state at its end, or after the event `through`; None without events. Raises StorageError."""
        return await load_run(self.storage, RunRef(job_id, run_id), through=through)

    async def events(
        self,
        run_id: str,
        *,
        job_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Sequence[StoredLine[StoredEvent]]:
        """Return a Run's events after place `after`. `job_id` is needed only for Runs that another program wrote.

        Raises UsageError for a place or a limit below 0.
        """
        if after < 0 or (limit is not None and limit < 0):
            raise UsageError(f"events: after is {after} and limit {limit}: neither may be below 0")
        ref = RunRef(job_id or job_of_run(run_id), check_id(run_id, "run"))
        return [line async for line in run_logs(self.storage).events(ref, after=after, limit=limit)]

    async def logs(self, job_id: str | None = None, *, run_id: str | None = None) -> Sequence[RunLog]:
        """Return the unparsed logs of a Job's Runs, or of one Run, up to the first damage."""
        job_id = await self.id_or_latest(job_id)
        ids = await run_ids(self.storage, job_id)
        if run_id is not None and run_id not in ids:
            raise NotFound(f"Job {job_id} has no Run {run_id}; it has: {', '.join(ids) or 'none'}")
        selected_ids = ids if run_id is None else [run_id]
        return [RunLog(run_id, *await read_intact(self.storage, RunRef(job_id, run_id))) for run_id in selected_ids]

    async def last_lines(self, job_id: str | None = None, *, count: int) -> Sequence[RunLog]:
        """Return the last lines of each log, at most `count`, unparsed and possibly unchecked."""
        job_id = await self.id_or_latest(job_id)
        ids = await run_ids(self.storage, job_id)
        return [RunLog(run_id, await self.storage.end(RunRef(job_id, run_id), count)) for run_id in ids]

    async def watch(
        self,
        job_id: str | None = None,
        *,
        queued: bool = False,
        after: Mapping[str, int] | None = None,
        on_caught_up: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[StoredLine[StoredEvent]]:
        """Yield every stored event of a Job, in whichever process it is driven, until it is not driven any more.

        `queued`: also wait for a Job without a driver that a worker may claim. `after`: the number of events of each
        Run that are known already. `on_caught_up` is called each time all stored events were yielded.
        """
        watched_id = await self.id_or_latest(job_id)

        async def is_over() -> bool:
            summary = await self.job(watched_id)
            return (
                summary.status not in ("queued", "running")
                if summary.queued is None
                else await self._needs_no_worker(watched_id)
            )

        end = is_over if queued else None
        async for line in watch_job(self.storage, watched_id, end, after=after, on_caught_up=on_caught_up):
            yield line

    async def follow(
        self, job_id: str, *, after: Mapping[str, int] | None = None, on_event: OnEvent | None = None
    ) -> JobSummary:
        """Follow a Job that workers drive until it ends or waits for a person, and return its summary.

        `after`: the place of the last known event, by Run; `on_event` is called with later ones.
        """
        from perstack.engine.log.run_session import as_listener

        listener = as_listener(on_event)
        async for line in watch_job(self.storage, job_id, lambda: self._needs_no_worker(job_id), after=after):
            if listener is not None:
                listener(line.event, line.line)
        return await self.job(job_id)

    async def _needs_no_worker(self, job_id: str) -> bool:
        """Return whether workers are done with a Job without a driver. A "running" Job was just claimed."""
        summary = await self.job(job_id)
        state = job_state(summary, 0, by_workers=True)
        if state != "leftToWorkers":
            return DUE[state]["order"] == "finish"
        loaded_job = await self.load(job_id)
        return reason_to_resume(loaded_job.runs[loaded_job.coordinator.start.run_id], 0) is None

    async def tree(self, job_id: str | None = None) -> tuple[PlacedRun, ...]:
        """Return the Runs of a Job, each after the Run that it follows from: delegates, continuations and branches."""
        return await self.tree_of(await self.job(job_id))

    async def tree_of(self, summary: JobSummary) -> tuple[PlacedRun, ...]:
        """Return the `tree` of a Job whose summary is known."""
        from perstack.core.jobs.summary import tree_of

        return tree_of(
            summary.runs,
            {
                run_summary.id: await self._origin_of(summary.id, run_summary)
                for run_summary in summary.runs
                if run_summary.continued_from
            },
        )

    async def _origin_of(self, job_id: str, run_summary: RunSummary) -> ContinuedFrom:
        from perstack.core.runs.events import parse_event  # imported late: lists of Jobs parse no event

        with suppress(StorageError, ValueError):
            for line in await self.storage.read(RunRef(job_id, run_summary.id), limit=1):
                start = parse_event(open_line(line).payload)
                if start.type == "startRun" and start.continued_from is not None:
                    return start.continued_from
        checkpoint_id = run_summary.continued_from or ""
        run_id = place_of(checkpoint_id)[1] if is_place(checkpoint_id) else ""
        return ContinuedFrom(run_id=run_id, checkpoint_id=checkpoint_id)

    async def checkpoints(self, job_id: str, *, limit: int = 1000, after: str | None = None) -> Page:
        """Return the ids of a Job's checkpoints after `after`, Run by Run, oldest first."""
        ids = await run_ids(self.storage, check_job_id(job_id))
        ref = None if after is None else (await self._locate_checkpoint(after, job_id))[0]
        checkpoint_ids: list[str] = []
        for run_id in ids if ref is None else ids[ids.index(ref.run_id) :]:
            places = [checkpoint_at(line.event) for line in await self.events(run_id, job_id=job_id)]
            checkpoint_ids += filter(None, places)
            if after in checkpoint_ids:
                checkpoint_ids = checkpoint_ids[checkpoint_ids.index(after) + 1 :]
            if len(checkpoint_ids) > limit:
                return Page(tuple(checkpoint_ids[:limit]), checkpoint_ids[limit - 1])
        return Page(tuple(checkpoint_ids))

    async def state_at(self, checkpoint_id: str, job_id: str | None = None) -> Run:
        """Return the state of a Run at a checkpoint. Raises NotFound."""
        ref, event_id = await self._locate_checkpoint(checkpoint_id, job_id)
        run = await self.run_state(ref.job_id, ref.run_id, through=event_id)
        if run is None:
            raise NotFound(f"there is no checkpoint {checkpoint_id}")
        return run

    async def checkpoint(self, checkpoint_id: str, *, job_id: str | None = None) -> Checkpoint:
        """Return a full checkpoint, with its messages, folded from the log."""
        from perstack.core.jobs.checkpoints import checkpoint_of  # imported late: lists of Jobs need none

        run = await self.state_at(checkpoint_id, job_id)
        return checkpoint_of(run).model_copy(update={"id": checkpoint_id})

    async def checkpoint_path(self, checkpoint_id: str, *, job_id: str | None = None) -> Path | None:
        """Return the file of a checkpoint, and write it if it is missing; None if checkpoints are not files."""
        ref, _ = await self._locate_checkpoint(checkpoint_id, job_id)
        path = self.storage.checkpoint_path(ref.job_id, checkpoint_id)
        if path is not None and await self.storage.checkpoint(ref.job_id, checkpoint_id) is None:
            from perstack.core.jobs.checkpoints import checkpoint_file

            file = checkpoint_file(await self.state_at(checkpoint_id, job_id))
            await self.storage.put_checkpoint(ref.job_id, checkpoint_id, file.to_json())
        return path

    async def unsettled(self, job_id: str | None = None) -> tuple[UnsettledCall, ...]:
        """Return the calls that began, may have had a side effect, and have no result."""
        return unsettled_calls((await self.load(job_id)).runs.values())

    async def _derive_summary(self, job_id: str) -> JobSummary:
        try:
            job, is_driven = await self._load_with_driver(job_id)
        except Damaged as damage:
            return await self._summary_of_damaged(job_id, damage)
        # not stored: a write would make this the Job written to last, and the heads in the old summary are evidence
        return summarize(job, is_driven=is_driven)

    async def _load_with_driver(self, job_id: str) -> tuple[Job, bool]:
        """Return a Job, and whether a process drives it. Raises as `load`."""
        job, before = await self.load(job_id), None
        while not (is_driven := await self.storage.lease_info(job_id) is not None) and job.coordinator.status in ACTIVE:
            # The driver may have ended the Job, and its lease, after the logs were read: only a Job whose logs stay as
            # they are was left by its driver.
            if before is not None and before.heads == job.heads:
                break
            job, before = await self.load(job_id), job
        return job, is_driven

    async def _summary_of_damaged(self, job_id: str, damage: Damaged) -> JobSummary:
        """Return the summary of the readable part of the logs, as a failed Job, so that lists of Jobs show it."""
        from perstack.core.jobs.job import Job

        job, runs = Job(job_id), dict[str, "Run"]()
        for run_id in await run_ids(self.storage, job_id):
            partial = await run_logs(self.storage, runs).read_intact(RunRef(job_id, run_id))
            if partial.loaded is not None:
                runs[run_id] = partial.loaded.state
                job.update(runs[run_id])
        if not job.coordinators:
            return _unreadable_job(job_id, damage)
        failure = _unreadable_job(job_id, damage).model_dump(include={"status", "lifecycle", "error", "damaged"})
        unset = {"pause_reason": None, "text": None, "question": None, "finished_at": None}
        return summarize(job, is_driven=False).model_copy(update={**failure, **unset})

    async def _locate_checkpoint(self, checkpoint_id: str, job_id: str | None) -> tuple[RunRef, str]:
        """Return the log of a checkpoint and the id of its event. Raises NotFound."""
        check_id(checkpoint_id, "checkpoint")
        if is_place(checkpoint_id):
            owner, run_id, _ = place_of(checkpoint_id)
            if job_id is None or run_id in await run_ids(self.storage, check_job_id(job_id)):
                return RunRef(job_id or owner, run_id), checkpoint_id
        else:
            owner_id = None if job_id is None else check_job_id(job_id)
            if (foreign := await self.storage.foreign_checkpoint(checkpoint_id, owner_id)) is not None:
                owner, event_id = foreign
                return RunRef(owner, place_of(event_id)[1]), event_id
        suffix = f" in Job {job_id}" if job_id else ""
        raise NotFound(f"there is no checkpoint {checkpoint_id}{suffix}", next_steps=(Inspect("log", job_id),))


def _may_be_stale(summary: JobSummary) -> bool:
    if summary.status != "queued":
        return False
    return any(
        run_summary.delegated_by is not None and run_summary.status in (*ACTIVE, "queued")
        for run_summary in summary.runs
    )


def _cursor(after: str | None) -> tuple[str | None, str | None]:
    if after is None:
        return None, None
    job_cursor, separator, run_id = after.partition("/")
    if not separator:
        raise UsageError(f"{after!r} is not a cursor of the list of Runs: use `next` of the page before")
    return job_cursor or None, run_id or None


def _runs_after(runs: tuple[RunSummary, ...], run_id: str | None) -> tuple[RunSummary, ...]:
    start = next((number for number, run_summary in enumerate(runs, 1) if run_summary.id == run_id), 0)
    return runs[start:]


def _unreadable_job(job_id: str, error: StorageError | NotFound) -> JobSummary:
    return JobSummary(
        id=job_id,
        expert_key="",
        query="",
        status="stoppedByError",
        lifecycle="failed",
        coordinator_run_id="",
        error=str(error),
        damaged=True,
    )
